"""The loop of mixtures and memoized topics: visit every batch, end the lap, yield.

Sequential passes (:mod:`dpdist.inference.sva.sequence`) and online topics
(:mod:`dpdist.inference.topics.online_engine`), which see each row or document once, have their own loops.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.errors import PrecisionError
from dpdist.core.phases import Phase, phase
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition, Source, weight_of
from dpdist.execution.base import Backend, Ref
from dpdist.inference.sample import append_part
from dpdist.inference.schedules.base import Ledger, Schedule
from dpdist.inference.schedules.tree import Sums, SumTree
from dpdist.inference.state import Info, State


class Step(NamedTuple):
    """The state after a batch.

    Parameters
    ----------
    state : State
    info : of the lap, if the batch ended one; else None
    exact : sum over the last visits of all batches, before the lap's moves; None within a lap
    batch : the batch just visited
    batch_summary : result of this visit, before the lap's moves; None if a run keeps only a running total
    component_map : map that the lap end applied to every batch summary; None within a lap, or if there are no moves
    """

    state: State
    info: Info | None
    exact: Any
    batch: int
    batch_summary: Any
    component_map: Any = None


class Work(ABC):
    """The operations of a model that the loop uses; batch summaries are of any type that adds, scales and can be
    stored.
    """

    schedule: Schedule
    #: Sent to workers once: the argument of :attr:`visit` after the partition.
    shared: Any
    #: Visits a partition: (partition, shared, task, known) -> an additive value with `batch_summary` and `sample`.
    visit: Callable[..., Any]

    @abstractmethod
    def task(self, state: State, total: Any) -> Any:
        """What workers need for one batch in addition to its rows, under the posterior of `total`."""

    def shared_task(self, backend: Backend, state: State, total: Any) -> Ref[Any]:
        """A reference to the task, stored where workers can read it."""
        return backend.share(self.task(state, total))

    def sums(self, state: State, backend: Backend) -> Sums[Any]:
        """The sums of the batch summaries at the start of a lap, or where it is resumed."""
        return SumTree(state.batch_summaries)

    def returned(self, backend: Backend, state: State, batch: int, seen: Ref[Any]) -> Ref[Any]:
        """The part of a batch's result `seen` that returns to the coordinator: all, unless workers store some of it."""
        return seen

    def known(self, batch_summary: Any, rows: Sequence[int]) -> Sequence[Any]:
        """What the batch's last visit left for the next one, for partitions of `rows` rows each."""
        return [None] * len(rows)

    def guard(self, state: State, sums: Sums[Any]) -> float:
        """The bound of the sums, if a visit of the state may lower it or lose its precision, and is then repeated; else
        minus infinity."""
        return -math.inf

    def cautious(self, state: State) -> State:
        """The state in which no visit lowers the bound."""
        return state

    @abstractmethod
    def end(self, backend: Backend, last: Step, rows: float) -> Step:
        """The step of the last batch, completed by the lap end, except its seconds; `rows` is the data's weight."""


def batch_count(schedule: Schedule, source: Source) -> int:
    """Number of batches: as in the schedule, but at most one per partition."""
    assert schedule.batches is not None, "a run's schedule says how many"
    return min(schedule.batches, len(source.partitions))


def first_lap(schedule: Schedule, seed: int, source: Source, blank: Any, components: int, **given: Any) -> State:
    """The state before the first lap, when no batch was visited.

    Parameters
    ----------
    schedule, seed : of the run
    source : the data
    blank : batch summary of an unvisited batch
    components : initial number of components
    given : further fields of the state
    """
    batches = batch_count(schedule, source)
    ids = np.arange(components, dtype=np.int64)
    order = schedule.order(1, seed, batches)
    return State(
        lap=1, order=order, visited=0, ids=ids, next_id=components, batch_summaries=(blank,) * batches, **given
    )


def running_state(running: Any, lap: int, order: tuple[int, ...] = (), visited: int = 0) -> State:
    """The state of a run that keeps only a running total, which has the components' `ids` and the `next_id`."""
    return State(
        lap=lap,
        order=order,
        visited=visited,
        ids=running.ids,
        next_id=running.next_id,
        batch_summaries=(),
        start=None,
        proposals=(),
        sampling_probabilities=np.zeros(0),
        running=running,
    )


def next_lap(schedule: Schedule, seed: int, state: State, **changed: Any) -> State:
    """The state before the next lap, with the fields `changed` at the end of the present one."""
    order = schedule.order(state.lap + 1, seed, len(state.order))
    return replace(state, lap=state.lap + 1, order=order, visited=0, samples=(), queue=(), **changed)


