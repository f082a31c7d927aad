"""The loop: visit every wave, turn the lap, yield. The only loop there is, whatever the model or the place.

for state, info in laps(problem, source, state, backend): ...
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dpdist.backends.base import Backend, Ref
from dpdist.problem import Problem
from dpdist.sources.base import Source
from dpdist.state import Info, State
from dpdist.summary import Summary
from dpdist.threads import one_thread
from dpdist.turn import Turn, Turning, arm, no_trials, sampling_chances, take_turn
from dpdist.visit import Leaf, Orders, Visit, visit


class Step(NamedTuple):
    """The state after a wave.

    Parameters
    ----------
    state : State
    info : there when the wave ended a lap
    exact : sum over all waves' last visits, before the lap's moves
    wave : the wave just visited
    leaf : what its visit gave, before the lap's moves
    turning : what the lap's end made of every leaf; None within a lap, or if nothing moves
    """

    state: State
    info: Info | None
    exact: Leaf
    wave: int
    leaf: Leaf
    turning: Turning | None = None


@dataclass(frozen=True, eq=False)
class _Ground:
    """The data as the backend holds them: refs to partitions by wave."""

    waves: list[list[Ref]]
    rows: list[int]
    preparation: Ref


def wave_count(problem: Problem, source: Source) -> int:
    """Number of waves: as asked for, or one a partition where there are fewer."""
    return min(problem.schedule.waves, len(source.partitions))


def first_state(problem: Problem, source: Source, start: Summary | None) -> State:
    """The state before the first lap.

    Parameters
    ----------
    start : statistics of the first model, scaled to the whole data; None for one component
    """
    components = 1 if start is None else len(start.entropy)
    columns = start.stats.shape[1] if start is not None else _feature_columns(problem)
    waves = wave_count(problem, source)
    trials = no_trials(problem.plan) if problem.schedule.moves and problem.plan.any else ()
    blank = Leaf(Summary.zeros(components, columns), tuple(trial.blank(columns) for trial in trials))
    state = State(
        lap=1,
        order=problem.schedule.order(1, problem.seed, waves),
        visit=0,
        ids=np.arange(components, dtype=np.int64),
        next_id=components,
        leaves=(blank,) * waves,
        start=None if start is None else Leaf(start, blank.trials),
        trials=trials,
        chances=np.zeros(components),
    )
    return _with_chances(problem, state, np.full(components, source.shape[0] / components))


def _with_chances(problem: Problem, state: State, counts: np.ndarray) -> State:
    """The state with the coming lap's sampling settled, given the components' counts."""
    if not state.trials:
        return replace(state, chances=np.zeros(len(state.ids)))
    row_bytes = 8 * problem.preparation.width
    chances = sampling_chances(problem.plan, state.rests, state.ids, counts, state.lap, row_bytes)
    return replace(state, chances=chances)


def _feature_columns(problem: Problem) -> int:
    width = problem.preparation.width
    return int(problem.model.family.features(np.zeros((1, width))).shape[1])


def laps(problem: Problem, source: Source, state: State, backend: Backend) -> Iterator[tuple[State, Info]]:
    """Run laps from `state` without end; the caller decides when to stop.

    Yields
    ------
    state, info : after each lap
    """
    for step in steps(problem, source, state, backend):
        if step.info is not None:
            yield step.state, step.info


def steps(problem: Problem, source: Source, state: State, backend: Backend) -> Iterator[Step]:
    """As :func:`laps`, stopping after every wave."""
    ground = _lay_out(problem, source, backend)
    while True:
        for step in _lap(problem, ground, state, backend):
            state = step.state
            yield step


def _lay_out(problem: Problem, source: Source, backend: Backend) -> _Ground:
    partitions = source.partitions
    count = wave_count(problem, source)
    waves = [backend.share_each(partitions[w::count]) for w in range(count)]
    rows = [sum(p.rows for p in partitions[w::count]) for w in range(count)]
    return _Ground(waves, rows, backend.share(problem.preparation))


def _lap(problem: Problem, ground: _Ground, state: State, backend: Backend) -> Iterator[Step]:
    began = time.perf_counter()
    ledger = problem.schedule.open(state, ground.rows)
    waiting = [ledger.total()] * problem.schedule.lookahead if state.visit == 0 else list(state.queue)
    under_way: deque[tuple[int, Ref, Leaf]] = deque()
    position = state.visit
    for total in waiting[: len(state.order) - position]:
        _launch(problem, ground, state, backend, position + len(under_way), total, under_way)
    while position < len(state.order):
        ahead = position + len(under_way)
        if ahead < len(state.order):
            _launch(problem, ground, state, backend, ahead, ledger.total(), under_way)
        wave, ref, _ = under_way.popleft()
        seen: Visit = backend.fetch([ref])[0]
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
        end = _end(problem, backend, last, sum(ground.rows), time.perf_counter() - began)
    yield end


def _launch(
    problem: Problem,
    ground: _Ground,
    state: State,
    backend: Backend,
    position: int,
    total: Leaf,
    under_way: deque[tuple[int, Ref, Leaf]],
) -> None:
    """Start the visit of the wave at `position` of the lap under the posterior of `total`."""
    wave = state.order[position]
    with one_thread():
        posterior = problem.model.posterior(total.summary, problem.precision)
        trials = arm(problem.model, posterior, total, state.trials)
    orders = backend.share(Orders(posterior, trials, state.chances, problem.seed, state.lap))
    refs = ground.waves[wave]
    seen = backend.total(visit, refs, [ground.preparation] * len(refs), [orders] * len(refs))
    under_way.append((wave, seen, total))


def _end(problem: Problem, backend: Backend, last: Step, rows: int, seconds: float) -> Step:
    """The last wave's step with the lap's end."""
    state, exact = last.state, last.exact
    before = problem.model.elbo(exact.summary, state.running.summary if state.running else None)
    change = np.inf if state.elbo is None else abs(before - state.elbo)
    settled = bool(change < problem.tolerance * rows)
    if state.trials:
        turn = take_turn(problem, backend, state, exact, settled)
        total = turn.turning.change.apply(exact.summary, state.trials, exact.trials)
        following, turning, records = _turned(state, turn), turn.turning, turn.records
        quiet, elbo = settled and not turn.accepted and not turn.pending, problem.model.elbo(total)
    else:
        following, turning, records = replace(state, start=None), None, ()
        total, quiet, elbo = exact.summary, settled, before
    following = replace(
        following,
        lap=state.lap + 1,
        order=problem.schedule.order(state.lap + 1, problem.seed, len(state.order)),
        visit=0,
        sample=None,
        queue=(),
        elbo=elbo,
        quiet=quiet,
    )
    info = Info(state.lap, elbo, before, rows, len(following.ids), following.ids, total.counts, records, seconds, total)
    return last._replace(state=_with_chances(problem, following, total.counts), info=info, turning=turning)


def _turned(state: State, turn: Turn) -> State:
    """The state with its leaves and trials as a lap's end made them."""
    return replace(
        state,
        ids=turn.ids,
        next_id=turn.next_id,
        leaves=tuple(turn.turning.leaf(leaf) for leaf in state.leaves),
        start=turn.start,
        trials=turn.turning.after,
        rests=turn.rests,
    )
