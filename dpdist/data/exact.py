"""Integers that float64 represents exactly."""

from __future__ import annotations

import numpy as np

from dpdist.core.errors import InputError

EXACT = 2**53


def require_exact(value: int, where: str) -> None:
    """Raise :class:`InputError` for an integer that float64 rounds; `where` names its place, as in "in column a"."""
    if not -EXACT <= value <= EXACT:
        raise InputError(
            f"whole numbers should be from -2**53 to 2**53, the range in which float64 is exact; got {value} {where}. "
            "Subtract a constant from the column, or leave out columns of ids."
        )


def most_rounded(values: np.ndarray) -> int | None:
    """The flat index of an integer in `values` that float64 may round; None if there is none."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8 or not values.size:
        return None
    if int(values.max()) > EXACT:
        return int(values.argmax())
    return int(values.argmin()) if int(values.min()) < -EXACT else None


def require_exact_column(values: np.ndarray, where: str) -> None:
    """As :func:`require_exact`, for all values of a column before its conversion to float64."""
    far = most_rounded(values)
    if far is not None:
        require_exact(int(values.flat[far]), where)
