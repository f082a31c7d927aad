"""Rows in a dask.array; each partition is one block of rows.

A block that already exists, in this process or persisted on a cluster, is used where it is: tasks on that cluster
depend on it, and it is not computed again. Every other block is computed each time it is loaded, where it is loaded.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import numpy.typing as npt
from dask.optimization import cull
from distributed import Future, futures_of
from scipy import sparse

from dpdist.core.errors import InputError
from dpdist.data.arrays import ArrayPartition
from dpdist.data.base import Partition, Partitioning, TableSource, Weights
from dpdist.data.columns import Names
from dpdist.execution.base import Remote
from dpdist.execution.dask import require_held
from dpdist.models.families.base import Rows

Collection = TypeVar("Collection", da.Array, db.Bag)


def _dense(block: object) -> np.ndarray:
    """A computed block as an array; raises :class:`InputError` if it is a sparse matrix."""
    if sparse.issparse(block):
        raise InputError(
            "the blocks of a dask.array should be dense; got sparse matrices. Give one SciPy matrix, or a corpus "
            "that dpdist corpus wrote, or x.map_blocks(lambda block: block.toarray())."
        )
    return np.asanyarray(block)


@dataclass(frozen=True, eq=False)
class DaskPartition(Partition):
    """A block of a dask.array, computed where it is loaded from the part of the graph that it needs."""

    weights: np.ndarray | None
    key: Hashable
    graph: Mapping[Hashable, object]

    def read(self) -> tuple[Rows, np.ndarray | None]:
        return _dense(dask.get(self.graph, self.key)), self.weights


@dataclass(frozen=True, eq=False)
class PersistedPartition(Partition, Remote):
    """A block of a dask.array persisted on a cluster; loading it fetches it to this process."""

    weights: np.ndarray | None
    future: Future

    def read(self) -> tuple[Rows, np.ndarray | None]:
        return _dense(require_held(self.future).result()), self.weights

    @property
    def completion(self) -> Callable[[np.ndarray], ArrayPartition]:
        return functools.partial(
            ArrayPartition, self.index, self.start, self.stop, weights=self.weights, expected=self.expected
        )


class DaskSource(TableSource):
    """A two-dimensional dask.array, whose row chunks are the partitions.

    Parameters
    ----------
    array : dask.array.Array; if it depends on blocks that a cluster holds, it is persisted there
    weights : (N,) row weights, optional
    names : of the columns, if they have any
    """

    def __init__(self, array: da.Array, weights: Weights = None, names: Names | None = None) -> None:
        if any(np.isnan(size) for sizes in array.chunks for size in sizes):
            raise InputError("the dask.array has chunks of unknown size; call array.compute_chunk_sizes() first.")
        super().__init__(array.shape, array.dtype, "the dask.array", weights, names)
        self.array = _brought_forward(array.rechunk({1: -1}))
        sizes = [int(size) for size in self.array.chunks[0] if size]
        self.cut = Partitioning((0, *(int(stop) for stop in np.cumsum(sizes))))

    def partition(self, index: int, start: int, stop: int, weights: np.ndarray | None) -> Partition:
        key = self._keys[index]
        block = self.array.__dask_graph__()[key]
        if isinstance(block, Future):
            return PersistedPartition(index, start, stop, weights, block)
        if isinstance(block, np.ndarray):
            return ArrayPartition(index, start, stop, block, weights)
        return DaskPartition(index, start, stop, weights, key, cull(self._optimized, key)[0])

    @cached_property
    def _keys(self) -> list[Hashable]:
        """Keys of the blocks that have rows."""
        return [row[0] for row, size in zip(self.array.__dask_keys__(), self.array.chunks[0], strict=True) if size]

    @cached_property
    def _optimized(self) -> dict[Hashable, object]:
        """The graph, optimised by Dask."""
        return dict(dask.optimize(self.array)[0].__dask_graph__())

    def prepare_for_laps(self) -> None:
        if any(isinstance(partition, DaskPartition) for partition in self.partitions):
            warnings.warn(
                "the dask.array is not persisted, so each pass computes its blocks again. Call array.persist() first "
                "if memory can hold the array, or write it with array.to_zarr(path) and give that path.",
                stacklevel=2,
            )


def mapped(
    array: da.Array, function: Callable[[Partition], np.ndarray], columns: int | None, dtype: npt.DTypeLike
) -> da.Array:
    """A lazy dask.array of the results of a function for the rows of each block.

    Parameters
    ----------
    array : (N, D)
    function : maps a partition of n rows to (n,) or (n, columns)
    columns : number of columns of the result; None for one number a row
    dtype : of the result
    """
    rows = array.rechunk({1: -1})
    apply = functools.partial(_of_block, function)
    if columns is None:
        return rows.map_blocks(apply, dtype=dtype, drop_axis=1, meta=np.empty(0, dtype))
    return rows.map_blocks(apply, dtype=dtype, chunks=(rows.chunks[0], (columns,)), meta=np.empty((0, 0), dtype))


def _of_block(
    function: Callable[[Partition], np.ndarray], block: np.ndarray, block_info: Mapping[Any, Any] | None = None
) -> np.ndarray:
    start, stop = block_info[0]["array-location"][0] if block_info else (0, len(block))
    return function(ArrayPartition(0, start, stop, block, None))


def bag_blocks(bag: db.Bag) -> Iterator[npt.ArrayLike]:
    """The items of a bag, which are blocks of rows, one partition after another."""
    held = _brought_forward(bag)
    futures = {future.key: future for future in futures_of(held)}
    for key, partition in zip(held.__dask_keys__(), held.to_delayed(), strict=True):
        yield from futures[key].result() if key in futures else partition.compute(scheduler="synchronous")


def _brought_forward(collection: Collection) -> Collection:
    """A Dask collection, persisted on the cluster that holds something it depends on; otherwise unchanged."""
    held = [require_held(future) for future in futures_of(collection)]
    return held[0].client.persist(collection) if held else collection
