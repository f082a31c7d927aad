"""Merge: two components become one; only the entropy of the pair takes a lap to measure.

Candidates are ranked by the change of A + A_alloc. Entropy can only lower that sum, so a pair with a negative sum
cannot gain. Source: the merges of Hughes & Sudderth (2013).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dpdist.core.checks import whole
from dpdist.core.settings import check_settings, documented, setting
from dpdist.core.stored import Stored
from dpdist.inference.moves.accept import Verdict
from dpdist.inference.moves.base import Following, LapEnd, Move, Proposals
from dpdist.kernels.softmax import pair_entropy
from dpdist.models.mixture import Block
from dpdist.models.sufficient_statistics import Summary


@dataclass(frozen=True, eq=False)
class Merges(Proposals):
    """Pairs of components (P, 2) that may be merged."""

    pairs: Annotated[np.ndarray, Stored(("merge", "pair"), "components that may be merged")]

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


def propose_merges(gains: np.ndarray, limit: int) -> Merges:
    """At most `limit` pairs with the highest positive `gains`, best first."""
    first, second = np.nonzero(gains > 0)
    best = np.argsort(-gains[first, second], kind="stable")[:limit]
    return Merges(np.stack([first[best], second[best]], axis=1).astype(np.intp))


@documented
@dataclass(frozen=True)
class Merge(Move[Merges]):
    """Make one component of two."""

    pairs: int = setting(4, whole(0), "Largest number of pairs measured per lap, as a multiple of K.")

    def __post_init__(self) -> None:
        check_settings(self, " of Merge")

    def none(self) -> Merges:
        return Merges(np.zeros((0, 2), dtype=np.intp))

    def propose(
        self, end: LapEnd, before: Merges, verdicts: Sequence[Verdict], others: Sequence[Proposals]
    ) -> Following:
        components = len(end.ids)
        if components < 2:
            return Following(self.none())
        return Following(propose_merges(end.pair_gains, self.pairs * components))
