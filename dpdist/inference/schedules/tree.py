"""A fixed binary tree of sums: replacing one leaf renews log2(leaves) nodes, and the root's bits depend on the
leaves alone, not on the order in which they came."""

from __future__ import annotations

from collections.abc import Sequence

from dpdist.inference.mixture.local_step import BatchSummary


class SumTree:
    """Sums of `batch_summaries` with a fixed shape."""

    def __init__(self, batch_summaries: Sequence[BatchSummary]) -> None:
        self._levels: list[list[BatchSummary]] = [list(batch_summaries)]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            self._levels.append([_pair(below, i) for i in range((len(below) + 1) // 2)])

    @property
    def batch_summaries(self) -> tuple[BatchSummary, ...]:
        """The leaves, in order."""
        return tuple(self._levels[0])

    @property
    def root(self) -> BatchSummary:
        """The sum of all leaves."""
        return self._levels[-1][0]

    def replace(self, index: int, batch_summary: BatchSummary) -> None:
        """Put `batch_summary` at `index` and renew the sums above it."""
        self._levels[0][index] = batch_summary
        for level in range(1, len(self._levels)):
            index //= 2
            self._levels[level][index] = _pair(self._levels[level - 1], index)


def _pair(below: list[BatchSummary], index: int) -> BatchSummary:
    left = below[2 * index]
    return left + below[2 * index + 1] if 2 * index + 1 < len(below) else left
