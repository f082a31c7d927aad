"""Deletes of small topics, judged on a mini-batch.

A topic that mixes what other topics separate is similar to none of them, so no merge removes it. Its documents are
refitted without it, and its weight is added to that of topics not in use, which leaves the bound of all other documents
unchanged. With L the change of the bound of its documents, scaled to the corpus, and C_k the cost of q(phi_k) in nats,
it may be deleted if

    L max(1, T_k / S_k) + C_k + log p(beta') - log p(beta) > 0.

T_k is the number of its own tokens, which include earlier mini-batches, and S_k that of the mini-batch: documents not
seen now lose as much per token as those seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy import sparse

from dpdist.data.base import Partition
from dpdist.inference.moves.accept import Standing, Verdict, accepted, judge
from dpdist.inference.topics.batch_summary import Measured
from dpdist.inference.topics.documents import NO_PAIRS, DocumentTopics, Effort, local_step
from dpdist.inference.topics.local_step import documents_of
from dpdist.inference.topics.model import TopicModel, TopicPosterior, point_elbo, point_weights, word_values
from dpdist.inference.topics.online import OnlineState
from dpdist.inference.topics.summary import TopicSummary, without_topics
from dpdist.inference.topics.trials import Merging

#: A posterior, and the documents' topics that are updated under it.
Start = tuple[TopicPosterior, DocumentTopics]
#: Smallest number of tokens of a mini-batch that a topic must explain to be tried, and upper limit as a share of an
#: average topic's tokens.
_LEAST, _SMALL = 2.0, 0.75


@dataclass(frozen=True, eq=False)
class Without:
    """Documents that use a topic: their sums under all topics, and without this topic; adds over documents."""

    before: TopicSummary
    after: TopicSummary

    def __add__(self, other: Without) -> Without:
        return Without(self.before + other.before, self.after + other.after)


def choose_leftovers(counts: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """At most `most` topics to try to delete, among those with few of the tokens (K,) of the mini-batch."""
    able = np.flatnonzero((counts >= _LEAST) & (counts < _SMALL * counts.mean()))
    return np.sort(rng.choice(able, size=min(most, len(able)), replace=False))


def fit_without(
    partition: Partition,
    measured: Measured,
    posterior: TopicPosterior,
    merging: Merging,
    topics: np.ndarray,
    effort: Effort,
) -> list[Without]:
    """A partition's documents refitted without each of `topics` (C,); `merging` is applied to their topics first."""
    afresh, found = replace(effort, fresh=True), list[Without]()
    for documents, *starts in with_and_without(partition, measured, posterior, merging, topics):
        found.append(Without(*(local_step(one, documents, known, NO_PAIRS, afresh)[0] for one, known in starts)))
    return found


def with_and_without(
    partition: Partition, measured: Measured, posterior: TopicPosterior, merging: Merging, topics: np.ndarray
) -> Iterator[tuple[sparse.csr_array, Start, Start]]:
    """For each of `topics`, the documents that use it, and the starts of their fits with and without it."""
    documents, known = documents_of(partition), merging.apply(measured, 0).topics
    assert known is not None, "documents of a partition are known"
    used = known.matrix(len(posterior.prior) - 1)
    for k in topics.tolist():
        own, kept = np.flatnonzero(used[:, [k]].toarray().ravel()), np.arange(used.shape[1]) != k
        rest = np.append(posterior.prior[:-1][kept], posterior.prior[[k, -1]].sum())
        weights = np.ascontiguousarray(posterior.weights[:, kept])
        weights[weights.max(axis=1, initial=0.0) == 0.0] = 1.0  # zero under all others in float64: treat alike
        without = TopicPosterior(weights, rest)
        before = DocumentTopics.of(used[own].toarray()), DocumentTopics.of(used[own][:, kept].toarray())
        yield documents[own], (posterior, before[0]), (without, before[1])


def judge_deletes(
    model: TopicModel,
    state: OnlineState,
    fits: Sequence[Without],
    topics: np.ndarray,
    scale: float,
    noise: float,
    doubts: np.ndarray | None = None,
) -> tuple[list[int], list[Verdict]]:
    """Choose at most one topic to delete, because the documents of several may take up each other's tokens.

    Parameters
    ----------
    state : under which the documents were fitted
    fits : of each of `topics` (C,)
    scale : D/|S|
    noise : nats that a gain must exceed
    doubts : (C,) uncertainty, in nats, of the change of the documents' bound

    Returns
    -------
    chosen : indices into `topics`
    judged : every topic, by its index in `topics`
    """
    gains = np.array([_gain(model, state, fit, k, scale) for fit, k in zip(fits, topics.tolist(), strict=True)])
    if doubts is not None:
        doubts = doubts * [_remembered(state, fit, k, scale) for fit, k in zip(fits, topics.tolist(), strict=True)]
    judged = judge(_Deletes(gains, noise), gains, doubts=doubts)
    return accepted(judged), judged


def _gain(model: TopicModel, state: OnlineState, fit: Without, k: int, scale: float) -> float:
    after, density = apply_delete(state, k), point_weights(model).log_density
    own, nothing = state.words[:, [k]], np.zeros((len(state.words), 1))
    spared = float(-word_values(model, own, nothing)[0])
    denser = density(after.weights) - density(state.weights)
    change = point_elbo(model, fit.after.scaled(scale), after.words, after.weights)
    change -= point_elbo(model, fit.before.scaled(scale), state.words, state.weights)
    lost = change - spared - denser
    return float(lost * _remembered(state, fit, k, scale) + spared + denser)


def _remembered(state: OnlineState, fit: Without, k: int, scale: float) -> float:
    """max(1, T_k / S_k)."""
    return max(1.0, float(state.words[:, [k]].sum() / max(scale * fit.before.counts[k], 1e-300)))


def apply_delete(state: OnlineState, topic: int) -> OnlineState:
    """The state without a topic, whose weight is added to that of topics not in use."""
    weights = np.delete(state.weights, topic)
    weights[-1] += state.weights[topic]
    words = without_topics(state.words, topic)
    return replace(state, words=words, weights=weights, ids=np.delete(state.ids, topic))


@dataclass(frozen=True, eq=False)
class _Deletes(Standing):
    """Topics of which at most one is deleted."""

    gains: np.ndarray
    nats: float
    gone: bool = False

    def gain(self, proposal: int) -> float:
        return float(self.gains[proposal])

    def threshold(self, proposal: int) -> float:
        return self.nats

    def holds(self, proposal: int) -> bool:
        return not self.gone

    def after(self, proposal: int) -> Self:
        return replace(self, gone=True)
