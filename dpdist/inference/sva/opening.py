"""The components between two rows of a pass, as a value; and a pass from one such value to the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from dpdist.core.stored import Stored
from dpdist.inference.sva.base import Learner, OpeningRule, Pass
from dpdist.inference.sva.prune_merge import PairSearch, PruneMerge, merge_pairs
from dpdist.models.families.base import Rows


@dataclass(frozen=True, eq=False)
class SVAState:
    """Components and how many rows made them.

    Parameters
    ----------
    table : (K, F) float64, as :class:`Learner` defines it
    ids : (K,) int64 stable ids; -1 for components that have none yet
    rows : number of rows passed
    seen : sum of their weights
    look : number of rows at which components are next examined
    pruned : weight of the components removed
    overlap : (K, K) sums of min(rho_a, rho_b), bounds from below for unions; (0, 0) where nothing asks for them
    next_id : first id that no component had yet
    """

    table: Annotated[
        np.ndarray,
        Stored(("component", "feature"), "components as the pass keeps them; last column: their weights"),
    ]
    ids: Annotated[np.ndarray, Stored(("component",), "stable identity of a component")]
    rows: int
    seen: float
    look: int
    pruned: float
    overlap: Annotated[
        np.ndarray, Stored(("component", "component_2"), "sum of the smaller of two components' responsibilities")
    ]
    next_id: int = 0

    @property
    def layout(self) -> tuple[int, ...]:
        """Shape of what is stored of it."""
        return self.table.shape

    @property
    def nbytes(self) -> int:
        """Size in bytes, of its largest part."""
        return self.table.nbytes

    @property
    def weights(self) -> np.ndarray:
        """w_k, (K,)."""
        return self.table[:, -1]


def no_growth(width: int, tidy: PruneMerge) -> SVAState:
    """No components, no rows."""
    return SVAState(np.zeros((0, width)), np.zeros(0, dtype=np.int64), 0, 0.0, tidy.first, 0.0, np.zeros((0, 0)))


def pass_over(
    blocks: Iterable[tuple[Rows, np.ndarray]],
    growth: SVAState,
    learner: Learner,
    rule: OpeningRule,
    tidy: PruneMerge,
    dtype: type,
    fixed: int = 0,
) -> SVAState:
    """Pass over blocks of rows, examining the components whenever it is time.

    Parameters
    ----------
    blocks : prepared rows (n, D) and their weights (n,)
    growth : where to go on from
    fixed : the first components, which are not to be pruned or merged with one another
    """
    going = _begin(growth, learner, rule, tidy, dtype)
    for rows, weights in blocks:
        start = 0
        while start < rows.shape[0]:
            stop = min(rows.shape[0], start + growth.look - growth.rows)
            going.advance(rows[start:stop], weights[start:stop])
            growth = replace(growth, rows=growth.rows + stop - start, seen=growth.seen + weights[start:stop].sum())
            if growth.rows == growth.look:
                growth = examine(_taken(going, growth), learner, rule, tidy, fixed)
                going = _begin(growth, learner, rule, tidy, dtype)
            start = stop
    return _taken(going, growth)


def examine(growth: SVAState, learner: Learner, rule: OpeningRule, tidy: PruneMerge, fixed: int = 0) -> SVAState:
    """Prune and merge what has become redundant, and set the time of the next look."""
    look = max(growth.rows + tidy.apart * max(1, len(growth.table)), int((1 + tidy.growth) * growth.rows))
    growth = replace(_pruned(growth, tidy, fixed), look=look)
    if tidy.merge is None:
        return growth
    fresh = np.ones(len(growth.table), dtype=bool)
    while fresh.any():
        pairs = tidy.merge.pairs(PairSearch(growth.table, growth.overlap, growth.seen, learner, rule, fixed, fresh))
        growth, fresh = merged(growth, pairs, learner, fixed)
    return growth


def merged(growth: SVAState, pairs: np.ndarray, learner: Learner, fixed: int = 0) -> tuple[SVAState, np.ndarray]:
    """Each of some disjoint pairs (P, 2) made one; and which of the components left are such unions, (K,) bool."""
    weights = growth.weights
    heavier = np.where((weights[pairs[:, 0]] >= weights[pairs[:, 1]])[:, None], pairs, pairs[:, ::-1])
    ordered = np.where((pairs.min(axis=1) < fixed)[:, None], np.sort(pairs, axis=1), heavier)
    table, ids, overlap = merge_pairs(growth.table, growth.ids, growth.overlap, ordered, learner)
    fresh = np.zeros(len(weights), dtype=bool)
    fresh[ordered[:, 0]] = True
    left = np.delete(np.arange(len(weights)), ordered[:, 1])
    return replace(growth, table=table, ids=ids, overlap=overlap), fresh[left]


def _begin(growth: SVAState, learner: Learner, rule: OpeningRule, tidy: PruneMerge, dtype: type) -> Pass:
    size = len(growth.table)
    tracked = None
    if tidy.tracks:
        tracked = growth.overlap if len(growth.overlap) == size else np.zeros((size, size))
    return learner.begin(growth.table, rule, dtype, tracked, growth.seen)


def _taken(going: Pass, growth: SVAState) -> SVAState:
    table = going.table
    opened = np.full(len(table) - len(growth.ids), -1, dtype=np.int64)
    return replace(growth, table=table, ids=np.concatenate([growth.ids, opened]), overlap=going.overlap)


def _pruned(growth: SVAState, tidy: PruneMerge, fixed: int) -> SVAState:
    """Without components of too little weight; the heaviest stays."""
    weights = growth.weights
    small = weights < (max(tidy.prune * weights.sum(), tidy.least) if tidy.prune > 0 else 0.0)
    small[:fixed] = False
    if len(small):
        small[weights.argmax()] = False
    keep = np.flatnonzero(~small)
    overlap = growth.overlap[np.ix_(keep, keep)] if len(growth.overlap) else growth.overlap
    return replace(
        growth,
        table=growth.table[keep],
        ids=growth.ids[keep],
        overlap=overlap,
        pruned=growth.pruned + float(weights[small].sum()),
    )
