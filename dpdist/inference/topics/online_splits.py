"""Splits of topics, judged on a mini-batch.

A split of topic k starts with the past in one half and the mini-batch in the other,

    lambda' = (1 - rho) lambda_k,  lambda'' = rho lambda_hat_k,  beta' = (1 - rho) beta_k,  beta'' = rho beta_hat_k,

followed by restricted iterations (:mod:`~dpdist.inference.topics.restricted`) in which all other topics are fixed and
beta' + beta'' = beta_k. The past of a topic stays in its halves, and both bounds compared are those of the mini-batch,
scaled to the corpus, under the same phi of other topics. Documents have theta = alpha beta + n under the present
weights; then k enters the bound only through its words, its entropy, log p(beta) and the documents' log Gamma(theta_jk)
- log Gamma(alpha beta_k).

Source: Bryant & Sudderth (NeurIPS 2012), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.special import expit, psi

from dpdist.execution.base import Backend, Ref
from dpdist.inference.moves.accept import Standing, Verdict, accepted, judge
from dpdist.inference.topics.confidence import doubts, split_contributions, split_logs
from dpdist.inference.topics.model import TopicModel, TopicPosterior, point_posterior, point_weights, word_values
from dpdist.inference.topics.online import OnlineState
from dpdist.inference.topics.restricted import Halves, Split, divide_tokens, divided_words
from dpdist.inference.topics.summary import TopicSummary
from dpdist.kernels.sequential_counts import Sparse

#: Number of tokens of a mini-batch that a topic must explain to be split.
_LEAST = 2.0
#: Search range of the log odds of two weights, and number of bisections.
_ODDS, _BISECTIONS = 15.0, 40


def choose_topics(counts: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """At most `most` topics to split, drawn in proportion to their tokens (K,) in the mini-batch."""
    able = np.flatnonzero(counts >= _LEAST)
    sampling_probabilities = counts[able] / counts[able].sum() if len(able) else None
    return np.sort(rng.choice(able, size=min(most, len(able)), replace=False, p=sampling_probabilities))


def begin_splits(
    model: TopicModel, before: OnlineState, after: OnlineState, scaled: TopicSummary, rate: float, topics: np.ndarray
) -> list[Split]:
    """Initial halves: the past, and the mini-batch.

    Parameters
    ----------
    before, after : states before and after the global update, with the same topics
    scaled : sums over the mini-batch, scaled to the corpus
    rate : rho < 1
    """
    eta, found = model.pseudocount, list[Split]()
    for k in topics.tolist():
        past = (1 - rate) * (eta + before.words[:, k]) - eta
        batch = rate * (eta + scaled.words[:, k]) - eta
        own = (1 - rate) * before.weights[k]
        found.append(Split(k, np.stack([past, batch], axis=1), np.array([own, after.weights[k] - own])))
    return found


@dataclass(frozen=True, eq=False)
class Restriction:
    """Restricted iterations of splits on a mini-batch.

    Parameters
    ----------
    model, state : the topics after the global update
    smoothing : additional tokens of each word, as in :func:`~dpdist.inference.topics.restricted.divided_words`
    backend, tokens : a ref for each partition of the mini-batch, to the tokens of each split topic
    scale, documents : D/|S| and D
    """

    model: TopicModel
    state: OnlineState
    smoothing: float
    backend: Backend
    tokens: Sequence[Ref[tuple[Sparse, ...]]]
    scale: float
    documents: float

    def refined(self, splits: list[Split], iterations: int, errors: float | None = None) -> list[Split]:
        """All splits after the iterations, at least one, with their gains and, given `errors`, their doubts."""
        for _ in range(iterations - 1):
            halves = self._halves(splits, measured=False)
            splits = _reweighted(self.model, self._updated(splits, halves), halves, self.documents)
        halves = self._halves(splits, measured=True)
        refined = self._measured(self._updated(splits, halves), halves)
        if errors is None:
            return refined
        rows, posteriors = len(self.tokens), self.backend.share(self._posteriors(splits))
        logs = self.backend.share(split_logs(self.model, self.state.words, refined))
        columns = (self.tokens, [posteriors] * rows, [logs] * rows)
        seen = self.documents / self.scale
        found = doubts(errors, self.backend, seen, self.documents, split_contributions, *columns)
        return [replace(split, doubt=float(doubt)) for split, doubt in zip(refined, found, strict=True)]

    def _posteriors(self, splits: list[Split]) -> tuple[TopicPosterior, ...]:
        return tuple(point_posterior(self.model, split.words, split.weights) for split in splits)

    def _halves(self, splits: list[Split], measured: bool) -> Halves:
        """The local step on the mini-batch, scaled to the corpus."""
        rows, posteriors = len(self.tokens), self.backend.share(self._posteriors(splits))
        total = self.backend.total(divide_tokens, self.tokens, [posteriors] * rows, [measured] * rows)
        found: Halves = self.backend.fetch([total])[0]
        return found.scaled(self.scale)

    def _updated(self, splits: list[Split], halves: Halves) -> list[Split]:
        """The splits with lambda of their halves updated."""
        words, pairs = self.state.words, zip(splits, halves.words, strict=True)
        return [replace(split, words=divided_words(words, split, seen, self.smoothing)) for split, seen in pairs]

    def _measured(self, splits: list[Split], halves: Halves) -> list[Split]:
        """The splits with their gains."""
        found = []
        for split, seen, totals in zip(splits, halves.words, halves.totals, strict=True):
            whole = self.state.words[:, [split.topic]]
            before = word_values(self.model, whole, seen.sum(axis=1, keepdims=True))[0]
            gain = word_values(self.model, split.words, seen).sum() - before + totals[0]
            found.append(replace(split, gain=float(gain)))
        return found


def _reweighted(model: TopicModel, splits: list[Split], halves: Halves, documents: float) -> list[Split]:
    """The splits with the weights of their halves that maximise the bound without log p(beta)."""
    alpha = model.allocation.document_concentration
    prior = alpha * np.array([split.weights for split in splits])
    log_theta = halves.log_theta + (documents - halves.totals[:, 1:]) * psi(prior)
    pull, whole = (log_theta[:, 0] - log_theta[:, 1]) / documents, prior.sum(axis=1)
    least, most = np.full(len(splits), -_ODDS), np.full(len(splits), _ODDS)
    for _ in range(_BISECTIONS):  # log odds for which psi(alpha beta') - psi(alpha beta'') equals the pull
        odds = (least + most) / 2
        first, second = whole * expit(odds), whole * expit(-odds)
        below = psi(first) - psi(second) < pull
        least, most = np.where(below, odds, least), np.where(below, most, odds)
    weights = np.stack([first, second], axis=1) / alpha
    return [replace(split, weights=row) for split, row in zip(splits, weights, strict=True)]


def with_split(weights: np.ndarray, topic: int, halves: np.ndarray) -> np.ndarray:
    """Global weights (K + 2,) with a topic's first half in its place, and the second half after all topics."""
    found = np.concatenate([weights[:-1], halves[1:], weights[-1:]])
    found[topic] = halves[0]
    return found


