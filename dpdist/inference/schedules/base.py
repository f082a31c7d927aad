"""How batch summaries are combined into the total from which the next posterior is computed.

This is the only difference between batch, memoized and stochastic inference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from dpdist.core.randomness import generator
from dpdist.inference.schedules.tree import Sums
from dpdist.inference.state import State

#: Largest default number of batches: more would hold few rows each, and all of their summaries are kept.
MOST_BATCHES = 40


class Ledger(ABC):
    """The totals during one lap; mutable, owned by the loop.

    Parameters
    ----------
    sums : of the batch summaries
    """

    def __init__(self, sums: Sums[Any]) -> None:
        self.sums = sums

    @abstractmethod
    def fold(self, batch: int, batch_summary: Any) -> None:
        """Add the summary of a batch just visited, wherever its numbers are stored."""

    @abstractmethod
    def total(self) -> Any:
        """The total from which the next posterior is computed, wherever its numbers are stored."""

    def running(self) -> Any:
        """A total that is not the sum of batch summaries, for the state; None if there is none."""
        return None


class Schedule(ABC):
    """A rule that combines batch summaries into totals; subclasses are frozen dataclasses.

    Attributes
    ----------
    batches : int, number of groups of partitions, each visited under one posterior; fewer if there are fewer
        partitions; None to use the number given to :meth:`in_batches`
    lookahead : int, number of batches that start before the preceding batch is added
    """

    name: str
    batches: int | None
    lookahead: int
    #: Whether components may be split, merged or deleted.
    moves: bool = True

    def in_batches(self, number: int) -> Self:
        """The same schedule, with `number` batches if none was asked for."""
        return replace(self, batches=number) if self.batches is None else self  # type: ignore[type-var]

    @abstractmethod
    def open(self, state: State, batch_rows: Sequence[float], sums: Sums[Any]) -> Ledger:
        """The ledger of the lap of a state.

        Parameters
        ----------
        state : its lap is in progress or about to start
        batch_rows : weight of the rows of each batch
        sums : of the batch summaries
        """

    def order(self, lap: int, seed: int, batches: int) -> tuple[int, ...]:
        """Order in which a lap visits the batches."""
        return tuple(int(batch) for batch in generator(seed, "wave order", lap).permutation(batches))
