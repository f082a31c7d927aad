"""Merges of topics: which pairs to measure, and which to merge.

A merged topic has the words and the documents' tokens of both. With posteriors of the global weights it is judged on
the bound of the whole corpus. With a point estimate it has lambda' = lambda_a + lambda_b - eta and beta' = beta_a +
beta_b, and is judged on the bound of a mini-batch scaled to the corpus. Source: Bryant & Sudderth (NeurIPS 2012),
section 3.

A topic used by few documents does not occur in most mini-batches, so it explains nothing there. Judged on their bounds
alone, it is merged at the first opportunity and never returns. So, unless the paper's form is requested, a merge must
also gain when the topics' own counts, which include earlier mini-batches, replace the words seen.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Self

import numpy as np

from dpdist.inference.moves.accept import Standing, Verdict, accepted, judge
from dpdist.inference.topics.batch_summary import Measured
from dpdist.inference.topics.documents import NO_PAIRS
from dpdist.inference.topics.model import TopicModel, point_elbo, point_weights, word_values
from dpdist.inference.topics.online import OnlineState
from dpdist.inference.topics.summary import LOG_GAMMA, LOG_PI, SLACK, of_topics

#: A gain must exceed this share of the value to which it is added (the allocation's part of the bound or, online, the
#: bound of the mini-batch). It covers rounding and the tolerance of the search for global weights.
ROUNDING = 1e-9
#: A merge with an estimated loss of more nats than this is refused without an exact computation.
_SURE = 5.0
#: Number of pairs whose words are added at a time.
_CHUNK = 64


def propose_pairs(words: np.ndarray, rank: int) -> np.ndarray:
    """Pairs (P, 2) of topics (W, K), first below second: each topic with the one of most similar words.

    With `rank` r > 0 it is the r-th next in similarity.
    """
    topics = words.shape[1]
    if topics < 2 + rank:
        return NO_PAIRS
    unit = _directions(words)
    likeness = unit.T @ unit
    np.fill_diagonal(likeness, -1.0)
    likeness = np.round(likeness, 12)  # ties are broken by position, not by rounding
    ones, others = np.arange(topics), likeness.copy()
    for _ in range(rank):
        others[ones, np.argmax(others, axis=1)] = -1.0
    near = np.argmax(others, axis=1)
    pairs = np.stack([np.minimum(ones, near), np.maximum(ones, near)], axis=1)
    return np.unique(pairs[likeness[pairs[:, 0], pairs[:, 1]] > 0], axis=0).astype(np.int64)


def propose_online_pairs(covariances: np.ndarray, words: np.ndarray, most: int, alike: int) -> np.ndarray:
    """Pairs (P, 2) of topics to measure on a mini-batch, first below second.

    Parameters
    ----------
    covariances : (K, K) of theta over its documents
    words : (W, K) the topics' expected counts
    most : number of pairs with positive covariance of theta to take, most correlated first
    alike : number of smallest topics to pair with the topic whose words are most similar
    """
    pairs = np.concatenate([_covarying(covariances, most), _most_alike(words, alike)])
    return np.unique(pairs, axis=0)


def _covarying(covariances: np.ndarray, most: int) -> np.ndarray:
    spread = np.sqrt(np.maximum(np.diag(covariances), 1e-300))
    likeness = np.round(covariances / np.outer(spread, spread), 12)  # ties are broken by position
    pairs = np.argwhere(np.triu(likeness > 0, 1))
    return pairs[np.argsort(-likeness[pairs[:, 0], pairs[:, 1]], kind="stable")[:most]]


def _most_alike(words: np.ndarray, number: int) -> np.ndarray:
    if words.shape[1] < 2:
        return NO_PAIRS
    smallest = np.argsort(words.sum(axis=0), kind="stable")[:number]
    unit = _directions(words)
    likeness = np.round(unit[:, smallest].T @ unit, 12)
    likeness[np.arange(len(smallest)), smallest] = -1.0
    return np.sort(np.stack([smallest, np.argmax(likeness, axis=1)], axis=1), axis=1)


def _directions(words: np.ndarray) -> np.ndarray:
    """Topics' words (W, K), normalised to unit length; topics without words are unchanged."""
    return words / np.maximum(np.sqrt((words**2).sum(axis=0)), 1e-300)


def judge_merges(model: TopicModel, total: Measured, pairs: np.ndarray) -> tuple[np.ndarray, list[Verdict]]:
    """Choose pairs on the bound of the whole corpus.

    Parameters
    ----------
    total : the corpus with its `pairs` (P, 2)

    Returns
    -------
    chosen : indices into `pairs`, no topic twice
    judged : every pair, by its index in `pairs`
    """
    summary = total.summary
    fixed = total.pairs.entropy + model.union_evidences(summary.words, pairs)
    log_pi, unions = summary.groups[:, LOG_PI], total.pairs.groups[:, LOG_PI]
    weights = model.allocation.union_gains(log_pi, summary.documents, pairs, unions)
    promise = fixed + _group_gains(total, pairs) + weights
    return _chosen(_CorpusMerges(model, total, pairs, fixed, *_all_left(total), promise=promise), promise)


