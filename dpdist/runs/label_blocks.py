"""Blocks of rows whose labels are written together, and which of them an interrupted labelling still lacks.

When all values of a block are written, a mark beside them stores the digests of these values and of the partitions that
overlap the block. A resumed labelling verifies both digests for marked blocks, and predicts again the blocks that are
missing, damaged, or whose rows have changed.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from dpdist.core.digests import digest_of
from dpdist.core.places import place_of
from dpdist.data.base import Partition
from dpdist.data.filling import array_at
from dpdist.execution import Backend

#: Zarr metadata of arrays, by name.
Arrays: TypeAlias = Mapping[str, Mapping[str, object]]
#: Rows of a block: a power of two, so that it consists of whole chunks.
BLOCK_ROWS = 2**16
#: Folder of the marks.
MARKS = "written"
#: Least number of partitions processed at a time.
TOGETHER = 32


class Block(NamedTuple):
    """Rows from `start` up to `stop`."""

    start: int
    stop: int


class Layout:
    """How partitions overlap blocks.

    Parameters
    ----------
    partitions : of all rows, in order
    """

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self.partitions = partitions
        self._starts = [each.start for each in partitions]

    @cached_property
    def blocks(self) -> list[Block]:
        """All blocks, in order."""
        rows = self.partitions[-1].stop
        return [Block(start, min(start + BLOCK_ROWS, rows)) for start in range(0, rows, BLOCK_ROWS)]

    def inside(self, block: Block) -> range:
        """Positions of the partitions that overlap a block."""
        return range(bisect_right(self._starts, block.start) - 1, bisect_left(self._starts, block.stop))

    def all_inside(self, blocks: Sequence[Block]) -> list[int]:
        """Positions of the partitions that overlap any of some blocks, in order."""
        return sorted({place for block in blocks for place in self.inside(block)})


def mark(where: str, block: Block, digests: Mapping[int, str], said: Mapping[str, str]) -> None:
    """Record that a block is written.

    Parameters
    ----------
    where : path or URL of the arrays
    block : the rows that were written
    digests : of the partitions that overlap it, by the row at which they start
    said : digests of the written values, by array name
    """
    told = [[list(each) for each in sorted(digests.items())], dict(said)]
    place_of(where).replace(f"{MARKS}/{block.start:015d}", json.dumps(told).encode())


def lacking(where: str, metadata: Arrays, layout: Layout, backend: Backend) -> list[Block]:
    """The blocks that are not written, are damaged, or do not match the current rows.

    Parameters
    ----------
    where, metadata : path or URL of the arrays, and the Zarr metadata of each
    layout : of the rows
    """
    marks = _marks(where)
    marked = [block for block in layout.blocks if block.start in marks]
    there = backend.fetch(backend.map(_written, [where] * len(marked), [metadata] * len(marked), marked))
    said = {block.start: found for block, found in zip(marked, there, strict=True)}
    places = layout.all_inside(marked)
    digests: dict[int, str] = {}
    together = backend.at_a_time(TOGETHER)
    for first in range(0, len(places), together):
        some = places[first : first + together]
        refs = backend.map(_digest, backend.share_each([layout.partitions[place] for place in some]))
        digests |= zip(some, backend.fetch(refs), strict=True)

    def of(block: Block) -> list[object]:
        rows = [[layout.partitions[place].start, digests[place]] for place in layout.inside(block)]
        return [rows, said[block.start]]

    return [block for block in layout.blocks if block.start not in marks or of(block) != marks[block.start]]


def _marks(where: str) -> dict[int, object]:
    """The contents of all marks, by the first row of their block."""
    place, found = place_of(where), dict[int, object]()
    for name in filter(str.isdigit, place.names(MARKS)):
        data = place.read(f"{MARKS}/{name}")
        if data is not None:
            found[int(name)] = json.loads(data)
    return found


def _digest(partition: Partition) -> str:
    return partition.digest()


def _written(where: str, metadata: Arrays, block: Block) -> dict[str, str] | None:
    """Digests of the stored values of a block, by array name; None if they cannot be read."""
    try:
        found = {name: array_at(where, about, name)[block.start : block.stop] for name, about in metadata.items()}
    except Exception:  # damage can raise any error of the libraries
        return None
    return {name: digest_of_values(np.asarray(values)) for name, values in found.items()}


def digest_of_values(values: np.ndarray) -> str:
    """Digest of the values of some rows."""
    return digest_of(np.ascontiguousarray(values).data)
