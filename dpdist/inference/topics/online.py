"""Online topic models with a point estimate of the global weights: the state and the global update.

    lambda <- (1 - rho) lambda + rho (eta + D/|S| sum_{j in S} n_jw),     beta <- (1 - rho) beta + rho beta_hat

with rho_t = (tau + t)^-kappa, where beta_hat are the weights that maximise the bound of the mini-batch S scaled to D
documents. Learned hyperparameters are updated in logarithms, the natural coordinates of scales: gamma <- gamma^(1 -
rho) gamma_hat^rho, and likewise alpha and eta, with the optimal values after the update of lambda and beta
(:mod:`dpdist.inference.topics.hyperparameters`). At rate 1, a batch update, the bound never decreases. Source: Bryant &
Sudderth, Truly nonparametric online variational inference for hierarchical Dirichlet processes, NeurIPS 2012.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from dpdist.core.errors import InputError
from dpdist.core.stored import Stored
from dpdist.inference.state import Record
from dpdist.inference.topics.hyperparameters import LEARNABLE, best_values, values_of, with_values
from dpdist.inference.topics.kept import BatchDocuments
from dpdist.inference.topics.model import TopicModel, point_weights
from dpdist.inference.topics.problem import PointProblem
from dpdist.inference.topics.summary import LOG_PI, TopicSummary


@dataclass(frozen=True, eq=False)
class OnlineState:
    """The state needed for the next mini-batch.

    Parameters
    ----------
    words : (W, K) float64, lambda minus the pseudocount: expected counts, scaled to the whole corpus
    weights : (K + 1,) float64, beta, the last for all topics not in use
    step : t, number of mini-batches processed
    ids : (K,) int64, stable ids of the topics
    next_id : first unused id
    lap : pass over the corpus in progress or about to start, from 1
    visited : number of mini-batches of this pass processed
    known : topics of the documents, from which batch inference continues; None before the first pass, and online
    concentration, document_concentration, pseudocount : gamma, alpha and eta learned so far; None: the model's own
    records, seconds : of the pass in progress: every proposal judged, and wall time
    """

    words: Annotated[np.ndarray, Stored(("word", "topic"), "expected tokens of a word in a topic", name="word_count")]
    weights: Annotated[np.ndarray, Stored(("topic_or_rest",), "global weights; last: all topics not in use")]
    step: int
    ids: np.ndarray
    next_id: int
    lap: int = 1
    visited: int = 0
    known: BatchDocuments | None = None
    concentration: float | None = None
    document_concentration: float | None = None
    pseudocount: float | None = None
    records: tuple[Record, ...] = ()
    seconds: float = 0.0

    @property
    def learned(self) -> dict[str, float]:
        """The learned hyperparameters, by name."""
        return {name: value for name in LEARNABLE if (value := getattr(self, name)) is not None}

    @property
    def files(self) -> dict[str, dict[str, str]]:
        """Folder -> file name -> digest, of the files that belong to it."""
        return {} if self.known is None else self.known.files


def first_online_state(model: TopicModel, start: TopicSummary) -> OnlineState:
    """The state before the first mini-batch.

    Parameters
    ----------
    start : sums over documents under the initial topics, scaled to the whole corpus

    Raises
    ------
    InputError
        If there is no topic.
    """
    topics = len(start.entropy)
    if topics < 1:
        raise InputError("a topic model should start from one topic or more; got none.")
    weights = point_weights(model).weights(start.groups[:, LOG_PI], start.documents)
    return OnlineState(start.words.copy(), weights, 0, np.arange(topics, dtype=np.int64), topics)


def with_learned(problem: PointProblem, state: OnlineState) -> PointProblem:
    """The problem whose model has the hyperparameters learned so far."""
    return replace(problem, model=with_values(problem.model, state.learned))


def updated(problem: PointProblem, state: OnlineState, scaled: TopicSummary, rate: float) -> OnlineState:
    """The global update.

    Parameters
    ----------
    problem : with the hyperparameters learned up to `state`
    scaled : sums over the mini-batch, scaled to the whole corpus
    rate : rho; 1 for a batch update
    """
    best = point_weights(problem.model).weights(scaled.groups[:, LOG_PI], scaled.documents)
    words = (1 - rate) * state.words + rate * scaled.words
    weights = (1 - rate) * state.weights + rate * best
    values = best_values(problem.model, scaled, words, weights, problem.learn)
    before = values_of(problem.model)
    mixed = {name: before[name] ** (1 - rate) * value**rate for name, value in values.items()}
    return replace(state, words=words, weights=weights, step=state.step + 1, **mixed)
