"""Online topic models with a point estimate of the global weights: what is fixed, the state, and the global update.

    lambda <- (1 - rho) lambda + rho (eta + D/|S| sum_{j in S} n_jw),     beta <- (1 - rho) beta + rho beta_hat

with rho_t = (tau + t)^-kappa and beta_hat the weights that maximise the bound of the mini-batch S scaled to D
documents. Hyperparameters that are learned follow in logarithms, the natural coordinates of scales: gamma <-
gamma^(1 - rho) gamma_hat^rho, and alpha and eta alike, with those best after the update of lambda and beta
(:mod:`dpdist.inference.topics.point_hyperparameters`). At rate 1, a batch update, the bound never falls. Source: Bryant
& Sudderth, Truly nonparametric online variational inference for hierarchical Dirichlet processes, NeurIPS 2012.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from dpdist.core.checks import COUNT, FLAG, SCALE, check_fields, one_of, whole
from dpdist.core.errors import InputError
from dpdist.inference.schedules import Batch, Stochastic
from dpdist.inference.topics.documents import DocumentTopics, Effort
from dpdist.inference.topics.hyperparameters import LEARNABLE, check_learnable, values_of, with_values
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.point_hyperparameters import best_values
from dpdist.inference.topics.point_model import point_weights
from dpdist.inference.topics.summary import LOG_PI, TopicSummary


@dataclass(frozen=True)
class OnlinePlan:
    """Which moves are made after each mini-batch, and how hard they are tried.

    Parameters
    ----------
    split, merge : whether to try them; neither is oHDP, both are oHDP-SM
    splits : topics that are tried to be split, at most
    merges : pairs of topics with positive covariance of theta that are tried to be made one, at most
    alike : smallest topics that are tried to be made one with the topic whose words are most like theirs, whatever
        their covariance: topics that no document uses any more have none. The paper has no such merges; 0 leaves
        them out
    lasting : whether topics made one must raise the bound also with their own counts in place of the words seen, as
        :mod:`dpdist.inference.topics.online_moves` says. Without, as in the paper, topics that few
        documents use are soon lost; with it, topics that say the same as others stay longer
    iterations : restricted iterations of a split, one or more
    smoothing : above zero, tokens. A split divides a topic's lambda, word by word, as the mini-batch's tokens are, and
        so many more that are divided as all of the topic's are. The more, the less splits follow the noise of a
        mini-batch, and the less rare words tell topics apart
    topics : K that splits do not go beyond
    restricted : "shared": documents divide the tokens of a topic between its halves, and a gain is the change of one
        bound; "free", nearer to the paper: they share out all their tokens afresh, and it is not; both as
        :mod:`dpdist.inference.topics.restricted` says
    """

    split: bool = True
    merge: bool = True
    splits: int = 10
    merges: int = 50
    alike: int = 20
    lasting: bool = True
    iterations: int = 20
    smoothing: float = 0.1
    topics: int = 1000
    restricted: Literal["shared", "free"] = "shared"

    def __post_init__(self) -> None:
        check_fields(
            self,
            " of OnlinePlan",
            **dict.fromkeys(("split", "merge", "lasting"), FLAG),
            **dict.fromkeys(("iterations", "topics"), COUNT),
            **dict.fromkeys(("splits", "merges", "alike"), whole(0)),
            smoothing=SCALE,
            restricted=one_of("shared", "free"),
        )


@dataclass(frozen=True, eq=False)
class OnlineProblem:
    """The model and how to fit it.

    Parameters
    ----------
    model : TopicModel
    schedule : Stochastic: into how many mini-batches a pass is cut, and their rates rho_t = (delay + t)^-forgetting.
        The defaults are the paper's tau = 1 and kappa = 0.5, although with kappa <= 0.5 the squares of the rates have
        no finite sum: that leaves the Robbins-Monro conditions, and the noise of mini-batches does not die out
    plan : the moves
    effort : how far documents are iterated
    seed : key of every draw
    tolerance : change of the bound, in nats a token, below which a batch update counts as settled
    learn : hyperparameters that each update sets anew, as :data:`dpdist.inference.topics.hyperparameters.LEARNABLE`
    words : (W,) the words of the documents' columns, where they are known; nothing but what is told depends on them

    Raises
    ------
    InputError
        If `learn` names none of them, or eta is to be learned over one word.
    """

    model: TopicModel
    schedule: Stochastic | Batch = field(default_factory=lambda: Stochastic(forgetting=0.5))
    plan: OnlinePlan = field(default_factory=OnlinePlan)
    effort: Effort = field(default_factory=Effort)
    seed: int = 0
    learn: tuple[str, ...] = ()
    tolerance: float = 1e-5
    words: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_learnable(self.learn, self.model.vocabulary)

    def at(self, state: OnlineState) -> OnlineProblem:
        """The problem with the hyperparameters that were learned so far as its model's."""
        learned = {name: value for name in LEARNABLE if (value := getattr(state, name)) is not None}
        return replace(self, model=with_values(self.model, learned))


@dataclass(frozen=True, eq=False)
class OnlineState:
    """All that the next mini-batch needs.

    Parameters
    ----------
    words : (W, K) float64, lambda less the pseudocount: expected counts, scaled to the whole corpus
    weights : (K + 1,) float64, beta, the last for all topics not in use
    step : t, mini-batches taken in so far
    ids : (K,) int64, stable ids of the topics
    next_id : first unused id
    lap : pass over the corpus under way or about to start, from 1
    visit : mini-batches of this pass taken in so far
    known : topics of the documents by partition, which batch inference goes on from; empty before, and online
    concentration, document_concentration, pseudocount : gamma, alpha and eta as learned so far; None: the model's own
    """

    words: np.ndarray
    weights: np.ndarray
    step: int
    ids: np.ndarray
    next_id: int
    lap: int = 1
    visit: int = 0
    known: tuple[DocumentTopics, ...] = ()
    concentration: float | None = None
    document_concentration: float | None = None
    pseudocount: float | None = None


def first_online_state(model: TopicModel, start: TopicSummary) -> OnlineState:
    """The state before the first mini-batch.

    Parameters
    ----------
    start : sums over documents under the first topics, scaled to the whole corpus

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


def updated(problem: OnlineProblem, state: OnlineState, scaled: TopicSummary, rate: float) -> OnlineState:
    """The global update.

    Parameters
    ----------
    problem : at `state`
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


def state_arrays(state: OnlineState) -> dict[str, np.ndarray]:
    """The state as plain arrays, by name."""
    joined = {
        f"known{place}_{name}": getattr(topics, name)
        for place, topics in enumerate(state.known)
        for name in ("indptr", "topics", "counts")
    }
    place = np.array([state.step, state.next_id, state.lap, state.visit, len(state.known)], dtype=np.int64)
    learned = {name: np.array(value) for name in LEARNABLE if (value := getattr(state, name)) is not None}
    return {"words": state.words, "weights": state.weights, "ids": state.ids, "place": place, **joined, **learned}


def state_from(arrays: dict[str, np.ndarray]) -> OnlineState:
    """The state that :func:`state_arrays` made arrays of."""
    step, next_id, lap, visit, partitions = arrays["place"].tolist()
    known = tuple(
        DocumentTopics(*(arrays[f"known{place}_{name}"] for name in ("indptr", "topics", "counts")))
        for place in range(partitions)
    )
    learned = {name: float(arrays[name]) for name in LEARNABLE if name in arrays}
    return OnlineState(arrays["words"], arrays["weights"], step, arrays["ids"], next_id, lap, visit, known, **learned)
