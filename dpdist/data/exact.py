"""Whole numbers that float64 tells from their neighbours."""

from __future__ import annotations

from dpdist.core.errors import InputError

EXACT = 2**53


def require_exact(value: int, where: str) -> None:
    """Raise :class:`InputError` for a whole number that float64 rounds; `where` names its place, "in column a"."""
    if not -EXACT <= value <= EXACT:
        raise InputError(
            f"the data hold {value} {where}; whole numbers should be within 2**53, where float64 tells neighbours "
            "apart. Subtract what all have alike, or leave columns of ids out."
        )
