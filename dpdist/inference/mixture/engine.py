"""Fitting a mixture: how the loop processes its rows and the end of each lap.

for state, info in laps(problem, source, state, backend): ...
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dpdist.core.phases import Phase, phase
from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.base import Source, rows_with_weight
from dpdist.execution.base import Backend, Ref
from dpdist.inference.files import RunFiles
from dpdist.inference.loop import Step, Work, first_lap, next_lap, run_steps
from dpdist.inference.mixture import kept
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.candidates import owner_type
from dpdist.inference.mixture.kept import AnyBatchSummary, KeptBatchSummary, KeptVisit, keep_start, keep_visit
from dpdist.inference.mixture.kept_sums import DistantTotal, KeptSums, total_there
from dpdist.inference.mixture.lap_moves import LapMoves, arm, take_lap_moves
from dpdist.inference.mixture.local_step import LocalStepTask, Visit, visit
from dpdist.inference.mixture.momentum import Momentum, serves
from dpdist.inference.mixture.owners import AnyOwners, owners_of_partitions
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.base import Proposals
from dpdist.inference.moves.turns import parts_of
from dpdist.inference.schedules.tree import Sums
from dpdist.inference.state import Info, State
from dpdist.models.mixture import Model, Precision
from dpdist.models.sufficient_statistics import Summary

__all__ = ["Step", "first_state", "laps", "steps"]


def first_state(problem: Problem, source: Source, start: Summary | None) -> State:
    """The state before the first lap.

    Parameters
    ----------
    start : statistics of the first model, scaled to the whole data; None for one component

    Raises
    ------
    InputError
        If the rows that a move needs do not fit into the sample.
    """
    components = 1 if start is None else len(start.entropy)
    columns = start.stats.shape[1] if start is not None else feature_columns(problem)
    proposals = tuple(move.none() for move in problem.moves) if problem.schedule.moves else ()
    if proposals:
        problem.sampling.check(_least_rows(problem), _row_bytes(problem))
    blank = BatchSummary(Summary.zeros(components, columns), tuple(each.blank(columns) for each in proposals))
    state = first_lap(
        problem.schedule,
        problem.seed,
        source,
        blank,
        components,
        start=None if start is None else BatchSummary(start, blank.measured),
        proposals=proposals,
        sampling_probabilities=np.zeros(components),
    )
    rows = np.full(components, rows_with_weight(source) / components)
    return _with_sampling_probabilities(problem, state, rows, (start or blank.summary).stats)


def _with_sampling_probabilities(problem: Problem, state: State, rows: np.ndarray, stats: np.ndarray) -> State:
    """The state with the next lap's sampling probabilities, given the rows (K,) and statistics of its components."""
    wanted = np.zeros(len(state.ids), dtype=bool)
    for move, proposals in zip(problem.moves, state.proposals, strict=False):  # proposals are empty without moves
        wanted |= move.wants_rows(proposals, state.ids, state.lap)
    sampling, size, columns, least = problem.sampling, _row_bytes(problem), stats.shape[1], _least_rows(problem)
    if sampling.turns(rows[wanted], size, columns, least) > 1:
        turns = sampling.turns(rows, size, columns, least)
        cycle, turn = divmod(state.lap, turns)
        with one_thread():
            wanted &= parts_of(stats, turns, generator(problem.seed, "turns", cycle)) == turn
    found = sampling.probabilities(wanted, rows, size)
    return replace(state, sampling_probabilities=found)


def _least_rows(problem: Problem) -> int:
    """Number of rows of a component below which no move can propose anything."""
    return max((move.least_rows for move in problem.moves), default=0)


def _row_bytes(problem: Problem) -> int:
    return 8 * problem.preparation.width


def feature_columns(problem: Problem) -> int:
    """F, the number of columns of the statistics."""
    width = problem.preparation.width
    return int(problem.model.family.features(np.zeros((1, width))).shape[1])


def laps(
    problem: Problem, source: Source, state: State, backend: Backend, path: str | None = None
) -> Iterator[tuple[State, Info]]:
    """Run laps from `state` without end; the caller decides when to stop.

    Parameters
    ----------
    path : place of the run, where large batch summaries can be stored; None if there is none

    Yields
    ------
    state, info : after each lap
    """
    for step in steps(problem, source, state, backend, path):
        if step.info is not None:
            yield step.state, step.info