def judge_splits(
    model: TopicModel, weights: np.ndarray, splits: Sequence[Split], most: int, noise: float
) -> tuple[list[int], list[Verdict]]:
    """Choose splits greedily, best first, each judged with the weights after those chosen before it.

    Parameters
    ----------
    weights : (K + 1,) global weights
    most : largest number of splits to choose
    noise : nats that a gain must exceed

    Returns
    -------
    chosen : indices into `splits`, in the order in which their second halves follow the topics
    judged : every split, by its index in `splits`
    """
    gains, doubts = (np.array([getattr(split, name) for split in splits]) for name in ("gain", "doubt"))
    judged = judge(_Splits(model, splits, most, noise, weights), gains, doubts=doubts)
    return accepted(judged), judged


@dataclass(frozen=True, eq=False)
class _Splits(Standing):
    """Global weights (K + 1,) after some splits; `chosen` is their number."""

    model: TopicModel
    splits: Sequence[Split]
    most: int
    nats: float
    weights: np.ndarray
    chosen: int = 0

    def gain(self, proposal: int) -> float:
        density = point_weights(self.model).log_density
        return self.splits[proposal].gain + density(self._with(proposal)) - density(self.weights)

    def threshold(self, proposal: int) -> float:
        return self.nats

    def too_many_with(self, proposal: int) -> bool:
        return self.chosen >= self.most

    def after(self, proposal: int) -> Self:
        return replace(self, weights=self._with(proposal), chosen=self.chosen + 1)

    def _with(self, proposal: int) -> np.ndarray:
        split = self.splits[proposal]
        return with_split(self.weights, split.topic, split.weights)


def apply_split(state: OnlineState, split: Split) -> OnlineState:
    """The state with a topic split: the first half keeps its id, the second half gets a new id and comes last."""
    words = np.concatenate([state.words, split.words[:, 1:]], axis=1)
    words[:, split.topic] = split.words[:, 0]
    weights = with_split(state.weights, split.topic, split.weights)
    ids = np.append(state.ids, state.next_id)
    return replace(state, words=words, weights=weights, ids=ids, next_id=state.next_id + 1)