def run_steps(work: Work, source: Source, state: State, backend: Backend) -> Iterator[Step]:
    """Run laps from `state` without end and yield after every batch; the caller decides when to stop."""
    ground = _lay_out(work, source, backend)
    while True:
        for step in _lap(work, ground, state, backend):
            state = step.state
            yield step


@dataclass(frozen=True, eq=False)
class _Ground:
    """The data as held by the backend.

    Parameters
    ----------
    batches : refs to the partitions of each batch
    partition_rows : number of rows of each partition, by batch
    rows : weight of the rows of each batch
    shared : argument common to all visits
    """

    batches: list[list[Ref[object]]]
    partition_rows: list[list[int]]
    rows: list[float]
    shared: Ref[object]


def _lay_out(work: Work, source: Source, backend: Backend) -> _Ground:
    count = batch_count(work.schedule, source)
    batches: list[list[Partition]] = [source.partitions[w::count] for w in range(count)]
    refs = [backend.share_each(batch) for batch in batches]
    rows = [sum(weight_of(source, part) for part in batch) for batch in batches]
    return _Ground(refs, [[p.rows for p in batch] for batch in batches], rows, backend.share(work.shared))


def _lap(work: Work, ground: _Ground, state: State, backend: Backend) -> Iterator[Step]:
    began, rows = time.perf_counter(), ground.rows
    with phase(Phase.SUMS):
        ledger = work.schedule.open(state, rows, work.sums(state, backend))
    # With look-ahead, a batch starts from the total of some batches earlier, so that workers need not wait for
    # stragglers. The number is fixed, and a state keeps the totals from which batches in progress computed their
    # posterior: a run that is resumed within a lap starts those batches again from the same totals.
    waiting = [ledger.total()] * work.schedule.lookahead if state.visited == 0 else list(state.queue)
    under_way: deque[tuple[int, Ref[Any], Any]] = deque()
    position, bound = state.visited, work.guard(state, ledger.sums)
    for total in waiting[: len(state.order) - position]:
        _launch(work, ground, state, backend, position + len(under_way), total, under_way)
    while position < len(state.order):
        batch, before, ahead = state.order[position], bound, position + len(under_way)
        total = ledger.total() if ahead < len(state.order) else None
        try:
            if ahead < len(state.order):
                _launch(work, ground, state, backend, ahead, total, under_way)
            seen = _added(backend, under_way.popleft(), ledger)
            bound = work.guard(state, ledger.sums)
        except PrecisionError:
            if before == -math.inf:
                raise
            bound = -math.inf
        if bound < before:  # without look-ahead, so this batch started from the total above
            state = work.cautious(state)
            _launch(work, ground, state, backend, position, total, under_way)
            seen = _added(backend, under_way.popleft(), ledger)
            bound = work.guard(state, ledger.sums)
        position += 1
        state = replace(
            state,
            visited=position,
            batch_summaries=ledger.sums.batch_summaries,
            samples=append_part(state.samples, seen.sample),
            queue=tuple(total for _, _, total in under_way),
            running=ledger.running(),
        )
        if position < len(state.order):
            yield Step(state, None, None, batch, seen.batch_summary)
    last = Step(state, None, ledger.sums.root, batch, seen.batch_summary)
    with one_thread(), phase(Phase.MOVES):
        end = work.end(backend, last, sum(rows))
    assert end.info is not None, "a lap ends with what is told of it"
    yield end._replace(info=end.info._replace(seconds=time.perf_counter() - began))


def _added(backend: Backend, visited: tuple[int, Ref[Any], Any], ledger: Ledger) -> Any:
    """The result of a visit, whose batch summary is added to the ledger."""
    batch, ref, _ = visited
    seen = backend.fetch([ref])[0]
    with phase(Phase.SUMS):
        ledger.fold(batch, seen.batch_summary)
    return seen


def _launch(
    work: Work,
    ground: _Ground,
    state: State,
    backend: Backend,
    position: int,
    total: Any,
    under_way: deque[tuple[int, Ref[Any], Any]],
) -> None:
    """Start the visit of the batch at `position` of the lap, under the posterior of `total`."""
    batch = state.order[position]
    with one_thread(), phase(Phase.GLOBAL_STEP):
        shared = work.shared_task(backend, state, total)
    refs = ground.batches[batch]
    known = work.known(state.batch_summaries[batch], ground.partition_rows[batch])
    with phase(Phase.LOCAL_STEP):
        seen = backend.total(work.visit, refs, [ground.shared] * len(refs), [shared] * len(refs), known)
        under_way.append((batch, work.returned(backend, state, batch, seen), total))
