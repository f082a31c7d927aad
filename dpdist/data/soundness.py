"""Checks of rows and weights from any source, and of integers, which float64 may round."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpdist.core.checks import is_number, real_array, shown
from dpdist.core.errors import InputError
from dpdist.models.families.base import Rows

#: Largest integer up to which float64 represents all of them.
EXACT = 2**53


def require_shape(shape: tuple[int, ...], label: str) -> None:
    """Raise :class:`InputError` unless the data are two-dimensional with at least one row and one column."""
    if len(shape) != 2:
        hint = "Reshape it to (rows, columns)."
        if len(shape) == 1:
            hint = "Reshape your data: x.reshape(1, -1) if it is one row, x.reshape(-1, 1) if it is one column."
        raise InputError(
            f"{label} should be 2-D, with one row per observation. Expected 2D array, got {len(shape)}-D. {hint}"
        )
    if shape[0] < 1 or shape[1] < 1:
        missing = "sample(s)" if shape[0] < 1 else "feature(s)"
        raise InputError(
            f"{label} has 0 {missing} (shape={tuple(shape)}) while a minimum of 1 is required; "
            "give it at least one row and one column."
        )


def require_block(given: object, count: int, label: str, first: int) -> tuple[Rows, np.ndarray | None]:
    """The rows and weights of a partition, checked: `count` rows, numbered from `first`; `label` names them. Raises
    :class:`InputError` if it is no such block of real numbers, holds whole numbers that float64 rounds, or its weights
    are not finite and zero or more."""
    mend = "Correct the code that makes this block, or give the data directly."
    if not isinstance(given, tuple) or len(given) != 2:
        raise InputError(f"{label} should be a tuple of rows and weights (or None); got {shown(given)}. {mend}")
    rows, weights = given
    if isinstance(rows, np.ma.MaskedArray):
        rows = unmasked(rows)
    if not _numeric(rows, 2):
        raise InputError(f"{label} should be a 2-D array of real numbers; got {shown(rows)}. {mend}")
    if rows.shape[0] != count:
        raise InputError(f"{label} should hold {count} rows; got {rows.shape[0]}. {mend}")
    _require_exact(rows, first)
    if weights is None:
        return rows, None
    if not _numeric(weights, 1) or len(weights) != count:
        raise InputError(f"{label} should have {count} weights, one per row; got {shown(weights)}. {mend}")
    wrong = _first_unsound(weights)
    if wrong is not None:
        raise InputError(f"weights of {label} should be finite and zero or more; got {weights[wrong]}. {mend}")
    return rows, weights


def _require_exact(rows: Rows, first: int) -> None:
    """Raise :class:`InputError` for integers that float64 rounds."""
    values = rows if isinstance(rows, np.ndarray) else rows.data
    far = most_rounded(values)
    if far is None:
        return
    if isinstance(rows, np.ndarray):
        row, column = np.unravel_index(far, rows.shape)
    else:
        row, column = np.searchsorted(rows.indptr, far, side="right") - 1, rows.indices[far]
    require_exact(int(values.flat[far]), f"in column {column} of row {first + row}")


def _numeric(values: Any, axes: int) -> bool:
    """Whether `values` is an array of real numbers with `axes` axes."""
    array = isinstance(values, np.ndarray) or sparse.issparse(values)
    return bool(array and values.ndim == axes and values.dtype.kind in "biuf")


def _first_unsound(weights: np.ndarray) -> int | None:
    """Index of the first weight that is negative or not finite; None if all are valid."""
    sound = np.isfinite(weights) & (weights >= 0)
    return None if sound.all() else int(sound.argmin())


def unmasked(values: np.ma.MaskedArray) -> np.ndarray:
    """The data of an array without masked entries; raises :class:`InputError` if an entry is masked."""
    if np.ma.is_masked(values):
        raise InputError("the data should have no masked entries; got some. Fill them in, or drop their rows.")
    return np.asarray(values)


def require_weights(weights: npt.ArrayLike | None, rows: int) -> np.ndarray | None:
    """Row weights as (rows,) float64, finite and not negative; None stays None."""
    if weights is None:
        return None
    if np.ma.is_masked(weights):
        raise InputError(
            "sample_weight should have no masked entries; got some. Give weights of zero to leave rows out."
        )
    given = np.full(rows, float(weights)) if is_number(weights) else real_array(weights)
    if given is None or given.shape != (rows,):
        came = shown(weights) if given is None or not given.ndim else f"shape {given.shape}"
        raise InputError(f"sample_weight should have {rows} numbers, one per row; got {came}.")
    array = given.astype(np.float64)
    row = _first_unsound(array)
    if row is not None:
        raise InputError(
            f"sample_weight should be finite, zero or more; got {array[row]} for row {row}. Correct or drop the row."
        )
    if not 0 < array.sum() < np.inf:
        raise InputError(f"sample_weight should have a finite sum above zero; the sum is {array.sum()}.")
    return array


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


def summable(values: sparse.sparray) -> sparse.sparray:
    """Values whose entries may be stored twice and then add: small integers and truth values as int64, so that their
    sums neither wrap nor stay at true."""
    small = values.dtype.kind in "iub" and values.dtype.itemsize < 8
    return values.astype(np.int64) if small and not getattr(values, "has_canonical_format", True) else values
