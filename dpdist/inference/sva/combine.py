"""Rows passed over in blocks, and passes that ran side by side made one.

Components that passes share add up; others merge where the evidence says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from dpdist.core.trees import join_pairwise
from dpdist.inference.moves.accept import disjoint
from dpdist.inference.sva.base import Learner, OpeningRule, Pass, SVAState
from dpdist.inference.sva.prune_merge import (
    EvidenceTest,
    PruneMerge,
    likely_pairs,
    merge_gains,
    merged,
    prune_and_merge,
)
from dpdist.models.families.base import Rows


def pass_over(
    blocks: Iterable[tuple[Rows, np.ndarray]],
    state: SVAState,
    learner: Learner,
    rule: OpeningRule,
    pruning: PruneMerge,
    dtype: type,
    fixed: int = 0,
) -> SVAState:
    """Pass over blocks of rows, examining the components whenever it is time.

    Parameters
    ----------
    blocks : prepared rows (n, D) and their weights (n,)
    state : where to go on from
    fixed : the first components, which are not to be pruned or merged with one another
    """
    going = _begin(state, learner, rule, pruning, dtype)
    for rows, weights in blocks:
        start = 0
        while start < rows.shape[0]:
            stop = min(rows.shape[0], start + state.next_check - state.rows)
            going.advance(rows[start:stop], weights[start:stop])
            passed = float(weights[start:stop].sum())
            state = replace(
                state,
                rows=state.rows + stop - start,
                seen=state.seen + passed,
                exposed=state.exposed + passed,
            )
            if state.rows == state.next_check:
                state = prune_and_merge(_taken(going, state), learner, rule, pruning, fixed)
                going = _begin(state, learner, rule, pruning, dtype)
            start = stop
    return _taken(going, state)


def _begin(state: SVAState, learner: Learner, rule: OpeningRule, pruning: PruneMerge, dtype: type) -> Pass:
    size = len(state.table)
    tracked = None
    if pruning.tracks:
        tracked = state.overlap if len(state.overlap) == size else np.zeros((size, size))
    return learner.begin(state.table, rule, dtype, tracked, state.seen)


def _taken(going: Pass, state: SVAState) -> SVAState:
    table = going.table
    opened = len(table) - len(state.ids)
    return replace(
        state,
        table=table,
        ids=np.append(state.ids, np.full(opened, -1, dtype=np.int64)),
        exposed=np.append(state.exposed, np.full(opened, state.seen - state.looked)),
        overlap=going.overlap,
    )


def combine(parts: Sequence[SVAState], base: SVAState, learner: Learner, rule: OpeningRule) -> SVAState:
    """What passes over several partitions, all from `base`, found together.

    The first components of every part are those of `base`; what each part added to them is summed. The others of a
    later part are merged with those of the earlier ones while that raises the log joint probability. Neighbours are
    combined first, then neighbours of those, so that the result depends on the parts' order only.
    """
    return join_pairwise(parts, lambda left, right: _combine_two(left, right, base, learner, rule))


def _combine_two(left: SVAState, right: SVAState, base: SVAState, learner: Learner, rule: OpeningRule) -> SVAState:
    shared = len(base.table)
    table = np.concatenate([left.table, right.table[shared:]])
    table[:shared] += right.table[:shared] - base.table
    exposed = np.concatenate([left.exposed, right.exposed[shared:]])
    exposed[:shared] += right.exposed[:shared] - base.exposed
    seen = left.seen + right.seen - base.seen
    both = replace(
        left,
        table=table,
        ids=np.concatenate([left.ids, right.ids[shared:]]),
        rows=left.rows + right.rows - base.rows,
        seen=seen,
        pruned=left.pruned + right.pruned - base.pruned,
        exposed=exposed,
        looked=seen,
        overlap=_joined_overlap(left, right, base),
    )
    return _within_bound(_merge_across(both, len(left.table), learner, rule), shared, learner, rule)


def _joined_overlap(left: SVAState, right: SVAState, base: SVAState) -> np.ndarray:
    """Overlaps of both sides' components; those of the shared ones count what each side added."""
    if not len(left.overlap) and not len(right.overlap):
        return left.overlap
    shared, split = len(base.table), len(left.table)
    size = split + len(right.table) - shared
    overlap = np.zeros((size, size))
    overlap[:split, :split] = left.overlap
    places = np.append(np.arange(shared), np.arange(split, size))
    overlap[np.ix_(places, places)] += right.overlap
    if len(base.overlap) == shared:
        overlap[:shared, :shared] -= base.overlap
    return overlap


def _merge_across(both: SVAState, split: int, learner: Learner, rule: OpeningRule) -> SVAState:
    """Merge components from `split` on with those before it, the best first, until no merge gains."""
    test = EvidenceTest()
    later = np.arange(len(both.table)) >= split
    fresh = later.copy()
    while fresh.any() and later.any():
        tried = likely_pairs(learner.affinity(both.table), test.partners)
        crossing = later[tried[:, 0]] != later[tried[:, 1]]
        tried = tried[crossing & fresh[tried].any(axis=1)]
        gains = merge_gains(both.table[tried[:, 0]], both.table[tried[:, 1]], learner, rule)
        pairs = disjoint(tried, gains)
        left = np.delete(later, pairs[:, 1])
        both, fresh = merged(both, pairs, learner, split)
        later = left
    return both


def _within_bound(state: SVAState, shared: int, learner: Learner, rule: OpeningRule) -> SVAState:
    """The best pairs merged whatever that loses, none of two of the first `shared` components, while there are more
    components than there may be: parts that opened few each may have more in all."""
    while rule.max_components is not None and len(state.table) > rule.max_components:
        tried = likely_pairs(learner.affinity(state.table), EvidenceTest().partners)
        tried = tried[tried[:, 1] >= shared]
        gains = merge_gains(state.table[tried[:, 0]], state.table[tried[:, 1]], learner, rule)
        state, _ = merged(state, tried[[np.argmax(gains)]], learner, shared)
    return state
