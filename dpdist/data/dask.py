"""Rows in a dask.array: each partition is one block of rows.

A block that is there already, in this process or persisted on a cluster, is used where it is: tasks of that cluster
depend on it, and what computed it is not run again. Any other block is computed where it is loaded, each time.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np
from dask.optimization import cull
from distributed import Future, futures_of

from dpdist.core.errors import InputError
from dpdist.data.arrays import ArrayPartition, partition_of
from dpdist.data.base import Cut, Partition, Source, require_shape, require_weights
from dpdist.data.columns import Names
from dpdist.execution.base import Remote
from dpdist.models.families.base import Rows


@dataclass(frozen=True, eq=False)
class DaskPartition(Partition):
    """One block of a dask.array, computed where it is loaded from the part of the graph that it needs."""

    index: int
    start: int
    stop: int
    weights: np.ndarray | None
    key: Any
    graph: dict[Any, Any]

    def load(self) -> tuple[Rows, np.ndarray | None]:
        return np.asarray(dask.get(self.graph, self.key)), self.weights


@dataclass(frozen=True, eq=False)
class PersistedPartition(Partition, Remote):
    """One block of a dask.array that a cluster holds; loaded, it comes here."""

    index: int
    start: int
    stop: int
    weights: np.ndarray | None
    future: Future

    def load(self) -> tuple[Rows, np.ndarray | None]:
        return np.asarray(self.future.result()), self.weights

    @property
    def completion(self) -> Callable[[Any], ArrayPartition]:
        return functools.partial(partition_of, self.index, self.start, self.stop, self.weights)


class DaskSource(Source):
    """A two-dimensional dask.array; its row chunks are the partitions.

    Parameters
    ----------
    array : dask.array.Array; what is still to be computed from blocks that a cluster holds is persisted there too
    weights : (N,) row weights, optional
    names : of the columns, if they have any
    """

    def __init__(self, array: da.Array, weights: Any = None, names: Names | None = None) -> None:
        self.label, self.names = "the dask.array", names
        require_shape(array.shape, self.label)
        if any(np.isnan(size) for sizes in array.chunks for size in sizes):
            raise InputError("the dask.array has chunks of unknown size; call array.compute_chunk_sizes() first.")
        if array.dtype.kind not in "biuf":
            raise InputError(f"the dask.array should hold real numbers; got dtype {array.dtype}. Convert it to float.")
        rows = array.rechunk({1: -1})
        self.array = _brought_forward(rows)
        self.shape = (int(array.shape[0]), int(array.shape[1]))
        self.weights = require_weights(weights, self.shape[0])

    @cached_property
    def cut(self) -> Cut:
        """Boundaries of the partitions: the array's own row chunks."""
        sizes = [int(size) for size in self.array.chunks[0] if size]
        return Cut((0, *(int(stop) for stop in np.cumsum(sizes))))

    @cached_property
    def partitions(self) -> list[Partition]:  # type: ignore[override]
        """The partitions, in row order."""
        sizes, keys = self.array.chunks[0], [row[0] for row in self.array.__dask_keys__()]
        filled = [key for key, size in zip(keys, sizes, strict=True) if size]
        return [self._partition(key, *place) for key, place in zip(filled, self.cut.ranges(), strict=True)]

    def _partition(self, key: Any, index: int, start: int, stop: int) -> Partition:
        weights, block = None if self.weights is None else self.weights[start:stop], self.array.__dask_graph__()[key]
        if isinstance(block, Future):
            return PersistedPartition(index, start, stop, weights, block)
        if isinstance(block, np.ndarray):
            return ArrayPartition(index, start, stop, block, weights)
        return DaskPartition(index, start, stop, weights, key, cull(self._optimized, key)[0])

    @cached_property
    def _optimized(self) -> dict[Any, Any]:
        """The graph as Dask would run it."""
        return dict(dask.optimize(self.array)[0].__dask_graph__())

    def prepare_for_laps(self) -> None:
        if any(isinstance(partition, DaskPartition) for partition in self.partitions):
            warnings.warn(
                "the dask.array is not persisted, so each pass over it computes its blocks anew; call array.persist() "
                "first where memory can hold it, or write it with array.to_zarr(path) and give that path.",
                stacklevel=2,
            )

    def identity(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "dtype": str(self.array.dtype),
            "kind": "dense",
            "cut": self.cut.digest(),
        }


def bag_blocks(bag: db.Bag) -> Iterator[Any]:
    """The items of a bag, each a block of rows, one partition after the other."""
    held = _brought_forward(bag)
    futures = {future.key: future for future in futures_of(held)}
    for key, partition in zip(held.__dask_keys__(), held.to_delayed(), strict=True):
        yield from futures[key].result() if key in futures else partition.compute(scheduler="synchronous")


def _brought_forward(collection: Any) -> Any:
    """A Dask collection, persisted by the cluster that holds something it is computed from; else as it is."""
    held = futures_of(collection)
    return held[0].client.persist(collection) if held else collection
