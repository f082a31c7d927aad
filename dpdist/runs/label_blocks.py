"""Blocks of rows whose labels are written together: which are there of a labelling that was killed, and which lack.

Once all that is said of a block stands in its chunks, a mark beside them holds the digests of what was said, and of
the partitions that the block lies in. A labelling that goes on reads both once more for marked blocks, and predicts
anew what lacks, is damaged, or is of rows that changed since.
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

#: What describes arrays, by their names.
Arrays: TypeAlias = Mapping[str, Mapping[str, object]]
#: Rows of a block: a power of two, so that it is made of whole chunks.
BLOCK_ROWS = 2**16
#: Folder of the marks.
MARKS = "written"
#: Partitions under way at once, at least.
TOGETHER = 32


class Block(NamedTuple):
    """Rows from `start` up to `stop`."""

    start: int
    stop: int


class Layout:
    """How partitions lie in blocks.

    Parameters
    ----------
    partitions : of all rows, in order
    """

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self.partitions = partitions
        self._starts = [each.start for each in partitions]

    @cached_property
    def blocks(self) -> list[Block]:
        """All of them, in order."""
        rows = self.partitions[-1].stop
        return [Block(start, min(start + BLOCK_ROWS, rows)) for start in range(0, rows, BLOCK_ROWS)]

    def inside(self, block: Block) -> range:
        """Places of the partitions that a block lies in."""
        return range(bisect_right(self._starts, block.start) - 1, bisect_left(self._starts, block.stop))

    def all_inside(self, blocks: Sequence[Block]) -> list[int]:
        """Places of the partitions that some blocks lie in, in order."""
        return sorted({place for block in blocks for place in self.inside(block)})


def mark(where: str, block: Block, digests: Mapping[int, str], said: Mapping[str, str]) -> None:
    """Note that a block is written.

    Parameters
    ----------
    where : path or URL of the arrays
    block : of their rows
    digests : of the partitions that it lies in, by the row at which they start
    said : digests of what was written, by the name of its array
    """
    told = [[list(each) for each in sorted(digests.items())], dict(said)]
    place_of(where).replace(f"{MARKS}/{block.start:015d}", json.dumps(told).encode())


def lacking(where: str, metadata: Arrays, layout: Layout, backend: Backend) -> list[Block]:
    """The blocks that are not written, or damaged, or not of the rows as they are now.

    Parameters
    ----------
    where, metadata : path or URL of the arrays, and what describes each
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
    """What marks say, by the first row of their block."""
    place, found = place_of(where), dict[int, object]()
    for name in filter(str.isdigit, place.names(MARKS)):
        data = place.read(f"{MARKS}/{name}")
        if data is not None:
            found[int(name)] = json.loads(data)
    return found


def _digest(partition: Partition) -> str:
    return partition.digest()


def _written(where: str, metadata: Arrays, block: Block) -> dict[str, str] | None:
    """Digests of what stands in the chunks of a block, by the name of its array; None if it cannot be read."""
    try:
        found = {name: array_at(where, about, name)[block.start : block.stop] for name, about in metadata.items()}
    except Exception:  # whatever the libraries say of damage
        return None
    return {name: digest_of_values(np.asarray(values)) for name, values in found.items()}


def digest_of_values(values: np.ndarray) -> str:
    """Of what is said of some rows."""
    return digest_of(np.ascontiguousarray(values).data)
