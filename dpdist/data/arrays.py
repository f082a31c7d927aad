"""Rows in memory: NumPy arrays and SciPy CSR matrices."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dpdist.core.checks import shown
from dpdist.core.errors import InputError, InputKindError
from dpdist.data.base import Partition, Partitioning, TableSource, Weights, cut_rows
from dpdist.data.columns import Names
from dpdist.data.soundness import EXACT, require_exact, require_shape, summable, unmasked
from dpdist.models.families.base import Rows, is_sparse


@dataclass(frozen=True, eq=False)
class ArrayPartition(Partition):
    """A slice of an array, which holds its rows."""

    values: Rows
    weights: np.ndarray | None

    def read(self) -> tuple[Rows, np.ndarray | None]:
        return self.values, self.weights


class ArraySource(TableSource):
    """A NumPy array or SciPy sparse matrix.

    Parameters
    ----------
    values : (N, D) array of numbers, or anything that SciPy can convert to CSR
    weights : (N,) row weights, optional
    partition_rows : rows of a partition; default: by size
    cut : boundaries of the partitions, instead of `partition_rows`
    names : of the columns, if they have any
    """

    def __init__(
        self,
        values: object,
        weights: Weights = None,
        partition_rows: int | None = None,
        cut: Partitioning | None = None,
        names: Names | None = None,
    ) -> None:
        self.values = _as_csr(values) if sparse.issparse(values) else as_array(values)
        self.sparse = is_sparse(self.values)
        super().__init__(self.values.shape, self.values.dtype, "the data", weights, names)
        rows = self.shape[0]
        self._given = (
            Partitioning((*range(0, rows, partition_rows), rows)) if cut is None and partition_rows is not None else cut
        )
        self.cut = self._given or cut_rows(rows, self._row_bytes)

    @property
    def _row_bytes(self) -> int:
        return int(self.shape[1] * self.values.dtype.itemsize)

    def cut_for(self, work_rows: int | None) -> Partitioning | None:
        return cut_rows(self.shape[0], self._row_bytes, None, work_rows) if self._given is None else None

    def partition(self, index: int, start: int, stop: int, weights: np.ndarray | None) -> ArrayPartition:
        return ArrayPartition(index, start, stop, self.values[start:stop], weights)


def _as_csr(values: sparse.sparray) -> sparse.csr_array:
    """CSR with at most one stored entry for each element, so that functions may be applied to entries."""
    require_shape(values.shape, "the data")
    if values.format in ("csr", "csc", "bsr"):
        _require_pointers(values.indptr, len(values.indices))
        _require_places(values)
    rows = sparse.csr_array(summable(values))
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    if rows.dtype != values.dtype and (rows.data == rows.data.astype(values.dtype)).all():
        rows = rows.astype(values.dtype)
    return rows


def _require_pointers(pointers: np.ndarray, entries: int) -> None:
    """Check indptr, because SciPy's compiled code would read beyond the entries."""
    if pointers[0] != 0 or pointers[-1] > entries or (np.diff(pointers) < 0).any():
        raise InputError(
            "the sparse matrix is invalid: its indptr should start at 0, never decrease, and end at or below the "
            "number of entries. Build the matrix again."
        )


def _require_places(values: sparse.sparray) -> None:
    """Check indices, because SciPy's compiled code would write beyond the matrix."""
    along = values.shape[0] if values.format == "csc" else values.shape[1]
    places = along // (values.blocksize[1] if values.format == "bsr" else 1)
    used = values.indices[: values.indptr[-1]]
    if len(used) and not (used.min() >= 0 and used.max() < places):
        bad = used.min() if used.min() < 0 else used.max()
        raise InputError(
            f"the sparse matrix is invalid: its indices should be from 0 to {places - 1}; got {bad}. Build the matrix "
            "again."
        )


def as_array(values: object) -> np.ndarray:
    """Dense rows as an array, with dtype object converted to float64; raises :class:`InputError` unless numeric."""
    if isinstance(values, np.ma.MaskedArray):
        values = unmasked(values)
    try:
        array = np.asarray(values)
        if not array.ndim:
            raise InputError(
                f"the data should be a path, or an array with one row per observation; got {shown(values)}. "
                "Expected 2D array, got scalar array instead."
            )
        if array.dtype.names:
            raise InputError(
                "the data should be a 2-D array of numbers; got a structured array with the fields "
                f"{', '.join(array.dtype.names)}. Convert it with numpy.lib.recfunctions.structured_to_unstructured(x)."
            )
        if array.ndim == 1 and array.dtype.kind == "U":
            array = array.astype(object)
        return _as_numbers(array) if array.dtype.kind == "O" else array
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        hint = "Encode or drop columns of other types."
        if getattr(values, "ndim", 0) == 1:
            hint = "Count the words of texts first, for example with scikit-learn's CountVectorizer()."
        raise InputKindError(f"the data should be numbers; {error}. {hint}") from error


def _as_numbers(array: np.ndarray) -> np.ndarray:
    """Objects as float64; missing values of pandas become NaN."""
    numbers = _missing_as_nan(array).astype(np.float64)
    for place in np.argwhere(np.abs(numbers) >= EXACT):
        if isinstance(value := array[tuple(place)], int | np.integer):
            require_exact(int(value), f"in column {place[-1]} of row {place[0]}")
    return numbers


def _missing_as_nan(array: np.ndarray) -> np.ndarray:
    """Objects, with missing values of pandas replaced by NaN, so that later errors name their row and column."""
    pandas = sys.modules.get("pandas")
    return array if pandas is None else np.where(pandas.isna(array), np.nan, array)
