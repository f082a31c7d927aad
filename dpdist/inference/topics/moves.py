"""Merges of topics: which pairs to measure, and which to make one, judged on the exact bound of the whole corpus."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.inference.moves.accept import Reason, Verdict, reason_for
from dpdist.inference.topics.batch_summary import Measured
from dpdist.inference.topics.documents import NO_PAIRS
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.summary import TopicSummary

#: A gain must exceed this share of the bound: its rounding, and that of the search for global weights.
ROUNDING = 1e-9


def propose_pairs(words: np.ndarray, partners: int) -> np.ndarray:
    """Pairs (P, 2) of topics (W, K), first below second: each with the `partners` whose words are most like its own."""
    topics = words.shape[1]
    if topics < 2:
        return NO_PAIRS
    unit = words / np.maximum(np.sqrt((words**2).sum(axis=0)), 1e-300)
    likeness = unit.T @ unit
    np.fill_diagonal(likeness, -1.0)
    likeness = np.round(likeness, 12)  # ties are broken by position, whatever the last bits of the product
    near = np.argsort(-likeness, axis=1, kind="stable")[:, : min(partners, topics - 1)]
    ones = np.repeat(np.arange(topics), near.shape[1])
    pairs = np.stack([np.minimum(ones, near.ravel()), np.maximum(ones, near.ravel())], axis=1)
    found: np.ndarray = np.unique(pairs[likeness[pairs[:, 0], pairs[:, 1]] > 0], axis=0).astype(np.int64)
    return found


def judge_merges(model: TopicModel, total: Measured, pairs: np.ndarray) -> tuple[np.ndarray, list[Verdict]]:
    """Choose pairs greedily: best first, each judged against the corpus as those before it left it.

    Returns
    -------
    chosen : positions in `pairs`, no topic twice
    judged : every pair, by its position in `pairs`
    """
    gains = _gains_by_words(model, total, pairs)
    order = np.argsort(-gains, kind="stable")
    state = _Groups.of(model, total)
    taken: set[int] = set()
    chosen, judged = list[int](), list[Verdict]()
    for place in order:
        first, second = map(int, pairs[place])
        if {first, second} & taken:
            judged.append(Verdict(int(place), float(gains[place]), Reason.CONFLICT))
            continue
        after = state.merged(first, second, total.pairs.groups[place])
        gain = float(gains[place] + after.value - state.value)
        reason = reason_for(gain, ROUNDING * abs(state.value))
        judged.append(Verdict(int(place), gain, reason))
        if reason is Reason.ACCEPTED:
            state, taken = after, taken | {first, second}
            chosen.append(int(place))
    return np.array(sorted(chosen), dtype=np.intp), judged


def _gains_by_words(model: TopicModel, total: Measured, pairs: np.ndarray) -> np.ndarray:
    """What merging changes of evidences and entropies, (P,)."""
    if not len(pairs):
        return np.zeros(0)
    own = model.log_evidences(total.summary.words)
    first, second = pairs.T
    joint = np.empty(len(pairs))
    for start in range(0, len(pairs), 64):
        part = slice(start, start + 64)
        joint[part] = model.log_evidences(total.summary.words[:, first[part]] + total.summary.words[:, second[part]])
    return joint - own[first] - own[second] + total.pairs.entropy


@dataclass(frozen=True, eq=False)
class _Groups:
    """Documents' sums with some topics made one, and what they contribute to the bound."""

    model: TopicModel
    groups: np.ndarray
    places: np.ndarray  # row of each topic as it was; -1 once it is gone
    summary: TopicSummary
    value: float

    @staticmethod
    def of(model: TopicModel, total: Measured) -> _Groups:
        """Before any are."""
        summary = total.summary
        groups = summary.groups
        value = model.allocation_value(groups, summary.totals, summary.documents)
        return _Groups(model, groups, np.arange(len(groups) - 1), summary, value)

    def merged(self, first: int, second: int, union: np.ndarray) -> _Groups:
        """With two more made one, whose sums are `union` (4,)."""
        groups = self.groups.copy()
        groups[self.places[first]] = union
        gone = self.places[second]
        groups = np.delete(groups, gone, axis=0)
        places = np.where(self.places > gone, self.places - 1, self.places)
        places[second] = -1
        value = self.model.allocation_value(groups, self.summary.totals, self.summary.documents)
        return _Groups(self.model, groups, places, self.summary, value)
