"""The passes before the first lap, kept as they go, so that a process that is killed loses seconds of them.

Every pass is a sum over partitions in a fixed tree. It is taken in blocks of as many partitions as make a whole branch
of that tree, so that what is kept of it, the branches so far, leads to the same bits; what follows from passes is kept
under names of its own. Names are numbered in the order in which a method asks for them, which data and settings decide.
Nothing is kept that took less than some seconds: what is missing is computed again, to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from dpdist.core.trees import Joined
from dpdist.execution.base import FAN_IN, Backend, Counts, Ref, Value, added
from dpdist.inference.data_summary import DataSummary
from dpdist.runs.methods.topics import Census
from dpdist.storage.importing import is_part
from dpdist.storage.preparing import PreparationStore

#: Blocks of a pass at most, and the least partitions of one, a power of two.
BLOCKS, LEAST = 32, FAN_IN
#: Seconds of work that may be lost, blocks apart; and between two notes of where a pass is.
LOSS, NOTE = 10.0, 1.0


class Branches(NamedTuple):
    """A pass so far.

    Parameters
    ----------
    step : partitions of a block
    partitions : passed
    sizes : blocks in each branch of the tree of sums
    values : of the branches
    """

    step: int
    partitions: int
    sizes: tuple[int, ...]
    values: tuple[Any, ...]


class KeptPasses(Backend):
    """A backend on which a run is made ready, keeping what passes give.

    Parameters
    ----------
    backend : where the work is done
    store : where results are kept
    """

    def __init__(self, backend: Backend, store: PreparationStore) -> None:
        self._backend, self._store = backend, store
        self._above, self._asked = "", dict[str, int]()  # where names stand, and how many were asked for there
        self._kept = self._noted = time.monotonic()

    def gathered(self, name: str, function: Callable[..., Value], *columns: Sequence[object]) -> Value:
        """See :meth:`Backend.gathered`; block by block."""
        with self._named(name) as key:
            count = len(columns[0])
            kept: Branches = self._store.read(key) if self._store.has(key) else Branches(block_of(count), 0, (), ())
            joined: Joined[Value] = Joined(added, zip(kept.sizes, kept.values, strict=True))
            for done, part in self._blocks(kept.partitions, count, kept.step, function, columns):
                joined.add(part)
                self._note(f"{name}, {done} of {count} partitions")
                sizes, values = zip(*joined.parts, strict=True)
                self._keep(key, Branches(kept.step, done, sizes, values))
            return joined.total()

    def kept(self, name: str, compute: Callable[[], Value]) -> Value:
        """See :meth:`Backend.kept`."""
        with self._named(name) as key:
            if self._store.has(key):
                return cast(Value, self._store.read(key))
            self._note(name)
            found = compute()
            if is_part(type(found)):
                self._keep(key, found)
            return found

    @contextmanager
    def _named(self, name: str) -> Iterator[str]:
        """Under which name something is kept; what is asked for meanwhile stands below it."""
        above = self._above
        number = self._asked[above] = self._asked.get(above, 0) + 1
        self._above = f"{above}/{number} {name}".lstrip("/")
        try:
            yield self._above
        finally:
            self._above = above

    def _blocks(
        self,
        begin: int,
        count: int,
        step: int,
        function: Callable[..., Value],
        columns: Sequence[Sequence[object]],
    ) -> Iterator[tuple[int, Value]]:
        """Partitions passed with each block, and what it gives; as many blocks at a time as workers have use for."""
        starts, ahead, under_way = list(range(begin, count, step)), -(-self.threads // step), list[Ref[Value]]()
        for place, start in enumerate(starts):
            for next_start in starts[place + len(under_way) : place + 1 + ahead]:
                block = [column[next_start : next_start + step] for column in columns]
                under_way.append(self._backend.total(function, *block))
            yield min(start + step, count), self._backend.fetch([under_way.pop(0)])[0]

    def _keep(self, key: str, value: object) -> None:
        if time.monotonic() - self._kept >= LOSS:
            self._store.keep(key, value)
            self._kept = time.monotonic()

    def _note(self, words: str) -> None:
        if time.monotonic() - self._noted >= NOTE:
            self._store.tell(words)
            self._noted = time.monotonic()

    # All else is the backend's own.

    def share(self, value: Value, label: str | None = None) -> Ref[Value]:
        return self._backend.share(value, label)

    def map(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        return self._backend.map(function, *columns)

    def fetch(self, refs: Sequence[Ref[Value]]) -> list[Value]:
        return self._backend.fetch(refs)

    def total(self, function: Callable[..., Value], *columns: Sequence[object]) -> Ref[Value]:
        return self._backend.total(function, *columns)

    def reduce(self, function: Callable[..., Value], refs: Sequence[Ref[Value]], *shared: object) -> Ref[Value]:
        return self._backend.reduce(function, refs, *shared)

    @property
    def counts(self) -> Counts:
        return self._backend.counts

    @property
    def threads(self) -> int:
        return self._backend.threads


def block_of(partitions: int) -> int:
    """Partitions of a block: a power of two, so that a block is a branch of the tree of sums."""
    step = LEAST
    while step * BLOCKS < partitions:
        step *= 2
    return step


def digests_kept(store: PreparationStore) -> dict[int, str]:
    """Digests of the partitions that the first pass had seen, by their index."""
    first = [name for name in store.told["entries"] if name.startswith("1 ") and "/" not in name]
    found: dict[int, str] = {}
    for name in first:
        for value in store.read(name).values:
            assert isinstance(value, DataSummary | Census), "the first pass is over all of the data"
            found |= value.digests
    return found