def steps(problem: Problem, source: Source, state: State, backend: Backend, path: str | None = None) -> Iterator[Step]:
    """Like :func:`laps`, but yields after every batch."""
    return run_steps(_MixtureWork(problem, source.shape[0], RunFiles.at(path, backend)), source, state, backend)


class _MixtureWork(Work):
    def __init__(self, problem: Problem, rows: int, files: RunFiles) -> None:
        self._problem, self._rows, self._files = problem, rows, files
        self.schedule, self.shared, self.visit = problem.schedule, problem.preparation, visit

    def task(self, state: State, total: BatchSummary) -> LocalStepTask:
        return self._draft(state).at(total)

    def shared_task(self, backend: Backend, state: State, total: BatchSummary | DistantTotal) -> Ref[LocalStepTask]:
        if isinstance(total, BatchSummary):
            return super().shared_task(backend, state, total)
        parts = [[*total.nodes]], [total.start], [total.share]
        return backend.promptly(_task_there, [self._draft(state)], [self._files], *parts)[0]

    def _draft(self, state: State) -> TaskDraft:
        problem = self._problem
        drawn = int(np.count_nonzero(state.sampling_probabilities))
        task = partial(
            LocalStepTask,
            sampling_probabilities=state.sampling_probabilities,
            most=problem.sampling.each(drawn, _row_bytes(problem)),
            seed=problem.seed,
            lap=state.lap,
            candidates=state.candidates,
            owned=problem.candidates.serve(len(state.ids)),
            files=self._files,
            keeps=self._keeps(state),
        )
        return TaskDraft(problem.model, problem.precision, state.proposals, state.momentum, task)

    def sums(self, state: State, backend: Backend) -> Sums[BatchSummary]:
        if self._keeps(state) or any(isinstance(each, KeptBatchSummary) for each in state.batch_summaries):
            return KeptSums(state.batch_summaries, self._files, backend, totals_here=self.schedule.lookahead > 0)
        return super().sums(state, backend)

    def returned(self, backend: Backend, state: State, batch: int, seen: Ref[Visit]) -> Ref[Visit] | Ref[KeptVisit]:
        if not self._keeps(state):
            return seen
        return backend.apply(keep_visit, seen, self._files, state.lap, batch)

    def _keeps(self, state: State) -> bool:
        """Whether the batch summaries of a lap are written to files."""
        return self._files.path is not None and memo_bytes(self._problem, state, self._rows) > kept.MEMO_BYTES

    def known(self, batch_summary: AnyBatchSummary, rows: Sequence[int]) -> list[AnyOwners]:
        return owners_of_partitions(batch_summary.owners, rows)

    def guard(self, state: State, sums: Sums[BatchSummary]) -> float:
        if state.momentum is None or not state.momentum.weight:
            return -np.inf
        with one_thread(), phase(Phase.GLOBAL_STEP):
            return self._problem.model.elbo(sums.root.summary)

    def cautious(self, state: State) -> State:
        return replace(state, momentum=state.momentum.stopped())

    def end(self, backend: Backend, last: Step, rows: float) -> Step:
        step = _end(self._problem, backend, last, rows)
        small = serves(memo_bytes(self._problem, step.state, self._rows))
        goes_on = step.state.proposals and not self.schedule.lookahead and small
        momentum = _momentum(self._problem, last.state, step) if goes_on else None
        step = step._replace(state=replace(step.state, momentum=momentum))
        start = step.state.start
        if start is None or not self._keeps(step.state):
            return step
        return step._replace(state=replace(step.state, start=keep_start(start, self._files, last.state.lap)))


@dataclass(frozen=True, eq=False)
class TaskDraft:
    """A task without the posterior and the armed proposals, which are computed where the total is.

    Parameters
    ----------
    model, precision, proposals, momentum : inputs of the posterior and the armed proposals
    task : makes the task from these
    """

    model: Model
    precision: Precision
    proposals: tuple[Proposals, ...]
    momentum: Momentum | None
    task: partial[LocalStepTask]

    def at(self, total: BatchSummary) -> LocalStepTask:
        """The global step: the task under the posterior of a total."""
        posterior = self.model.posterior(total.summary, self.precision)
        if self.momentum is not None:
            posterior = self.momentum.extrapolated(posterior)
        return self.task(posterior=posterior, proposals=arm(self.model, posterior, total, self.proposals))


