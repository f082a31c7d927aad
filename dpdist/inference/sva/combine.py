"""Processing rows in blocks, and combining passes that ran in parallel.

Components that the passes share are added; others are merged if the evidence increases.
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
    """Process blocks of rows, and examine the components whenever a check is due.

    Parameters
    ----------
    blocks : prepared rows (n, D) and their weights (n,)
    state : where to continue
    fixed : number of leading components that are not pruned or merged with each other
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
    """The combined result of passes over several partitions that all started from `base`.

    The first components of every part are those of `base`; the changes of all parts are summed. The other components of
    a later part are merged with those of earlier parts while that raises the log joint probability. Adjacent parts are
    combined first, then adjacent results, so the outcome depends only on the parts' order.
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
    """Overlaps of both sides' components; for shared components, the changes of both sides are added."""
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
    """Merge components from `split` on with earlier ones, best pairs first, until no merge gains."""
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
    """Merge the best pairs, even at a loss, until their number is allowed; no two of the first `shared` components.

    Parts that each opened a few components may have too many in total.
    """
    while rule.max_components is not None and len(state.table) > rule.max_components:
        tried = likely_pairs(learner.affinity(state.table), EvidenceTest().partners)
        tried = tried[tried[:, 1] >= shared]
        gains = merge_gains(state.table[tried[:, 0]], state.table[tried[:, 1]], learner, rule)
        state, _ = merged(state, tried[[np.argmax(gains)]], learner, shared)
    return state
