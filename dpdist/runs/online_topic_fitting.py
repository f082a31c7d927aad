"""Topic models with point estimates: first topics, passes over a corpus, and mini-batches that come one at a time.

The engine is :mod:`dpdist.inference.topics.online_engine`. Source: Bryant & Sudderth, Truly nonparametric online
variational inference for hierarchical Dirichlet processes, NeurIPS 2012.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from dpdist.core.checks import is_number, shown
from dpdist.core.errors import InputError
from dpdist.core.threads import one_thread
from dpdist.data.arrays import ArraySource
from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.execution.serial import SerialBackend
from dpdist.inference.loop import Step
from dpdist.inference.schedules import Stochastic
from dpdist.inference.state import Info, State
from dpdist.inference.topics.online import OnlineState, first_online_state
from dpdist.inference.topics.online_engine import first_point_state, lap_info, partial_step, point_steps
from dpdist.inference.topics.prediction import DocumentPredictor, predictor_of_topics
from dpdist.inference.topics.problem import PointProblem, TopicProblem
from dpdist.runs.limits import Limits
from dpdist.runs.method import Method
from dpdist.runs.specs.topics import TopicSpec
from dpdist.runs.topic_fitting import UPDATES, first_topics, take_census, topic_values
from dpdist.storage.checkpoint import Fitted
from dpdist.storage.history import History

#: Why a model of mini-batches that come one at a time has not ended.
GOES_ON = "goes on with the next mini-batch of partial_fit"


class OnlineTopics(Method[TopicSpec, PointProblem]):
    """Topic models with point estimates of their weights, by passes over a corpus, online or batch."""

    command = "topics"
    parts = "topics"
    unit = "token"
    updates = UPDATES

    def check(self, spec: TopicSpec, source: Source, limits: Limits) -> None:
        problem = spec.problem(source.shape[1])
        if isinstance(problem.schedule, Stochastic) and limits == Limits(None, None):
            raise InputError("an online fit ends with max_laps or max_time; both are None. Give one of them.")

    def begin(self, spec: TopicSpec, source: Source, backend: Backend) -> tuple[PointProblem, State]:
        problem = replace(spec.problem(source.shape[1]), words=source.names)
        return problem, first_point_state(problem, source, _begun(problem, spec.initial_topics, source, backend, 1.0))

    def steps(self, problem: PointProblem, source: Source, state: State, backend: Backend) -> Iterator[Step]:
        return point_steps(problem, source, state, backend)

    def predictor(self, problem: PointProblem, total: OnlineState, ids: np.ndarray) -> DocumentPredictor:
        return predictor_of_topics(problem, total, ids)

    def values(self, problem: PointProblem, fitted: Fitted, predictor: DocumentPredictor) -> dict[str, Any]:
        online = isinstance(problem.schedule, Stochastic)
        told = "the last mini-batch, scaled to the corpus" if online else "the corpus"
        return {"elbo_of": told, **topic_values(predictor)}

    def units(self, total: OnlineState, rows: float) -> float:
        """Tokens, as the running total expects them of the corpus."""
        return float(total.words.sum())


def begin_partial(problem: PointProblem, topics: int, documents: sparse.csr_array, corpus: float) -> OnlineState:
    """The state before the first mini-batch, of topics found in that; raises as :meth:`OnlineTopics.begin` does.

    Parameters
    ----------
    documents : (n, W) CSR counts
    corpus : D, documents of the whole corpus
    """
    scale = corpus / documents.shape[0]
    return _begun(problem, topics, ArraySource(documents), SerialBackend(), scale)


def continue_online(
    problem: PointProblem,
    documents: sparse.csr_array,
    corpus: float,
    state: OnlineState,
    seen: float,
    history: History,
) -> tuple[Info, Fitted]:
    """What is told of one more mini-batch, and the model after it.

    Parameters
    ----------
    documents : (n, W) CSR counts
    corpus : D, documents of the whole corpus
    state : before it
    seen : documents seen, with these
    history : numbers the mini-batch
    """
    step = partial_step(problem, documents, float(corpus), state)
    info = lap_info(step, len(history.laps) + 1, seen)
    return info, Fitted(info.ids, info.total, info.elbo, seen, GOES_ON)


def as_online(problem: TopicProblem[Any], fitted: Fitted, asked: PointProblem) -> tuple[PointProblem, OnlineState]:
    """What online inference goes on from: a model of its own as it is, one of memoized or batch inference as before
    the first step.

    Parameters
    ----------
    problem, fitted : the model so far
    asked : schedule, moves and what is to be learned from now on
    """
    if isinstance(problem.schedule, Stochastic):
        return replace(asked, model=problem.model, effort=problem.effort, seed=problem.seed), fitted.total
    predictor = predictor_of_topics(problem, fitted.total, fitted.ids)
    online = replace(asked, model=predictor.model, effort=problem.effort, seed=problem.seed)
    next_id = int(fitted.ids.max()) + 1
    return online, OnlineState(predictor.words.copy(), predictor.global_weights.copy(), 0, fitted.ids.copy(), next_id)


def check_corpus(corpus: Any, documents: int) -> None:
    """Raise :class:`InputError` unless a whole corpus may have so many documents as `corpus`."""
    if not (is_number(corpus) and corpus >= documents):
        raise InputError(
            f"documents should be the number of documents in the whole corpus, {documents} of this mini-batch or more; "
            f"got {shown(corpus)}."
        )


def _begun(problem: PointProblem, topics: int, source: Source, backend: Backend, scale: float) -> OnlineState:
    census = take_census(source, backend, problem.seed)
    start = backend.fetch(backend.map(first_topics, [problem], [census], [topics]))[0]
    with one_thread():
        return first_online_state(problem.model, start.scaled(scale))
