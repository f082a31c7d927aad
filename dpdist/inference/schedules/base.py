"""How the summaries of waves become the total that the next posterior is made from.

Batch, memoized and stochastic inference differ in nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from dpdist.core.randomness import generator
from dpdist.inference.mixture.local_step import Leaf
from dpdist.inference.state import State


class Ledger(ABC):
    """The running account of one lap; mutable, owned by the loop."""

    @abstractmethod
    def fold(self, wave: int, leaf: Leaf) -> None:
        """Take in the summary of a wave just visited."""

    @abstractmethod
    def total(self) -> Leaf:
        """What the next posterior is made from."""

    @abstractmethod
    def exact(self) -> Leaf:
        """The sum over all waves of their last visits."""

    @abstractmethod
    def leaves(self) -> tuple[Leaf, ...]:
        """One leaf a wave, for the state."""

    def running(self) -> Leaf | None:
        """A total that is no sum of leaves, for the state; None where there is none."""
        return None


class Schedule(ABC):
    """A rule for turning waves into totals; subclasses are frozen dataclasses.

    Attributes
    ----------
    waves : int, groups of partitions visited under one posterior each; fewer if there are fewer partitions
    lookahead : int, 0 or 1: waves that may start before the one before them is folded in
    """

    name: str
    waves: int
    lookahead: int
    #: Whether components may be split, merged or deleted.
    moves: bool = True

    @abstractmethod
    def open(self, state: State, wave_rows: Sequence[float]) -> Ledger:
        """The account of the lap that `state` stands in; `wave_rows` holds the rows of each wave, by weight."""

    def order(self, lap: int, seed: int, waves: int) -> tuple[int, ...]:
        """In which order a lap visits the waves."""
        return tuple(int(wave) for wave in generator(seed, "wave order", lap).permutation(waves))
