"""Prune and merge (SVA-PM): when components are examined, which are removed and which are merged.

There are two merge tests. By distance, with sums over rows of total weight n,

    d = sum |rho_a - rho_b| = w_a + w_b - 2 sum min(rho_a, rho_b),

relative to w_a + w_b, or to n, which makes any two rare components similar. By evidence, the gain of the log joint
probability under the Chinese restaurant process,

    A(S_a + S_b) - A(S_a) - A(S_b) + log Gamma(w_a + w_b) - log Gamma(w_a) - log Gamma(w_b) - log alpha > 0.

A component is pruned if it is rare among the rows processed since it was opened. The paper divides by all rows instead,
so no component that appears late in a long stream can stay.

Source: Lin (2013), section 5.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import gammaln

from dpdist.core.checks import COUNT, FLAG, POSITIVE, Wanted, check_fields, instance, number, whole
from dpdist.inference.moves.accept import disjoint
from dpdist.inference.sva.base import Learner, OpeningRule, SVAState


@dataclass(frozen=True, eq=False)
class PairSearch:
    """Input of a merge test.

    Parameters
    ----------
    state : the components, with their overlaps if a test needs them
    learner, rule : of the pass
    fixed : number of leading components of which no two are merged
    fresh : (K,) bool; only pairs with at least one of these are new
    """

    state: SVAState
    learner: Learner
    rule: OpeningRule
    fixed: int
    fresh: np.ndarray


class MergeTest(ABC):
    """Decides which pairs of components are merged."""

    #: Whether the test needs the overlaps of responsibilities.
    tracks: bool = False

    @abstractmethod
    def pairs(self, search: PairSearch) -> np.ndarray:
        """Disjoint pairs to merge, (P, 2), the first of each below the second."""


@dataclass(frozen=True)
class EvidenceTest(MergeTest):
    """Merge pairs that raise the log joint probability.

    Parameters
    ----------
    partners : number of other components tried with each, those that its rows fit best
    """

    partners: int = 4

    def __post_init__(self) -> None:
        check_fields(self, partners=COUNT)

    def pairs(self, search: PairSearch) -> np.ndarray:
        table, learner = search.state.table, search.learner
        tried = likely_pairs(learner.affinity(table), self.partners)
        tried = tried[(tried.max(axis=1) >= search.fixed) & search.fresh[tried].any(axis=1)]
        return disjoint(tried, merge_gains(table[tried[:, 0]], table[tried[:, 1]], learner, search.rule))


@dataclass(frozen=True)
class DistanceTest(MergeTest):
    """Merge components whose responsibilities differ by less than `most` on average.

    No merge is false. The distance is exact for components tracked from their first row and never merged. For merged
    components it is at least the true one, because :func:`merge_pairs` bounds their overlaps from below. Later rows are
    counted exactly, so a merge that the bound prevented happens at a later check.

    Parameters
    ----------
    most : epsilon_d > 0
    relative : whether the distance is divided by the pair's weight, so that it lies in [0, 1], or by that of all rows
    """

    most: float = 0.5
    relative: bool = True

    tracks = True

    def __post_init__(self) -> None:
        check_fields(self, most=POSITIVE.called("merge_threshold"), relative=FLAG)

    def pairs(self, search: PairSearch) -> np.ndarray:
        state, fresh = search.state, search.fresh
        both = state.weights[:, None] + state.weights
        distance = (both - 2 * state.overlap) / (both if self.relative else state.seen)
        first, second = np.nonzero(np.triu((distance < self.most) & (fresh[:, None] | fresh), 1))
        allowed = second >= search.fixed
        tried = np.stack([first[allowed], second[allowed]], axis=1)
        apart = distance[tried[:, 0], tried[:, 1]]
        return disjoint(tried, self.most - apart, -apart)


_TESTS = ("auto", "evidence", "distance", "absolute distance")
#: Values that users may give.
MERGE: Wanted[str | MergeTest | None] = Wanted(
    f"one of {', '.join(map(repr, _TESTS))}, a merge test, or None for no merges",
    lambda value: value is None or isinstance(value, MergeTest) or (isinstance(value, str) and value in _TESTS),
)


def merge_test(asked: Any, threshold: float, conjugate: bool) -> MergeTest | None:
    """The test that the user chose: "auto" is by evidence if the likelihood has any, and None is no test.

    Parameters
    ----------
    asked : "auto", "evidence", "distance", "absolute distance", None, or a test
    threshold : epsilon_d of the tests by distance
    conjugate : whether the likelihood has a conjugate prior, and so evidence
    """
    if asked is None or isinstance(asked, MergeTest):
        return asked
    if asked == "evidence" or (asked == "auto" and conjugate):
        return EvidenceTest()
    return DistanceTest(threshold, relative=asked != "absolute distance")


@dataclass(frozen=True)
class PruneMerge:
    """When to examine components, and what to do with them.

    Parameters
    ----------
    prune : epsilon_r; components with a smaller weight relative to the rows that they could have received are removed,
        including their statistics
    least : if `prune` is positive, components with less weight than this, in rows, are removed as well
    merge : which pairs are merged, or None
    first_check : number of rows before the first check
    spacing : smallest number of rows between two checks, as a multiple of the number of components
    share : smallest number of rows between two checks, as a share of the rows processed; with `spacing` it keeps the
        cost of all checks proportional to that of the pass
    """

    prune: float = 0.0
    merge: MergeTest | None = None
    least: float = 1.0
    first_check: int = 1024
    spacing: int = 16
    share: float = 0.25

    def __post_init__(self) -> None:
        check_fields(
            self,
            prune=number(least=0, below=1),
            merge=instance("a merge test", MergeTest).or_none("no merges"),
            **dict.fromkeys(("least", "share"), number(least=0)),
            **dict.fromkeys(("first_check", "spacing"), whole(0)),
        )

    def next_check(self, rows: int, components: int) -> int:
        """Number of rows at the check after one at `rows`, with `components` components."""
        return max(rows + max(1, self.spacing * max(1, components)), int((1 + self.share) * rows))

    @property
    def tracks(self) -> bool:
        """Whether overlaps are needed."""
        return self.merge is not None and self.merge.tracks


def empty_state(width: int, pruning: PruneMerge) -> SVAState:
    """The state without components and rows."""
    return SVAState(
        table=np.zeros((0, width)),
        ids=np.zeros(0, dtype=np.int64),
        rows=0,
        seen=0.0,
        next_check=pruning.first_check,
        pruned=0.0,
        exposed=np.zeros(0),
        looked=0.0,
        overlap=np.zeros((0, 0)),
    )


def prune_and_merge(
    state: SVAState, learner: Learner, rule: OpeningRule, pruning: PruneMerge, fixed: int = 0
) -> SVAState:
    """Prune and merge redundant components, and schedule the next check."""
    next_check = pruning.next_check(state.rows, len(state.table))
    state = replace(_pruned(state, pruning, fixed), next_check=next_check, looked=state.seen)
    if pruning.merge is None:
        return state
    fresh = np.ones(len(state.table), dtype=bool)
    while fresh.any():
        pairs = pruning.merge.pairs(PairSearch(state, learner, rule, fixed, fresh))
        state, fresh = merged(state, pairs, learner, fixed)
    return state


def _pruned(state: SVAState, pruning: PruneMerge, fixed: int) -> SVAState:
    """The state without components of too little weight for their rows; the heaviest one stays."""
    weights = state.weights
    small = (pruning.prune > 0) & (weights < np.maximum(pruning.prune * state.exposed, pruning.least))
    small[:fixed] = False
    if len(small):
        small[weights.argmax()] = False
    keep = np.flatnonzero(~small)
    overlap = state.overlap[np.ix_(keep, keep)] if len(state.overlap) else state.overlap
    return replace(
        state,
        table=state.table[keep],
        ids=state.ids[keep],
        exposed=state.exposed[keep],
        overlap=overlap,
        pruned=state.pruned + float(weights[small].sum()),
    )


def merged(state: SVAState, pairs: np.ndarray, learner: Learner, fixed: int = 0) -> tuple[SVAState, np.ndarray]:
    """The state with disjoint pairs (P, 2) merged, and which of the remaining components are merged ones, (K,) bool."""
    weights = state.weights
    heavier = np.where((weights[pairs[:, 0]] >= weights[pairs[:, 1]])[:, None], pairs, pairs[:, ::-1])
    ordered = np.where((pairs.min(axis=1) < fixed)[:, None], np.sort(pairs, axis=1), heavier)
    table, ids, overlap = merge_pairs(state.table, state.ids, state.overlap, ordered, learner)
    exposed = state.exposed.copy()
    exposed[ordered[:, 0]] = np.minimum(exposed[ordered].sum(axis=1), state.seen)
    fresh = np.zeros(len(weights), dtype=bool)
    fresh[ordered[:, 0]] = True
    left = np.delete(np.arange(len(weights)), ordered[:, 1])
    return replace(state, table=table, ids=ids, exposed=exposed[left], overlap=overlap), fresh[left]


def merge_gains(left: np.ndarray, right: np.ndarray, learner: Learner, rule: OpeningRule) -> np.ndarray:
    """Gains (P,) in nats of merging pairs of components, including the Chinese restaurant process."""
    a, b = left[:, -1], right[:, -1]
    seats = gammaln(a + b) - gammaln(a) - gammaln(b) - np.log(rule.concentration)
    return learner.gains(left, right) + seats


def likely_pairs(affinity: np.ndarray, partners: int) -> np.ndarray:
    """Each component with the `partners` others that its rows fit best: pairs (P, 2), first below second."""
    size = len(affinity)
    if size < 2:
        return np.zeros((0, 2), dtype=np.intp)
    others = affinity.copy()
    np.fill_diagonal(others, -np.inf)
    most = min(partners, size - 1)
    best = np.argsort(-others, axis=1, kind="stable")[:, :most]
    pairs = np.stack([np.repeat(np.arange(size), most), best.ravel()], axis=1)
    return np.unique(np.sort(pairs, axis=1), axis=0)


def merge_pairs(
    table: np.ndarray, ids: np.ndarray, overlap: np.ndarray, pairs: np.ndarray, learner: Learner
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Table, ids and overlaps after the second component of each pair was merged into the first.

    The overlap of a merged component with c, sum min(rho_a + rho_b, rho_c), is not a function of those of a and b. If a
    and b share no row it is their sum; otherwise the larger of the two is used, a lower bound.
    """
    keep, gone = pairs[:, 0], pairs[:, 1]
    table, ids = table.copy(), ids.copy()
    table[keep] = learner.join(table[keep], table[gone])
    ids[keep] = np.where(ids[keep] >= 0, ids[keep], ids[gone])
    return np.delete(table, gone, axis=0), np.delete(ids, gone), _overlap_of_unions(overlap, keep, gone)


def _overlap_of_unions(overlap: np.ndarray, keep: np.ndarray, gone: np.ndarray) -> np.ndarray:
    if not len(overlap):
        return overlap
    apart = overlap[keep, gone] == 0

    def united(columns: np.ndarray) -> np.ndarray:
        left, right, columns = columns[:, keep], columns[:, gone], columns.copy()
        columns[:, keep] = np.where(apart, left + right, np.maximum(left, right))
        return np.delete(columns, gone, axis=1)

    found = united(united(overlap).T)
    found = np.maximum(found, found.T)  # both orders give lower bounds
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)
