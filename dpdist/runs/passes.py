"""The passes before the first lap, with stored partial results, so that a killed process loses only seconds of work.

Every pass is a sum over partitions in a fixed tree. It proceeds in blocks of partitions, each a whole branch of the
tree, so that continuing from the stored branches gives the same bits. Values computed from passes are stored too. Names
are numbered in the order of the method's requests, which depends only on data and settings. Results that took only a
few seconds are not stored; they are computed again, to the same bits.
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

#: Largest number of blocks of a pass, and least number of partitions in a block, a power of two.
BLOCKS, LEAST = 32, FAN_IN
#: Seconds of work after which results are stored, and seconds between two progress notes.
LOSS, NOTE = 10.0, 1.0


class Branches(NamedTuple):
    """The partial result of a pass.

    Parameters
    ----------
    step : partitions in a block
    partitions : number of partitions already included
    sizes : number of blocks in each branch of the tree of sums
    values : sums of the branches
    """

    step: int
    partitions: int
    sizes: tuple[int, ...]
    values: tuple[Any, ...]


class KeptPasses(Backend):
    """A backend for the preparation of a run, which stores the results of passes.

    Parameters
    ----------
    backend : does the work
    store : holds the results
    """

    def __init__(self, backend: Backend, store: PreparationStore) -> None:
        self._backend, self._store = backend, store
        self._above, self._asked = "", dict[str, int]()  # current prefix of names, and the number of requests by prefix
        self._kept = self._noted = time.monotonic()

    def gathered(self, name: str, function: Callable[..., Value], *columns: Sequence[object]) -> Value:
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
        """The name under which a result is stored; requests made meanwhile get names below it."""
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
        """The number of partitions included after each block, and the block's sum; enough blocks run at a time for all
        workers."""
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

    # All other methods delegate to the backend.

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
    """Partitions in a block: a power of two, so that a block is a branch of the tree of sums."""
    step = LEAST
    while step * BLOCKS < partitions:
        step *= 2
    return step


def digests_kept(store: PreparationStore) -> dict[int, str]:
    """Digests of the partitions that the first pass has included, by their index."""
    first = [name for name in store.told["entries"] if name.startswith("1 ") and "/" not in name]
    found: dict[int, str] = {}
    for name in first:
        for value in store.read(name).values:
            assert isinstance(value, DataSummary | Census), "the first pass is over all of the data"
            found |= value.digests
    return found
