"""A fixed binary tree of sums, in which replacing a leaf recomputes log2(leaves) nodes.

The bits of the root depend only on the leaves, not on the order in which they were replaced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from dpdist.models.sufficient_statistics import Addable

Total = TypeVar("Total", bound=Addable)


def total_of(root: Total, start: Total | None, share: float) -> Total:
    """The root plus `share` times the start, if there is one."""
    return root if start is None else root + start.scaled(share)


class Sums(ABC, Generic[Total]):
    """Batch summaries, one per batch, and their sum in a tree of fixed shape."""

    @property
    @abstractmethod
    def batch_summaries(self) -> tuple[Any, ...]:
        """The leaves in order, wherever their numbers are stored."""

    @property
    @abstractmethod
    def root(self) -> Total:
        """The sum of all leaves."""

    @abstractmethod
    def total(self, start: Any, share: float) -> Any:
        """The total from which a posterior is computed, wherever that is: the root, plus `share` times any `start`."""

    @abstractmethod
    def replace(self, index: int, batch_summary: Any) -> None:
        """Put `batch_summary` at `index` and recompute the sums above it."""

    @abstractmethod
    def numbers(self, batch_summary: Any) -> Total:
        """The batch summary of a leaf in memory."""


class SumTree(Sums[Total]):
    """Sums of `batch_summaries` in memory."""

    def __init__(self, batch_summaries: Sequence[Total]) -> None:
        self._levels: list[list[Total]] = [list(batch_summaries)]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            self._levels.append([_pair(below, i) for i in range((len(below) + 1) // 2)])

    @property
    def batch_summaries(self) -> tuple[Total, ...]:
        return tuple(self._levels[0])

    @property
    def root(self) -> Total:
        return self._levels[-1][0]

    def total(self, start: Total | None, share: float) -> Total:
        return total_of(self.root, start, share)

    def replace(self, index: int, batch_summary: Total) -> None:
        self._levels[0][index] = batch_summary
        for level in range(1, len(self._levels)):
            index //= 2
            self._levels[level][index] = _pair(self._levels[level - 1], index)

    def numbers(self, batch_summary: Total) -> Total:
        return batch_summary


def _pair(below: list[Total], index: int) -> Total:
    left = below[2 * index]
    return left + below[2 * index + 1] if 2 * index + 1 < len(below) else left
