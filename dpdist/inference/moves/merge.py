"""Merge: two components become one; only the entropy of the pair needs a lap to be measured.

Candidates are ranked by the change of A + A_alloc. Entropy can only lower that sum, so a pair whose sum is
negative cannot gain. Source: the merges of Hughes & Sudderth (2013).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.inference.moves.base import Trial
from dpdist.kernels.softmax import pair_entropy
from dpdist.models.mixture import Block, Model
from dpdist.models.sufficient_statistics import Summary

#: Pair evidences are computed in chunks of about this many numbers.
_CHUNK = 4_000_000


@dataclass(frozen=True, eq=False)
class Merges(Trial):
    """Pairs of components that may become one.

    Parameters
    ----------
    pairs : (P, 2) intp
    """

    pairs: np.ndarray

    kind = "merge"

    def __len__(self) -> int:
        return len(self.pairs)

    def blank(self, columns: int) -> Summary:
        return Summary.zeros(0, columns, len(self))

    def measure(self, block: Block) -> Summary:
        entropy = np.zeros(len(self))
        first, second = np.ascontiguousarray(self.pairs.T)
        pair_entropy(block.resp, block.weights, first, second, entropy)
        return Summary(np.zeros((0, block.features.shape[1])), entropy)

    def removed(self, proposal: int) -> tuple[int, ...]:
        first, second = self.pairs[proposal]
        return int(first), int(second)

    def replacement(self, proposal: int, summary: Summary, measured: Summary) -> Summary:
        pair = self.pairs[proposal]
        entropy = summary.entropy[pair].sum() + measured.entropy[proposal]
        return Summary(summary.stats[pair].sum(axis=0, keepdims=True), np.array([entropy]))

    def heirs(self, proposal: int, summary: Summary, measured: Summary) -> tuple[int, ...]:
        first, second = self.removed(proposal)
        return (first if summary.counts[first] >= summary.counts[second] else second,)


def pair_gains(model: Model, total: Summary) -> np.ndarray:
    """Change of A + A_alloc for every pair, (K, K), upper triangle; entropy apart, so an upper bound of the gain."""
    components = len(total.entropy)
    gains = np.full((components, components), -np.inf)
    first, second = np.triu_indices(components, 1)
    evidence = model.family.log_evidence(total.stats)
    shared = model.allocation.merge_gains(total.counts)
    step = max(1, _CHUNK // total.stats.shape[1])
    for start in range(0, len(first), step):
        a, b = first[start : start + step], second[start : start + step]
        joint = model.family.log_evidence(total.stats[a] + total.stats[b])
        gains[a, b] = joint - evidence[a] - evidence[b] + shared[a, b]
    return gains


def propose_merges(gains: np.ndarray, limit: int) -> Merges:
    """The at most `limit` pairs of highest bound above zero, best first."""
    first, second = np.nonzero(gains > 0)
    best = np.argsort(-gains[first, second], kind="stable")[:limit]
    return Merges(np.stack([first[best], second[best]], axis=1).astype(np.intp))
