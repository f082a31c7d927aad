"""The loop: visit every wave, turn the lap, yield. The only loop there is, whatever the model or the place."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.threads import one_thread
from dpdist.data.base import Partition, Source, weight_of
from dpdist.execution.base import Backend, Ref
from dpdist.inference.schedules.base import Schedule
from dpdist.inference.state import Info, State


class Step(NamedTuple):
    """The state after a wave.

    Parameters
    ----------
    state : State
    info : there when the wave ended a lap
    exact : sum over all waves' last visits, before the lap's moves
    wave : the wave just visited
    leaf : what its visit gave, before the lap's moves; None where a run keeps nothing but a running total
    turning : what the lap's end made of every leaf; None within a lap, or if nothing moves
    """

    state: State
    info: Info | None
    exact: Any
    wave: int
    leaf: Any
    turning: Any = None


class Work(ABC):
    """What the loop asks of a kind of model. Leaves are whatever adds, scales and can be stored."""

    schedule: Schedule
    #: Sent to workers once: the first argument of :attr:`visit` after the partition.
    shared: Any
    #: Visits a partition: (partition, shared, orders, known) -> what has a `leaf` and a `sample`, and adds.
    visit: Callable[..., Any]

    @abstractmethod
    def orders(self, state: State, total: Any) -> Any:
        """What workers need for one wave besides their rows, under the posterior of `total`."""

    def known(self, leaf: Any, rows: Sequence[int]) -> list[Any]:
        """What the wave's last visit left for the next, one a partition of so many `rows`."""
        return [None] * len(rows)

    @abstractmethod
    def end(self, backend: Backend, last: Step, rows: float, seconds: float) -> Step:
        """The last wave's step with the lap's end; `rows` of the data, each counting as much as its weight."""


def wave_count(schedule: Schedule, source: Source) -> int:
    """Number of waves: as asked for, or one a partition where there are fewer."""
    return min(schedule.waves, len(source.partitions))


def first_lap(schedule: Schedule, seed: int, source: Source, blank: Any, components: int, **given: Any) -> State:
    """The state before the first lap, of waves that were never visited.

    Parameters
    ----------
    schedule, seed : of the run
    source : the data
    blank : leaf of a wave not yet visited
    components : at the start
    given : what else the state holds
    """
    waves = wave_count(schedule, source)
    ids = np.arange(components, dtype=np.int64)
    order = schedule.order(1, seed, waves)
    return State(lap=1, order=order, visit=0, ids=ids, next_id=components, leaves=(blank,) * waves, **given)


def next_lap(schedule: Schedule, seed: int, state: State, **changed: Any) -> State:
    """The state before the lap that follows `state`'s, with what that lap's end `changed`."""
    order = schedule.order(state.lap + 1, seed, len(state.order))
    return replace(state, lap=state.lap + 1, order=order, visit=0, sample=None, queue=(), **changed)


def run_steps(work: Work, source: Source, state: State, backend: Backend) -> Iterator[Step]:
    """Run laps from `state` without end, stopping after every wave; the caller decides when to stop."""
    ground = _lay_out(work, source, backend)
    while True:
        for step in _lap(work, ground, state, backend):
            state = step.state
            yield step


@dataclass(frozen=True, eq=False)
class _Ground:
    """The data as the backend holds them.

    Parameters
    ----------
    waves : refs to the partitions of each
    partition_rows : their rows
    rows : of each wave, every row counting as much as its weight
    shared : what all visits need
    """

    waves: list[list[Ref]]
    partition_rows: list[list[int]]
    rows: list[float]
    shared: Ref


def _lay_out(work: Work, source: Source, backend: Backend) -> _Ground:
    count = wave_count(work.schedule, source)
    waves: list[list[Partition]] = [source.partitions[w::count] for w in range(count)]
    refs = [backend.share_each(wave) for wave in waves]
    rows = [sum(weight_of(source, part) for part in wave) for wave in waves]
    return _Ground(refs, [[p.rows for p in wave] for wave in waves], rows, backend.share(work.shared))


def _lap(work: Work, ground: _Ground, state: State, backend: Backend) -> Iterator[Step]:
    began, rows = time.perf_counter(), ground.rows
    ledger = work.schedule.open(state, rows)
    waiting = [ledger.total()] * work.schedule.lookahead if state.visit == 0 else list(state.queue)
    under_way: deque[tuple[int, Ref, Any]] = deque()
    position = state.visit
    for total in waiting[: len(state.order) - position]:
        _launch(work, ground, state, backend, position + len(under_way), total, under_way)
    while position < len(state.order):
        ahead = position + len(under_way)
        if ahead < len(state.order):
            _launch(work, ground, state, backend, ahead, ledger.total(), under_way)
        wave, ref, _ = under_way.popleft()
        seen = backend.fetch([ref])[0]
        del ref
        ledger.fold(wave, seen.leaf)
        position += 1
        state = replace(
            state,
            visit=position,
            leaves=ledger.leaves(),
            sample=seen.sample if state.sample is None else state.sample + seen.sample,
            queue=tuple(total for _, _, total in under_way),
            running=ledger.running(),
        )
        if position < len(state.order):
            yield Step(state, None, ledger.exact(), wave, seen.leaf)
    last = Step(state, None, ledger.exact(), wave, seen.leaf)
    with one_thread():
        end = work.end(backend, last, sum(rows), time.perf_counter() - began)
    yield end


def _launch(
    work: Work,
    ground: _Ground,
    state: State,
    backend: Backend,
    position: int,
    total: Any,
    under_way: deque[tuple[int, Ref, Any]],
) -> None:
    """Start the visit of the wave at `position` of the lap under the posterior of `total`."""
    wave = state.order[position]
    with one_thread():
        orders = backend.share(work.orders(state, total))
    refs = ground.waves[wave]
    known = work.known(state.leaves[wave], ground.partition_rows[wave])
    seen = backend.total(work.visit, refs, [ground.shared] * len(refs), [orders] * len(refs), known)
    under_way.append((wave, seen, total))
