"""Rows in memory: NumPy arrays and SciPy CSR matrices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from dpdist.core.checks import shown
from dpdist.core.errors import InputError, InputKindError
from dpdist.data.base import (
    Cut,
    Partition,
    Source,
    cut_rows,
    require_shape,
    require_weights,
)
from dpdist.data.columns import Names
from dpdist.models.families.base import Rows


@dataclass(frozen=True, eq=False)
class ArrayPartition(Partition):
    """A slice of an array, with the rows themselves."""

    index: int
    start: int
    stop: int
    values: Rows
    weights: np.ndarray | None

    def load(self) -> tuple[Rows, np.ndarray | None]:
        return self.values, self.weights


def partition_of(index: int, start: int, stop: int, weights: np.ndarray | None, values: Rows) -> ArrayPartition:
    """A partition of rows that came last, as when a cluster brings them."""
    return ArrayPartition(index, start, stop, values, weights)


class ArraySource(Source):
    """A NumPy array or SciPy sparse matrix.

    Parameters
    ----------
    values : (N, D) array of numbers, or anything that SciPy can make CSR of
    weights : (N,) row weights, optional
    partition_rows : rows of a partition; default: by size
    cut : boundaries of the partitions, in place of `partition_rows`
    names : of the columns, if they have any
    """

    def __init__(
        self,
        values: Any,
        weights: Any = None,
        partition_rows: int | None = None,
        cut: Cut | None = None,
        names: Names | None = None,
    ) -> None:
        self.values = _as_rows(values)
        self.sparse = sparse.issparse(self.values)
        self.label = "the data"
        require_shape(self.values.shape, self.label)
        self.shape = (int(self.values.shape[0]), int(self.values.shape[1]))
        self.weights = require_weights(weights, self.shape[0])
        self._partition_rows, self._cut, self.names = partition_rows, cut, names

    @cached_property
    def cut(self) -> Cut:
        """Boundaries of the partitions."""
        rows = self.shape[0]
        if self._cut is not None:
            return self._cut
        if self._partition_rows is not None:
            return Cut((*range(0, rows, self._partition_rows), rows))
        return cut_rows(rows, self.shape[1] * self.values.dtype.itemsize)

    @property
    def partitions(self) -> list[Partition]:
        values, weights = self.values, self.weights
        return [
            ArrayPartition(i, a, b, values[a:b], None if weights is None else weights[a:b])
            for i, a, b in self.cut.ranges()
        ]

    def identity(self) -> dict[str, Any]:
        kind = "csr" if sparse.issparse(self.values) else "dense"
        return {
            "shape": list(self.shape),
            "dtype": str(self.values.dtype),
            "kind": kind,
            "cut": self.cut.digest(),
        }


def _as_rows(values: Any) -> Rows:
    rows = _as_csr(values) if sparse.issparse(values) else _as_array(values)
    if rows.dtype.kind not in "biuf":
        kind = "Complex data not supported" if rows.dtype.kind == "c" else f"got dtype {rows.dtype}"
        raise InputError(f"the data should be real numbers; {kind}. Convert them to float first.")
    return rows


def _as_csr(values: Any) -> sparse.csr_array:
    """CSR with one stored entry a place, so that functions of entries may be taken."""
    require_shape(values.shape, "the data")
    if values.format in ("csr", "csc", "bsr"):
        _require_pointers(values.indptr, len(values.indices))
    rows = sparse.csr_array(values)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def _require_pointers(pointers: np.ndarray, entries: int) -> None:
    """SciPy's compiled code reads where they point, be it beyond the entries."""
    if pointers[0] != 0 or pointers[-1] > entries or (np.diff(pointers) < 0).any():
        raise InputError(
            "the data should be a sparse matrix whose indptr rises from 0 to at most its number of entries; got one "
            "that does not. Make the matrix anew."
        )


def _as_array(values: Any) -> np.ndarray:
    if np.ma.is_masked(values):
        raise InputError("the data should have no masked entries; got some. Fill them in, or drop their rows.")
    try:
        array = np.asarray(values)
        if not array.ndim:
            raise InputError(
                f"the data should be an array, a row an observation, or a path; got {shown(values)}. "
                "Expected 2D array, got scalar array instead."
            )
        return array.astype(np.float64) if array.dtype.kind == "O" else array
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputKindError(f"the data should be numbers; {error}. Encode or drop the other columns.") from error
