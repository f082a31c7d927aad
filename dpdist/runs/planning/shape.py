"""The shape of a run: how many rows, columns, components, batches, partitions there are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The numbers that a run's cost follows from.

    Parameters
    ----------
    rows, row_bytes : of the data, as stored
    columns : F, of the statistics
    components : K, all the while
    batches, partitions : of a lap
    lookahead : batches that start before the one before them is in
    dense_every : of so many laps one looks at every row for all components; 1: all do
    block_rows : rows that a worker takes together
    sample_bytes : of rows that moves draw
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
        """Partitions of the largest batch."""
        return math.ceil(self.partitions / self.batches)

    @property
    def useful_workers(self) -> int:
        """Workers that have something to do at a time."""
        return self.most_partitions * min(self.lookahead + 1, self.batches)

    @property
    def partition_rows(self) -> float:
        """Rows of a partition."""
        return self.rows / self.partitions

    @property
    def batch_partitions(self) -> list[int]:
        """Partitions of each batch."""
        return [len(range(batch, self.partitions, self.batches)) for batch in range(self.batches)]

    def but(self, **changed: int) -> Shape:
        """The same, but for some numbers."""
        return replace(self, **changed)
