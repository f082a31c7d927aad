"""Topic models with point estimates: first topics, passes over a corpus, and mini-batches that come one at a time.

The engine is :mod:`dpdist.inference.topics.online_engine`. Source: Bryant & Sudderth, Truly nonparametric online
variational inference for hierarchical Dirichlet processes, NeurIPS 2012.
"""

from __future__ import annotations

from typing import Any

from scipy import sparse

from dpdist.core.checks import is_number, shown
from dpdist.core.errors import InputError
from dpdist.core.threads import one_thread
from dpdist.data.arrays import ArraySource
from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.execution.serial import SerialBackend
from dpdist.inference.schedules import Batch, Stochastic
from dpdist.inference.state import Info
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.online import OnlinePlan, OnlineProblem, OnlineState, first_online_state
from dpdist.inference.topics.online_engine import partial_step
from dpdist.inference.topics.online_passes import OnlinePass, first_pass, pass_info, point_passes
from dpdist.inference.topics.prediction import predictor_of_topics
from dpdist.inference.topics.problem import TopicProblem
from dpdist.runs.fitting import Fit, Limits
from dpdist.runs.topic_fitting import first_topics, take_census
from dpdist.storage.checkpoint import Fitted
from dpdist.storage.history import History

#: Why a model of mini-batches that come one at a time has not ended.
GOES_ON = "goes on with the next mini-batch of partial_fit"


def pose_online(
    model: TopicModel, schedule: Stochastic, moves: Any, effort: Effort, seed: int, learn: tuple[str, ...] = ()
) -> OnlineProblem:
    """The problem of an online fit.

    Parameters
    ----------
    moves : OnlinePlan, or None for that of oHDP-SM

    Raises
    ------
    InputError
        If the moves are others, batches are to overlap, or hyperparameters to be learned that cannot be.
    """
    if not isinstance(moves, OnlinePlan | None):
        raise InputError(
            f"the moves of a Stochastic schedule should be an OnlinePlan; got {type(moves).__name__}. "
            "Give dpdist.OnlinePlan, or a Memoized schedule."
        )
    if schedule.lookahead:
        raise InputError("online topics take one mini-batch after the other; leave lookahead of Stochastic at 0.")
    return OnlineProblem(model, schedule, OnlinePlan() if moves is None else moves, effort, seed, learn)


def pose_batch(
    model: TopicModel,
    schedule: Batch,
    moves: Any,
    effort: Effort,
    seed: int,
    tolerance: float,
    learn: tuple[str, ...] = (),
) -> OnlineProblem:
    """The problem of batch inference with a point estimate of the global weights (bHDP).

    Parameters
    ----------
    moves : None, for there are none
    tolerance : change of the bound in nats a token below which an update counts as settled

    Raises
    ------
    InputError
        If there are moves, or hyperparameters to be learned that cannot be.
    """
    if moves is not None:
        raise InputError(
            f"topics make no moves under a Batch schedule; got {type(moves).__name__}. Leave moves out, or choose a "
            "Memoized schedule."
        )
    plan = OnlinePlan(split=False, merge=False)
    return OnlineProblem(model, schedule, plan, effort, seed, learn, tolerance)


def online_fit(problem: OnlineProblem, topics: int, source: Source, limits: Limits, backend: Backend) -> Fit:
    """A fit by passes over a corpus, online or batch, before the first: at most `topics` topics found as for memoized
    inference.

    Raises
    ------
    InputError
        If the documents have weights, are no counts, or none of them has words.
    """
    state = first_pass(problem, source, _begun(problem, topics, source, backend, 1.0))
    return Fit(problem, source, backend, state, limits, History(), run=point_passes)


def begin_partial(problem: OnlineProblem, topics: int, documents: sparse.csr_array, corpus: float) -> OnlineState:
    """The state before the first mini-batch, of topics found in that; raises as :func:`online_fit` does.

    Parameters
    ----------
    documents : (n, W) CSR counts
    corpus : D, documents of the whole corpus
    """
    scale = corpus / documents.shape[0]
    return _begun(problem, topics, ArraySource(documents), SerialBackend(), scale)


def continue_online(
    problem: OnlineProblem,
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
    info = pass_info(OnlinePass(state).after(step), step.info, len(history.laps) + 1, seen)
    return info, Fitted(info.ids, info.total, info.elbo, seen, GOES_ON)


def as_online(
    problem: TopicProblem | OnlineProblem,
    fitted: Fitted,
    schedule: Stochastic,
    plan: OnlinePlan | None,
    learn: tuple[str, ...],
) -> tuple[OnlineProblem, OnlineState]:
    """What online inference goes on from: a model of its own as it is, one of memoized or batch inference as before
    the first step; raises as :func:`pose_online` does."""
    if isinstance(problem, OnlineProblem) and isinstance(problem.schedule, Stochastic):
        return pose_online(problem.model, schedule, plan, problem.effort, problem.seed, learn), fitted.total
    predictor = predictor_of_topics(problem, fitted.total, fitted.ids)
    online = pose_online(predictor.model, schedule, plan, problem.effort, problem.seed, learn)
    next_id = int(fitted.ids.max()) + 1
    return online, OnlineState(predictor.words.copy(), predictor.weights.copy(), 0, fitted.ids.copy(), next_id)


def check_corpus(corpus: Any, documents: int) -> None:
    """Raise :class:`InputError` unless a whole corpus may have so many documents as `corpus`."""
    if not (is_number(corpus) and corpus >= documents):
        raise InputError(
            f"documents should be the number of documents in the whole corpus, {documents} of this mini-batch or more; "
            f"got {shown(corpus)}."
        )


def _begun(problem: OnlineProblem, topics: int, source: Source, backend: Backend, scale: float) -> OnlineState:
    census = take_census(source, backend, problem.seed)
    posed = TopicProblem(problem.model, problem.schedule, seed=problem.seed)
    start = backend.fetch(backend.map(first_topics, [posed], [census], [topics]))[0]
    with one_thread():
        return first_online_state(problem.model, start.scaled(scale))
