"""Fitting memoized topic models: how the loop processes documents and the end of each lap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.inference.loop import Step, Work, first_lap, next_lap, run_steps
from dpdist.inference.state import Info, State
from dpdist.inference.topics.batch_summary import Measured, TopicBatchSummary
from dpdist.inference.topics.documents import PairSums
from dpdist.inference.topics.kept import BatchDocuments, DocumentFiles, tokens_beside
from dpdist.inference.topics.lap_moves import TopicLapMoves, take_topic_moves, warm_start_of_removal
from dpdist.inference.topics.local_step import TopicLocalStepTask, TopicSet, topic_local_step
from dpdist.inference.topics.problem import PosteriorProblem
from dpdist.inference.topics.seeking import wanted_documents
from dpdist.inference.topics.summary import TOKENS, TopicSummary
from dpdist.inference.topics.trials import TopicTrials
from dpdist.models.families.base import Rows


def first_topic_state(problem: PosteriorProblem, source: Source, start: TopicSummary) -> State:
    """The state before the first lap; `start` holds sums over documents under the initial topics, scaled to the whole
    corpus."""
    topics = len(start.entropy)
    return first_lap(
        problem.schedule,
        problem.seed,
        source,
        TopicBatchSummary(Measured(TopicSummary.zeros(problem.model.vocabulary, topics), PairSums.zeros(0))),
        topics,
        start=TopicBatchSummary(Measured(start, PairSums.zeros(0))),
        proposals=(TopicTrials(),),
        sampling_probabilities=_sampling_probabilities(problem, TopicTrials(), topics, source.shape[0]),
    )


def topic_steps(
    problem: PosteriorProblem, source: Source, state: State, backend: Backend, path: str | None = None
) -> Iterator[Step]:
    """Run laps from `state` without end and yield after every batch; the caller decides when to stop. Documents' topics
    can be stored at the `path` of the run, if there is one."""
    return run_steps(_TopicWork(problem, DocumentFiles.at(path, backend)), source, state, backend)


class _TopicWork(Work):
    def __init__(self, problem: PosteriorProblem, files: DocumentFiles) -> None:
        self._problem, self._files = problem, files
        self.schedule, self.shared, self.visit = problem.schedule, None, topic_local_step

    def task(self, state: State, total: TopicBatchSummary) -> TopicLocalStepTask:
        problem, trials, candidate = self._problem, _trials(state), total.candidate
        current = trials.model or problem.model
        # Fresh starts of documents double the cost. If there are candidates, only these use fresh starts, in their
        # first lap; otherwise documents continue from their earlier topics.
        going_on = replace(problem.effort, fresh=False)
        effort = problem.effort if candidate is None else going_on
        tried = None
        if candidate is not None:
            posterior = (trials.candidate_model or current).posterior(candidate.summary)
            tried = TopicSet(posterior, trials.candidate_pairs, going_on if trials.age else problem.effort)
        return TopicLocalStepTask(
            current=TopicSet(current.posterior(total.summary), trials.pairs, effort),
            candidate=tried,
            chance=float(state.sampling_probabilities[0]),
            seed=problem.seed,
            lap=state.lap,
            files=self._files,
        )

    def known(self, batch_summary: TopicBatchSummary, rows: Sequence[int]) -> Sequence[BatchDocuments | None]:
        return [None] * len(rows) if batch_summary.documents is None else batch_summary.documents.starts()

    def end(self, backend: Backend, last: Step, rows: float) -> Step:
        problem, state, exact = self._problem, last.state, last.exact
        trials = _trials(state)
        sample = _sample(problem, state)
        moves = take_topic_moves(problem, backend, trials, exact, sample, state.lap, state.ids, state.next_id)
        change = np.inf if state.elbo is None else abs(moves.elbo_before - state.elbo)
        settled = bool(change < problem.tolerance * max(exact.summary.totals[TOKENS], 1.0))
        batch_summaries = tuple(map(moves.component_map.batch_summary, state.batch_summaries))
        after, start = moves.component_map.after, self._warm_start(backend, moves, batch_summaries)
        following = next_lap(
            problem.schedule,
            problem.seed,
            state,
            ids=moves.ids,
            next_id=moves.next_id,
            batch_summaries=batch_summaries,
            start=start,
            proposals=(after,),
            elbo=moves.elbo,
            quiet=settled and not moves.pending,
            sampling_probabilities=_sampling_probabilities(problem, after, len(moves.ids), rows),
        )
        total = moves.total
        info = Info(
            state.lap,
            moves.elbo,
            moves.elbo_before,
            rows,
            float(total.totals[TOKENS]),
            len(total.entropy),
            following.ids,
            total.counts,
            moves.records,
            0.0,
            total,
        )
        return last._replace(state=following, info=info, component_map=moves.component_map)

    def _warm_start(
        self, backend: Backend, moves: TopicLapMoves, batch_summaries: Sequence[TopicBatchSummary]
    ) -> TopicBatchSummary | None:
        """Sums in place of documents not yet fitted under the next lap's candidates; None if none are needed."""
        after = moves.component_map.after
        if after.kind != "delete" or after.age > 0:
            return moves.warm_start
        known = [each.documents for each in batch_summaries if each.documents is not None]
        beside = tokens_beside(self._files, known, after.removed, len(moves.ids), backend)
        return warm_start_of_removal(moves.total, after, beside)


def _sample(problem: PosteriorProblem, state: State) -> Rows | None:
    """The documents drawn in a lap; None if there are none."""
    drawn = None if state.sample is None else state.sample.of(0, problem.plan.sample)[0]
    return None if drawn is None or not drawn.shape[0] else drawn


def _trials(state: State) -> TopicTrials:
    trials = state.proposals[0]
    assert isinstance(trials, TopicTrials), "a topic model's state"
    return trials


def _sampling_probabilities(
    problem: PosteriorProblem, trials: TopicTrials, topics: int, documents: float
) -> np.ndarray:
    """The probability with which a document joins the sample of a lap, (1,)."""
    wanted = wanted_documents(problem.plan, trials, topics)
    return np.array([min(1.0, 1.2 * wanted / max(documents, 1))])
