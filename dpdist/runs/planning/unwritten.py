"""Data that do not exist yet: their number of rows, columns and dtype, and drawn rows in their place."""

from __future__ import annotations

import numpy as np

from dpdist.core.errors import InputError
from dpdist.data.base import Partition, Partitioning, TableSource, cut_rows
from dpdist.data.convert import chunk_rows

#: Standard deviation of the means of drawn clusters, in standard deviations within a cluster.
APART = 2.0


class UnwrittenSource(TableSource):
    """Rows as ``dpdist convert`` would write them, of which only the shape is known.

    Parameters
    ----------
    rows, columns : their numbers
    dtype : in which they will be stored
    """

    def __init__(self, rows: int, columns: int, dtype: str) -> None:
        super().__init__((rows, columns), np.dtype(dtype), "rows that are not written yet", None, None)
        self.cut = self.cut_for(None)

    def cut_for(self, work_rows: int | None) -> Partitioning:
        size = self.shape[1] * self.dtype.itemsize
        return cut_rows(self.shape[0], size, chunk_rows(self.shape[0], size), work_rows)

    def partition(self, index: int, start: int, stop: int, weights: np.ndarray | None) -> Partition:
        return _Unwritten(index, start, stop)


class _Unwritten(Partition):
    def read(self) -> tuple[np.ndarray, None]:
        raise InputError("the rows are not written yet, so they cannot be read.")


def drawn_rows(kind: str, rows: int, columns: int, clusters: int) -> np.ndarray:
    """Rows (rows, columns) of overlapping clusters: real numbers, counts, or zeros and ones, according to `kind`."""
    rng = np.random.default_rng(0)
    means = APART * rng.normal(size=(clusters, columns))
    found: np.ndarray = means[rng.integers(clusters, size=rows)] + rng.normal(size=(rows, columns))
    if kind == "counts":
        found = np.rint(np.exp2(np.clip(found, -4, 4)))
    return (found > 0).astype(np.float64) if kind == "bits" else found
