"""How topic models are fitted: what the loop does with their documents, and with every lap's end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.inference.loop import Step, Work, first_lap, next_lap, run_steps
from dpdist.inference.state import Info, State
from dpdist.inference.topics.batch_summary import Measured, TopicBatchSummary
from dpdist.inference.topics.documents import PairSums
from dpdist.inference.topics.lap_moves import TopicTrials, heirs, take_topic_turn, wanted_documents
from dpdist.inference.topics.local_step import Known, TopicLocalStepTask, Under, visit_documents
from dpdist.inference.topics.problem import PosteriorProblem
from dpdist.inference.topics.summary import TOKENS, TopicSummary


def first_topic_state(problem: PosteriorProblem, source: Source, start: TopicSummary) -> State:
    """The state before the first lap.

    Parameters
    ----------
    start : sums over documents under the first topics, scaled to the whole corpus
    """
    topics = len(start.entropy)
    return first_lap(
        problem.schedule,
        problem.seed,
        source,
        TopicBatchSummary(Measured(TopicSummary.zeros(problem.model.vocabulary, topics), PairSums.zeros(0))),
        topics,
        start=TopicBatchSummary(Measured(start, PairSums.zeros(0))),
        proposals=(TopicTrials(),),
        sampling_probabilities=_sampling_probabilities(problem, TopicTrials(), source.shape[0]),
    )


def topic_steps(problem: PosteriorProblem, source: Source, state: State, backend: Backend) -> Iterator[Step]:
    """Run laps from `state` without end, stopping after every batch; the caller decides when to stop."""
    return run_steps(_TopicWork(problem), source, state, backend)


class _TopicWork(Work):
    def __init__(self, problem: PosteriorProblem) -> None:
        self._problem = problem
        self.schedule, self.shared, self.visit = problem.schedule, None, visit_documents

    def task(self, state: State, total: TopicBatchSummary) -> TopicLocalStepTask:
        problem, trials, other = self._problem, _trials(state), total.other
        posterior = (trials.model or problem.model).posterior
        return TopicLocalStepTask(
            own=Under(posterior(total.own.summary), trials.pairs),
            other=None if other is None else Under(posterior(other.summary), trials.other_pairs),
            effort=problem.effort,
            chance=float(state.sampling_probabilities[0]),
            seed=problem.seed,
            lap=state.lap,
        )

    def known(self, batch_summary: TopicBatchSummary, rows: Sequence[int]) -> list[Known]:
        ends = np.cumsum([0, *rows])
        own = batch_summary.own.topics
        other = None if batch_summary.other is None else batch_summary.other.topics
        return [
            Known(None if own is None else own.part(a, b), None if other is None else other.part(a, b))
            for a, b in itertools.pairwise(ends.tolist())
        ]

    def end(self, backend: Backend, last: Step, rows: float, seconds: float) -> Step:
        problem, state, exact = self._problem, last.state, last.exact
        trials = _trials(state)
        before = (trials.model or problem.model).elbo(exact.summary)
        change = np.inf if state.elbo is None else abs(before - state.elbo)
        settled = bool(change < problem.tolerance * max(exact.summary.totals[TOKENS], 1.0))
        sample = None if state.sample is None else state.sample.of(0, problem.plan.sample)[0]
        sample = None if sample is None or not sample.shape[0] else sample
        turn = take_topic_turn(problem, backend, trials, exact, sample, state.lap, state.ids, state.next_id)
        after, batch_summaries = (
            turn.component_map.after,
            tuple(turn.component_map.batch_summary(batch_summary) for batch_summary in state.batch_summaries),
        )
        start = heirs(turn.total, after, batch_summaries) if after.kind == "delete" and after.age == 0 else turn.start
        following = next_lap(
            problem.schedule,
            problem.seed,
            state,
            ids=turn.ids,
            next_id=turn.next_id,
            batch_summaries=batch_summaries,
            start=start,
            proposals=(after,),
            elbo=turn.elbo,
            quiet=settled and not turn.pending,
            sampling_probabilities=_sampling_probabilities(problem, after, rows),
        )
        total = turn.total
        info = Info(
            state.lap,
            turn.elbo,
            before,
            rows,
            len(total.entropy),
            following.ids,
            total.counts,
            turn.records,
            seconds,
            total,
        )
        return last._replace(state=following, info=info, component_map=turn.component_map)


def _trials(state: State) -> TopicTrials:
    trials = state.proposals[0]
    assert isinstance(trials, TopicTrials), "a topic model's state"
    return trials


def _sampling_probabilities(problem: PosteriorProblem, trials: TopicTrials, documents: float) -> np.ndarray:
    """The chance with which a document joins the sample of a lap, (1,)."""
    return np.array([min(1.0, 1.2 * wanted_documents(problem.plan, trials) / max(documents, 1))])
