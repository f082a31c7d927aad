"""Whole numbers that float64 tells from their neighbours."""

from __future__ import annotations

import numpy as np

from dpdist.core.errors import InputError

EXACT = 2**53


def require_exact(value: int, where: str) -> None:
    """Raise :class:`InputError` for a whole number that float64 rounds; `where` names its place, "in column a"."""
    if not -EXACT <= value <= EXACT:
        raise InputError(
            f"the data hold {value} {where}; whole numbers should be within 2**53, where float64 tells neighbours "
            "apart. Subtract what all have alike, or leave columns of ids out."
        )


def most_rounded(values: np.ndarray) -> int | None:
    """The place among all `values` of a whole number that float64 may round; None where there is none."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8 or not values.size:
        return None
    if int(values.max()) > EXACT:
        return int(values.argmax())
    return int(values.argmin()) if int(values.min()) < -EXACT else None


def require_exact_column(values: np.ndarray, where: str) -> None:
    """As :func:`require_exact` of a column, before it is a float64 among others."""
    far = most_rounded(values)
    if far is not None:
        require_exact(int(values.flat[far]), where)
