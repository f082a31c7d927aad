"""The shape of a run: its numbers of rows, columns, components, batches and partitions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The numbers that determine the cost of a run.

    Parameters
    ----------
    rows, row_bytes : number of rows, and bytes of a stored row
    columns : F, of the statistics
    components : K, assumed constant
    batches, partitions : of a lap
    lookahead : number of batches that may start before the previous one is complete
    dense_every : one lap of this many evaluates all components for every row; 1: all laps do
    block_rows : rows that a worker processes together
    sample_bytes : of the rows that moves sample
    """

    rows: int
    row_bytes: float
    columns: int
    components: int
    batches: int
    partitions: int
    lookahead: int = 0
    dense_every: int = 1
    block_rows: int = 4096
    sample_bytes: float = 0.0

    @property
    def most_partitions(self) -> int:
        """Number of partitions in the largest batch."""
        return math.ceil(self.partitions / self.batches)

    @property
    def useful_workers(self) -> int:
        """Number of workers that can work at a time."""
        return self.most_partitions * min(self.lookahead + 1, self.batches)

    @property
    def partition_rows(self) -> float:
        """Mean number of rows of a partition."""
        return self.rows / self.partitions

    @property
    def batch_partitions(self) -> list[int]:
        """Number of partitions of each batch."""
        return [len(range(batch, self.partitions, self.batches)) for batch in range(self.batches)]

    def but(self, **changed: int) -> Shape:
        """A copy with some numbers changed."""
        return replace(self, **changed)