def judge_online_merges(
    model: TopicModel,
    state: OnlineState,
    total: Measured,
    pairs: np.ndarray,
    lasting: bool,
    doubts: np.ndarray | None = None,
) -> tuple[np.ndarray, list[Verdict]]:
    """Choose pairs on the bound of a mini-batch.

    Parameters
    ----------
    state : under which the mini-batch was fitted
    total : the mini-batch with its `pairs` (P, 2), scaled to the corpus
    lasting : whether merges must also gain with the topics' own counts
    doubts : (P,) nats that gains must exceed because only some documents were seen

    Returns
    -------
    chosen, judged : as in :func:`judge_merges`, with the smaller of the required gains
    """
    fixed = total.pairs.entropy + _group_gains(total, pairs) + _word_gains(model, state, total, pairs, lasting)
    bound = point_elbo(model, total.summary, state.words, state.weights)
    left = _all_left(total)
    return _chosen(_OnlineMerges(model, total, pairs, fixed, *left, weights=state.weights, bound=bound), fixed, doubts)


def _chosen(merges: _Merges, promise: np.ndarray, doubts: np.ndarray | None = None) -> tuple[np.ndarray, list[Verdict]]:
    judged = judge(merges, promise, doubts=doubts)
    return np.array(sorted(accepted(judged)), dtype=np.intp), judged


def _change(pairs: np.ndarray, value: Callable[[Callable[[np.ndarray], np.ndarray]], np.ndarray]) -> np.ndarray:
    """Change of a value if each pair is merged, (P,); `value` computes that of each topic, (K,), from a function that
    takes columns of (W, K) arrays."""
    alone, joint = value(lambda words: words), np.empty(len(pairs))
    for start in range(0, len(pairs), _CHUNK):
        one, two = pairs[start : start + _CHUNK].T
        joint[start : start + _CHUNK] = value(partial(_sums, one, two))
    return np.asarray(joint - alone[pairs[:, 0]] - alone[pairs[:, 1]])


def _sums(one: np.ndarray, two: np.ndarray, words: np.ndarray) -> np.ndarray:
    return of_topics(words, one) + of_topics(words, two)


def _group_gains(total: Measured, pairs: np.ndarray) -> np.ndarray:
    """Change of the documents' terms by each merge, (P,)."""
    local, groups = [LOG_GAMMA, SLACK], total.summary.groups
    first, second = groups[pairs[:, 0]][:, local], groups[pairs[:, 1]][:, local]
    return (total.pairs.groups[:, local] - first - second).sum(axis=1)


def _word_gains(model: TopicModel, state: OnlineState, total: Measured, pairs: np.ndarray, lasting: bool) -> np.ndarray:
    """Change of the words' terms by each merge, (P,); if lasting, the smaller of that for words seen and all counts."""

    def change(seen: np.ndarray) -> np.ndarray:
        return _change(pairs, lambda of: word_values(model, of(state.words), of(seen)))

    gains = change(total.summary.words)
    return np.minimum(gains, change(state.words)) if lasting else gains


def _all_left(total: Measured) -> tuple[np.ndarray, np.ndarray]:
    """Documents' sums by topic, and a mask in which all topics remain."""
    groups = total.summary.groups
    return groups, np.ones(len(groups), dtype=bool)


@dataclass(frozen=True, eq=False)
class _Merges(Standing):
    """Topics, some of which have been merged.

    Parameters
    ----------
    model, total : for the judgement
    pairs : (P, 2) topics that may be merged
    fixed : (P,) change of the bound by each pair, without :attr:`value`
    groups : (K + 1, 4) documents' sums of the topics; merged ones replace their first topic
    left : (K + 1,) which topics remain
    changed : topics that were merged
    """

    model: TopicModel
    total: Measured
    pairs: np.ndarray
    fixed: np.ndarray
    groups: np.ndarray
    left: np.ndarray
    changed: frozenset[int] = frozenset()

    @property
    @abstractmethod
    def value(self) -> float:
        """Contribution of the global weights and documents' sums to the bound, in nats."""

    def gain(self, proposal: int) -> float:
        return float(self.fixed[proposal] + self.after(proposal).value - self.value)

    def holds(self, proposal: int) -> bool:
        return self.changed.isdisjoint(self.pairs[proposal].tolist())

    def after(self, proposal: int) -> Self:
        first, second = self.pairs[proposal].tolist()
        groups, left = self.groups.copy(), self.left.copy()
        groups[first], left[second] = self.total.pairs.groups[proposal], False
        return replace(self, groups=groups, left=left, changed=self.changed | {first, second})


@dataclass(frozen=True, eq=False)
class _CorpusMerges(_Merges):
    """Merges under posteriors of the global weights that are optimal for the remaining topics.

    Most pairs lose hundreds of nats, which `promise` (P,) estimates well; the optimal weights are computed only where
    it is not far below zero.
    """

    promise: np.ndarray = field(kw_only=True)

    @cached_property
    def value(self) -> float:
        summary = self.total.summary
        return self.model.allocation_value(self.groups[self.left], summary.totals, summary.documents)

    def gain(self, proposal: int) -> float:
        promise = float(self.promise[proposal])
        return promise if promise < -_SURE else super().gain(proposal)

    def threshold(self, proposal: int) -> float:
        return ROUNDING * abs(self.value)


@dataclass(frozen=True, eq=False)
class _OnlineMerges(_Merges):
    """Merges under global weights (K + 1,), which add when topics are merged; `bound` is that of the mini-batch."""

    weights: np.ndarray = field(kw_only=True)
    bound: float = field(kw_only=True)

    @cached_property
    def value(self) -> float:
        documents = self.total.summary.documents
        return point_weights(self.model).value(self.weights[self.left], self.groups[self.left, LOG_PI], documents)

    def threshold(self, proposal: int) -> float:
        return ROUNDING * abs(self.bound)

    def after(self, proposal: int) -> Self:
        first, second = self.pairs[proposal].tolist()
        weights = self.weights.copy()
        weights[first] += weights[second]
        return replace(super().after(proposal), weights=weights)
