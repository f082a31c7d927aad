"""How the summaries of batches become the total that the next posterior is made from.

Batch, memoized and stochastic inference differ in nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from dpdist.core.randomness import generator
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.schedules.tree import Sums
from dpdist.inference.state import State

#: Most batches where nobody says how many: more would hold little each, and all have to be kept.
MOST_BATCHES = 40


class Ledger(ABC):
    """The running account of one lap; mutable, owned by the loop.

    Parameters
    ----------
    sums : of the batch summaries
    """

    def __init__(self, sums: Sums) -> None:
        self.sums = sums

    @abstractmethod
    def fold(self, batch: int, batch_summary: Any) -> None:
        """Take in the summary of a batch just visited, wherever its numbers are."""

    @abstractmethod
    def total(self) -> Any:
        """What the next posterior is made from, wherever its numbers are."""

    def running(self) -> BatchSummary | None:
        """A total that is no sum of batch summaries, for the state; None where there is none."""
        return None


class Schedule(ABC):
    """A rule for turning batches into totals; subclasses are frozen dataclasses.

    Attributes
    ----------
    batches : int, groups of partitions visited under one posterior each, fewer if there are fewer partitions; or None
        for as many as :meth:`in_batches` is told
    lookahead : int, batches that start before the one before them is folded in
    """

    name: str
    batches: int | None
    lookahead: int
    #: Whether components may be split, merged or deleted.
    moves: bool = True

    def in_batches(self, number: int) -> Self:
        """The same schedule, with a `number` of batches if none was asked for."""
        return replace(self, batches=number) if self.batches is None else self  # type: ignore[type-var]

    @abstractmethod
    def open(self, state: State, batch_rows: Sequence[float], sums: Sums) -> Ledger:
        """The account of the lap that a state stands in.

        Parameters
        ----------
        state : its lap is under way, or about to start
        batch_rows : of each batch, by weight
        sums : of its batch summaries
        """

    def order(self, lap: int, seed: int, batches: int) -> tuple[int, ...]:
        """In which order a lap visits the batches."""
        return tuple(int(batch) for batch in generator(seed, "wave order", lap).permutation(batches))
