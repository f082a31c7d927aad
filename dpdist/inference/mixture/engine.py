"""How mixtures are fitted: what the loop does with their rows, and with every lap's end.

for state, info in laps(problem, source, state, backend): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dpdist.core.errors import InputError
from dpdist.data.base import Source, rows_with_weight
from dpdist.execution.base import Backend
from dpdist.inference.loop import Step, Work, first_lap, next_lap, run_steps
from dpdist.inference.mixture.lap_moves import (
    LapMoves,
    arm,
    no_trials,
    rows_of_each,
    sampling_probabilities_of,
    take_lap_moves,
)
from dpdist.inference.mixture.local_step import BatchSummary, LocalStepTask, visit
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.state import Info, State
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
        If no split's rows fit into the sample.
    """
    components = 1 if start is None else len(start.entropy)
    columns = start.stats.shape[1] if start is not None else feature_columns(problem)
    trials = no_trials(problem.plan) if problem.schedule.moves and problem.plan.any else ()
    if trials:
        _check_sample(problem)
    blank = BatchSummary(Summary.zeros(components, columns), tuple(trial.blank(columns) for trial in trials))
    state = first_lap(
        problem.schedule,
        problem.seed,
        source,
        blank,
        components,
        start=None if start is None else BatchSummary(start, blank.trials),
        trials=trials,
        sampling_probabilities=np.zeros(components),
    )
    return _with_sampling_probabilities(problem, state, np.full(components, rows_with_weight(source) / components))


def _with_sampling_probabilities(problem: Problem, state: State, rows: np.ndarray) -> State:
    """The state with the coming lap's sampling settled, given the rows (K,) of its components."""
    if not state.trials:
        return replace(state, sampling_probabilities=np.zeros(len(state.ids)))
    sampling_probabilities = sampling_probabilities_of(
        problem.plan, state.cooldowns, state.ids, rows, state.lap, _row_bytes(problem)
    )
    return replace(state, sampling_probabilities=sampling_probabilities)


def _row_bytes(problem: Problem) -> int:
    return 8 * problem.preparation.width


def _check_sample(problem: Problem) -> None:
    """Raise :class:`InputError` if the sample cannot hold the rows of a single split."""
    plan, row = problem.plan, _row_bytes(problem)
    if plan.split and plan.sample_bytes < plan.children * row:
        raise InputError(
            f"sample_bytes should hold at least {plan.children} rows, a row taking {row} bytes; got "
            f"{plan.sample_bytes}. Give {plan.sample * row} to have {plan.sample} rows of a component."
        )


def feature_columns(problem: Problem) -> int:
    """F, the columns of the statistics."""
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
    """As :func:`laps`, stopping after every batch."""
    return run_steps(_MixtureWork(problem), source, state, backend)


class _MixtureWork(Work):
    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.schedule, self.shared, self.visit = problem.schedule, problem.preparation, visit

    def task(self, state: State, total: BatchSummary) -> LocalStepTask:
        problem = self._problem
        posterior = problem.model.posterior(total.summary, problem.precision)
        trials = arm(problem.model, posterior, total, state.trials)
        most = rows_of_each(problem.plan, int(np.count_nonzero(state.sampling_probabilities)), _row_bytes(problem))
        return LocalStepTask(posterior, trials, state.sampling_probabilities, most, problem.seed, state.lap)

    def end(self, backend: Backend, last: Step, rows: float, seconds: float) -> Step:
        return _end(self._problem, backend, last, rows, seconds)


def _end(problem: Problem, backend: Backend, last: Step, rows: float, seconds: float) -> Step:
    """The last batch's step with the lap's end."""
    state, exact = last.state, last.exact
    before = problem.model.elbo(exact.summary, state.running.summary if state.running else None)
    change = np.inf if state.elbo is None else abs(before - state.elbo)
    settled = bool(change < problem.tolerance * rows)
    if state.trials:
        turn = take_lap_moves(problem, backend, state, exact, settled)
        total = turn.component_map.change.apply(exact.summary, state.trials, exact.trials)
        following, component_map, records, seen = _turned(state, turn), turn.component_map, turn.records, turn.rows
        quiet, elbo = settled and not turn.accepted and not turn.pending, problem.model.elbo(total)
    else:
        following, component_map, records, seen = replace(state, start=None), None, (), exact.summary.counts
        total, quiet, elbo = exact.summary, settled, before
    following = next_lap(problem.schedule, problem.seed, following, elbo=elbo, quiet=quiet)
    info = Info(state.lap, elbo, before, rows, len(following.ids), following.ids, total.counts, records, seconds, total)
    return last._replace(
        state=_with_sampling_probabilities(problem, following, seen), info=info, component_map=component_map
    )


def _turned(state: State, turn: LapMoves) -> State:
    """The state with its batch summaries and trials as a lap's end made them."""
    return replace(
        state,
        ids=turn.ids,
        next_id=turn.next_id,
        batch_summaries=tuple(
            turn.component_map.batch_summary(batch_summary) for batch_summary in state.batch_summaries
        ),
        start=turn.start,
        trials=turn.component_map.after,
        cooldowns=turn.cooldowns,
    )