def _task_there(
    draft: TaskDraft, files: RunFiles, nodes: Sequence[BatchSummary], start: AnyBatchSummary | None, share: float
) -> LocalStepTask:
    with one_thread():
        return draft.at(total_there(nodes, start, share, files))


def memo_bytes(problem: Problem, state: State, rows: int) -> int:
    """Bytes of all batch summaries of a lap, including the owners of `rows` rows."""
    columns, components = feature_columns(problem), len(state.ids)
    each = components + sum(len(proposals.blank(columns).stats) for proposals in state.proposals)
    owned = np.dtype(owner_type(components)).itemsize if problem.candidates.serve(components) else 0
    return 8 * each * columns * len(state.batch_summaries) + owned * rows


def _end(problem: Problem, backend: Backend, last: Step, rows: float) -> Step:
    """The step of the last batch, completed by the end of the lap."""
    state, exact = last.state, last.exact
    before = problem.model.elbo(exact.summary, state.running.summary if state.running else None)
    change = _change(state, before)
    settled = bool(change < problem.tolerance * rows)
    candidates = _candidates(problem, state)
    if state.proposals:
        moved = take_lap_moves(problem, backend, state, exact, settled, change)
        total = moved.component_map.change.apply(exact.summary, state.proposals, exact.measured)
        following, component_map, records, seen = _moved(state, moved), moved.component_map, moved.records, moved.rows
        candidates = None if candidates is None else component_map.heirs.candidates(candidates)
        changing, elbo = moved.accepted > 0 or moved.pending, problem.model.elbo(total)
    else:
        following, component_map, records, seen = replace(state, start=None), None, (), exact.summary.counts
        # The model of a stochastic run, whose bound this is, is that of its running total.
        total, changing, elbo = (state.running or exact).summary, False, before
    dense, resting = state.candidates is None, settled and not changing
    if not problem.candidates.serve(len(following.ids)) or problem.candidates.next_lap_is_dense(
        state.lap, dense, resting, changing
    ):
        candidates = None
    quiet = resting and dense and not _extrapolated(state)
    following = next_lap(problem.schedule, problem.seed, following, elbo=elbo, quiet=quiet, candidates=candidates)
    info = Info(
        state.lap, elbo, before, rows, rows, len(following.ids), following.ids, total.counts, records, 0.0, total
    )
    return last._replace(
        state=_with_sampling_probabilities(problem, following, seen, total.stats),
        info=info,
        component_map=component_map,
    )


def _change(state: State, elbo: float) -> float:
    """By how much the ELBO differs from that of the last lap end; infinity in the first lap."""
    return math.inf if state.elbo is None else abs(elbo - state.elbo)


def _extrapolated(state: State) -> bool:
    """Whether this lap's posteriors went further than coordinate ascent, so that its bound may hardly change where that
    of a plain lap would."""
    return state.momentum is not None and state.momentum.weight > 0


def _momentum(problem: Problem, state: State, step: Step) -> Momentum:
    """Momentum after the lap of `state` that `step` ended.

    It begins anew if the components have changed, or if the lap has settled, which a plain lap then confirms.
    """
    assert step.info is not None, "the step ends a lap"
    coefficients, carried = problem.model.gradient(step.info.total.stats), step.state.momentum
    settled = _change(state, step.info.elbo_before_moves) < problem.tolerance * step.info.rows
    if carried is None or settled or any(record.reason.taken for record in step.info.records):
        return Momentum.begun(coefficients)
    change = None if step.component_map is None else step.component_map.change
    return carried.after(coefficients, np.arange(len(coefficients)) if change is None else change.origins)


def _candidates(problem: Problem, state: State) -> np.ndarray | None:
    """The candidates after a lap: unchanged, or recomputed by a dense lap; None if there are none."""
    held = None if state.sample is None else state.sample.held
    return state.candidates if held is None else problem.candidates.of(held)


def _moved(state: State, moved: LapMoves) -> State:
    """The state with the batch summaries and proposals after a lap end."""
    return replace(
        state,
        ids=moved.ids,
        next_id=moved.next_id,
        batch_summaries=tuple(moved.component_map.batch_summary(each) for each in state.batch_summaries),
        start=moved.start,
        proposals=moved.component_map.after,
    )
