"""Merges of topics judged on a mini-batch: which pairs to measure, and which to make one.

A merged topic has lambda' = lambda_a + lambda_b - eta and beta' = beta_a + beta_b; its tokens and theta are the sums of
both in every document. It is accepted when the bound of the mini-batch, scaled to the corpus, rises. Source: Bryant &
Sudderth (NeurIPS 2012), section 3.

A topic that few documents use is not in most mini-batches, and explains nothing there: on their bounds alone it is
merged at the first occasion, and nothing brings it back. So, unless the paper's form is asked for, a merge must also
pay when the topics' own counts, which remember the mini-batches before, stand for the words seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.inference.moves.accept import Reason, Verdict, reason_for
from dpdist.inference.topics.batch_summary import Measured
from dpdist.inference.topics.documents import NO_PAIRS
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.moves import ROUNDING
from dpdist.inference.topics.online import OnlineState
from dpdist.inference.topics.online_local_step import OnlineVisit
from dpdist.inference.topics.point_model import point_elbo, point_weights, word_values
from dpdist.inference.topics.summary import LOG_GAMMA, LOG_PI, SLACK
from dpdist.models.allocations.point_weights import PointWeights


def propose_unions(visit: OnlineVisit, words: np.ndarray, most: int, alike: int) -> np.ndarray:
    """Pairs (P, 2) of topics to measure, first below second.

    Parameters
    ----------
    visit : the mini-batch
    words : (W, K) the topics' expected counts
    most : of the pairs whose theta covary positively over the mini-batch, that many are taken, most correlated first
    alike : of the smallest topics, that many are paired with the topic whose words are most like theirs
    """
    pairs = np.concatenate([_covarying(visit.covariances, most), _most_alike(words, alike)])
    found: np.ndarray = np.unique(pairs, axis=0)
    return found


def _covarying(covariances: np.ndarray, most: int) -> np.ndarray:
    spread = np.sqrt(np.maximum(np.diag(covariances), 1e-300))
    likeness = np.round(covariances / np.outer(spread, spread), 12)  # ties are broken by position
    pairs = np.argwhere(np.triu(likeness > 0, 1))
    return pairs[np.argsort(-likeness[pairs[:, 0], pairs[:, 1]], kind="stable")[:most]]


def _most_alike(words: np.ndarray, number: int) -> np.ndarray:
    if words.shape[1] < 2:
        return NO_PAIRS
    smallest = np.argsort(words.sum(axis=0), kind="stable")[:number]
    unit = words / np.maximum(np.sqrt((words**2).sum(axis=0)), 1e-300)
    likeness = np.round(unit[:, smallest].T @ unit, 12)
    likeness[np.arange(len(smallest)), smallest] = -1.0
    return np.sort(np.stack([smallest, np.argmax(likeness, axis=1)], axis=1), axis=1)


def judge_unions(
    model: TopicModel, state: OnlineState, total: Measured, pairs: np.ndarray, lasting: bool
) -> tuple[np.ndarray, list[Verdict]]:
    """Choose pairs greedily: best first, each judged against the mini-batch as those before it left it.

    Parameters
    ----------
    state : under which the mini-batch was fitted
    total : the mini-batch with its `pairs` (P, 2), scaled to the corpus
    lasting : whether merges must pay for the topics' own counts, too

    Returns
    -------
    chosen : positions in `pairs`, no topic twice
    judged : every pair, by its position in `pairs`, with the smaller of the gains asked for
    """
    fixed = total.pairs.entropy + _group_gains(total, pairs) + _word_gains(model, state, total, pairs, lasting)
    noise = ROUNDING * abs(point_elbo(model, total.summary, state.words, state.weights))
    current = _Weights.of(model, state, total)
    taken: set[int] = set()
    chosen, judged = list[int](), list[Verdict]()
    for place in np.argsort(-fixed, kind="stable").tolist():
        first, second = pairs[place].tolist()
        if {first, second} & taken:
            judged.append(Verdict(place, float(fixed[place]), Reason.CONFLICT))
            continue
        after = current.merged(first, second, float(total.pairs.groups[place, LOG_PI]))
        gain = float(fixed[place] + after.value - current.value)
        reason = reason_for(gain, noise)
        judged.append(Verdict(place, gain, reason))
        if reason is Reason.ACCEPTED:
            current, taken = after, taken | {first, second}
            chosen.append(place)
    return np.array(sorted(chosen), dtype=np.intp), judged


def _group_gains(total: Measured, pairs: np.ndarray) -> np.ndarray:
    """What merging changes of the documents' terms, (P,)."""
    local, groups = [LOG_GAMMA, SLACK], total.summary.groups
    first, second = groups[pairs[:, 0]][:, local], groups[pairs[:, 1]][:, local]
    gains: np.ndarray = (total.pairs.groups[:, local] - first - second).sum(axis=1)
    return gains


def _word_gains(model: TopicModel, state: OnlineState, total: Measured, pairs: np.ndarray, lasting: bool) -> np.ndarray:
    """What merging changes of the words' terms, (P,): for the words seen, or the less of these and those remembered."""
    judged = [total.summary.words, state.words] if lasting else [total.summary.words]
    least = np.full(len(pairs), np.inf)
    for seen in judged:
        own, joint = word_values(model, state.words, seen), np.empty(len(pairs))
        for start in range(0, len(pairs), 64):
            part = slice(start, start + 64)
            one, two = pairs[part].T
            joint[part] = word_values(model, state.words[:, one] + state.words[:, two], seen[:, one] + seen[:, two])
        least = np.minimum(least, joint - own[pairs[:, 0]] - own[pairs[:, 1]])
    return least


@dataclass(frozen=True, eq=False)
class _Weights:
    """Global weights and sums of E log pi of the topics as they were, those gone masked, and what they contribute."""

    objective: PointWeights
    documents: float
    weights: np.ndarray
    log_pi: np.ndarray
    left: np.ndarray

    @staticmethod
    def of(model: TopicModel, state: OnlineState, total: Measured) -> _Weights:
        """Before any are gone."""
        log_pi = total.summary.groups[:, LOG_PI]
        left = np.ones(len(log_pi), dtype=bool)
        return _Weights(point_weights(model), total.summary.documents, state.weights, log_pi, left)

    @property
    def value(self) -> float:
        """The contribution to the bound."""
        return self.objective.value(self.weights[self.left], self.log_pi[self.left], self.documents)

    def merged(self, first: int, second: int, log_pi: float) -> _Weights:
        """With two more made one, whose sum of E log pi is given."""
        weights, sums, left = self.weights.copy(), self.log_pi.copy(), self.left.copy()
        weights[first], sums[first], left[second] = weights[first] + weights[second], log_pi, False
        return _Weights(self.objective, self.documents, weights, sums, left)
