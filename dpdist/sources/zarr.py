"""Rows in a Zarr array on disk or in an object store."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import zarr

from dpdist.errors import InputError
from dpdist.families.base import Rows
from dpdist.sources.base import Cut, Partition, Source, cut_rows, require_shape, require_weights

#: Name of the array that `dpdist convert` writes its rows to inside a group.
ROWS = "rows"


@dataclass(frozen=True, eq=False)
class ZarrPartition(Partition):
    """A range of rows of a Zarr array, opened where it is loaded."""

    index: int
    start: int
    stop: int
    array: zarr.Array
    weights: np.ndarray | None

    def load(self) -> tuple[Rows, np.ndarray | None]:
        return np.asarray(self.array[self.start : self.stop]), self.weights


class ZarrSource(Source):
    """A two-dimensional Zarr array.

    Parameters
    ----------
    array : zarr.Array
    weights : (N,) row weights, optional
    label : how messages name it
    """

    def __init__(self, array: zarr.Array, weights: Any = None, label: str = "the Zarr array") -> None:
        self.array, self.label = array, label
        require_shape(array.shape, label)
        if array.dtype.kind not in "biuf":
            raise InputError(f"{label} should hold real numbers; got dtype {array.dtype}. Convert it to float.")
        self.shape = (int(array.shape[0]), int(array.shape[1]))
        self.weights = require_weights(weights, self.shape[0])

    @classmethod
    def open(cls, path: str, weights: Any = None) -> ZarrSource:
        """Open the array at `path`, or the one named ``rows`` in the group there."""
        try:
            node = zarr.open(path, mode="r")
        except (FileNotFoundError, KeyError, ValueError) as error:
            raise InputError(
                f"there is no Zarr array at {path}. Check the path, or make one with: dpdist convert FILE --out {path}"
            ) from error
        if isinstance(node, zarr.Group):
            if ROWS not in node or not isinstance(node[ROWS], zarr.Array):
                names = ", ".join(sorted(node.array_keys())) or "none"
                raise InputError(
                    f"{path} is a Zarr group without an array named '{ROWS}' (arrays in it: {names}). "
                    f"Name the array itself, as in {path}/NAME."
                )
            node = node[ROWS]
        return cls(node, weights, label=str(path))

    @cached_property
    def cut(self) -> Cut:
        """Boundaries of the partitions: whole chunks, or even parts of large ones."""
        chunk = int((self.array.shards or self.array.chunks)[0])
        return cut_rows(self.shape[0], self.shape[1] * self.array.dtype.itemsize, chunk)

    @property
    def partitions(self) -> list[Partition]:
        weights = self.weights
        return [
            ZarrPartition(i, a, b, self.array, None if weights is None else weights[a:b])
            for i, a, b in self.cut.ranges()
        ]

    def identity(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "dtype": str(self.array.dtype),
            "kind": "dense",
            "chunks": [int(c) for c in self.array.chunks],
            "cut": self.cut.digest(),
        }
