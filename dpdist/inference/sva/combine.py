"""Passes that ran side by side, made one: components they share add up, others merge where the evidence says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpdist.core.trees import join_pairwise
from dpdist.inference.sva.base import Learner, OpeningRule
from dpdist.inference.sva.opening import SVAState, merged
from dpdist.inference.sva.prune_merge import EvidenceTest, disjoint, likely_pairs, merge_gains


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
    both = replace(
        left,
        table=table,
        ids=np.concatenate([left.ids, right.ids[shared:]]),
        rows=left.rows + right.rows - base.rows,
        seen=left.seen + right.seen - base.seen,
        pruned=left.pruned + right.pruned - base.pruned,
        overlap=_joined_overlap(left, right, base),
    )
    return _merge_across(both, len(left.table), learner, rule)


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
