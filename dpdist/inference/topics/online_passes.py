"""Online and batch inference as the steps of a fit: mini-batches, joined to passes over the corpus told as laps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.inference.loop import Step, batch_count
from dpdist.inference.schedules import Batch
from dpdist.inference.state import Info, Record, State
from dpdist.inference.topics.online import OnlineState
from dpdist.inference.topics.online_engine import OnlineInfo, OnlineStep, batch_steps, online_steps
from dpdist.inference.topics.problem import PointProblem


@dataclass(frozen=True, eq=False)
class OnlinePass:
    """Where a fit stands between two mini-batches, or batch updates.

    Parameters
    ----------
    state : the model, and its place in the corpus
    records : every proposal judged in this pass so far
    seconds : that this pass took so far
    """

    state: OnlineState
    records: tuple[Record, ...] = ()
    seconds: float = 0.0

    @property
    def layout(self) -> tuple[int, ...]:
        """Shape of what is stored of it."""
        return self.state.words.shape

    @property
    def nbytes(self) -> int:
        """Size in bytes, of its largest part."""
        return self.state.words.nbytes

    def after(self, step: OnlineStep) -> OnlinePass:
        """The same after one more mini-batch."""
        info = step.info
        return OnlinePass(step.state, self.records + info.records, self.seconds + info.seconds)


def first_pass(problem: PointProblem, source: Source, start: OnlineState) -> State:
    """The state of a fit before its first mini-batch."""
    return _standing(problem, source, OnlinePass(start))


def point_passes(problem: PointProblem, source: Source, state: State, backend: Backend) -> Iterator[Step]:
    """Run passes from `state` without end, online or batch as the schedule is; the caller decides when to stop.

    There are no leaves: all that a fit goes on from is the running total, an :class:`OnlinePass`.
    """
    run = _batch_passes if isinstance(problem.schedule, Batch) else _online_passes
    return run(problem, source, state, backend)


def _batch_passes(problem: PointProblem, source: Source, state: State, backend: Backend) -> Iterator[Step]:
    """Batch updates, each of which is a lap of one batch."""
    for step in batch_steps(problem, source, state.running.state, backend):
        told = OnlinePass(replace(step.state, known=()), seconds=step.info.seconds)
        info = pass_info(told, step.info, step.info.lap, float(source.shape[0]))
        change = np.inf if state.elbo is None else abs(info.elbo - state.elbo)
        quiet = bool(change < problem.tolerance * max(info.counts.sum(), 1.0))
        state = replace(_standing(problem, source, OnlinePass(step.state)), elbo=info.elbo, quiet=quiet)
        yield Step(state, info, None, 0, None)


def _online_passes(problem: PointProblem, source: Source, state: State, backend: Backend) -> Iterator[Step]:
    """Mini-batches, each of which is a batch; each pass is a lap."""
    under_way: OnlinePass = state.running
    batch = state.visit
    for step in online_steps(problem, source, under_way.state, backend):
        under_way, info = under_way.after(step), None
        if not step.state.visit:
            info = pass_info(under_way, step.info, step.info.lap, float(source.shape[0]))
            under_way = OnlinePass(step.state)
        yield Step(_standing(problem, source, under_way), info, None, batch, None)
        batch = step.state.visit


def pass_info(passed: OnlinePass, last: OnlineInfo, lap: int, rows: float) -> Info:
    """Mini-batches as one lap; online, the bound is that of the `last` one, scaled to the corpus.

    Parameters
    ----------
    passed : the mini-batches
    last : what was told of the last one
    lap : its number
    rows : documents
    """
    state = passed.state
    return Info(
        lap=lap,
        elbo=last.elbo,
        elbo_before_moves=last.elbo,
        rows=rows,
        n_components=len(state.ids),
        ids=state.ids,
        counts=state.words.sum(axis=0),
        records=passed.records,
        seconds=passed.seconds,
        total=state,
    )


def _standing(problem: PointProblem, source: Source, under_way: OnlinePass) -> State:
    """As the state of a fit; mini-batches are numbered in the order in which a pass takes them."""
    state = under_way.state
    return State(
        lap=state.lap,
        order=tuple(range(batch_count(problem.schedule, source))),
        visit=state.visit,
        ids=state.ids,
        next_id=state.next_id,
        batch_summaries=(),
        start=None,
        trials=(),
        sampling_probabilities=np.zeros(0),
        running=under_way,
    )
