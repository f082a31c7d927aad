"""Rows in a dask.array: each partition is one block of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dask.array as da
import dask.bag as db
import numpy as np

from dpdist.errors import InputError
from dpdist.families.base import Rows
from dpdist.sources.base import Cut, Partition, Source, require_shape, require_weights


@dataclass(frozen=True, eq=False)
class DaskPartition(Partition):
    """One block of a dask.array, computed where it is loaded."""

    index: int
    start: int
    stop: int
    block: da.Array
    weights: np.ndarray | None

    def load(self) -> tuple[Rows, np.ndarray | None]:
        return np.asarray(self.block.compute(scheduler="synchronous")), self.weights


class DaskSource(Source):
    """A two-dimensional dask.array; its row chunks are the partitions.

    Parameters
    ----------
    array : dask.array.Array
    weights : (N,) row weights, optional
    """

    def __init__(self, array: da.Array, weights: Any = None) -> None:
        self.label = "the dask.array"
        require_shape(array.shape, self.label)
        if any(np.isnan(size) for sizes in array.chunks for size in sizes):
            raise InputError("the dask.array has chunks of unknown size; call array.compute_chunk_sizes() first.")
        if array.dtype.kind not in "biuf":
            raise InputError(f"the dask.array should hold real numbers; got dtype {array.dtype}. Convert it to float.")
        self.array = array.rechunk({1: -1})
        self.shape = (int(array.shape[0]), int(array.shape[1]))
        self.weights = require_weights(weights, self.shape[0])

    @cached_property
    def cut(self) -> Cut:
        """Boundaries of the partitions: the array's own row chunks."""
        sizes = [int(size) for size in self.array.chunks[0] if size]
        return Cut((0, *(int(stop) for stop in np.cumsum(sizes))))

    @property
    def partitions(self) -> list[Partition]:
        array, weights = self.array, self.weights
        return [
            DaskPartition(i, a, b, array[a:b], None if weights is None else weights[a:b])
            for i, a, b in self.cut.ranges()
        ]

    def identity(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "dtype": str(self.array.dtype),
            "kind": "dense",
            "cut": self.cut.digest(),
        }


def bag_blocks(bag: db.Bag) -> Iterator[Any]:
    """The items of a bag, each a block of rows, one partition after the other."""
    for partition in bag.to_delayed():
        yield from partition.compute(scheduler="synchronous")
