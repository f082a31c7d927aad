"""Overhead of Dask and of sums: the wall time of a lap compared with the time of its visits.

Partitions sleep for a fixed time and return statistics with the shapes of a run, (K, F) float64 and an entropy per
component. A lap has 20 batches with a look-ahead of one, as in the engine: the inputs of a batch are shared, its
results summed, and one sum fetched and added. The overhead is wall / (partitions * seconds / workers) - 1. In the
second table partitions are too short for Dask, and are grouped.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import numpy as np
from common import options, print_table

from dpdist.execution.base import Backend
from dpdist.execution.connecting import local_backend
from dpdist.models.sufficient_statistics import Summary

WORKERS, WAVES, AHEAD = 2, 20, 1


@dataclass(frozen=True)
class Lap:
    """A lap to be timed: partitions, seconds of each, and the shape of what each gives."""

    partitions: int
    seconds: float
    components: int
    columns: int

    @property
    def least(self) -> float:
        """Seconds if nothing but visits took any."""
        return self.partitions * self.seconds / WORKERS


FULL = [
    Lap(1000, 0.5, 50, 65),
    Lap(1000, 0.5, 100, 2145),
    Lap(4000, 0.05, 50, 65),
]
SMALL = [Lap(40, 0.05, 50, 65), Lap(80, 0.01, 20, 65)]


def visit(partition: int, task: np.ndarray, seconds: float, shape: tuple[int, int]) -> Summary:
    """Statistics of a partition, after some time."""
    ends = time.perf_counter() + seconds
    summary = Summary(np.full(shape, 1.0 + partition) + task[: shape[0], :1], np.ones(shape[0]))
    time.sleep(max(0.0, ends - time.perf_counter()))
    return summary


def run(lap: Lap, backend: Backend) -> Summary:
    """The sum over all partitions, batch after batch."""
    shared = [backend.share(i, f"partition {i}") for i in range(lap.partitions)]
    shape, total = (lap.components, lap.columns), None
    under_way: deque = deque()
    for batch in range(WAVES + AHEAD):
        refs = shared[batch::WAVES] if batch < WAVES else []
        if refs:
            task, count = backend.share(np.ones(shape)), len(refs)
            columns = [refs, [task] * count, [lap.seconds] * count, [shape] * count]
            under_way.append(backend.total(visit, *columns))
            del refs, columns, task
        if len(under_way) > AHEAD or batch >= WAVES:
            found = backend.fetch([under_way.popleft()])[0]
            total = found if total is None else total + found
    return total


def check(lap: Lap, total: Summary) -> None:
    """Every partition is in the sum once."""
    expected = lap.partitions * (lap.partitions + 1) / 2 + lap.partitions
    assert np.all(total.stats == expected), "a partition was lost or counted twice"
    assert np.all(total.entropy == lap.partitions)


def main() -> None:
    """Time the laps and print a table."""
    given = options(__doc__).parse_args()
    backend = local_backend(WORKERS)
    table = []
    try:
        for lap in SMALL if given.small else FULL:
            run(Lap(40, lap.seconds, lap.components, lap.columns), backend)  # as in a run, the lap before is known
            began = time.perf_counter()
            check(lap, run(lap, backend))
            wall = time.perf_counter() - began
            told = [lap.partitions, lap.seconds, lap.components, lap.columns]
            table.append([*told, f"{lap.least:.1f}", f"{wall:.1f}", f"{100 * (wall / lap.least - 1):.1f}"])
    finally:
        backend.close()
    print_table(["partitions", "seconds", "K", "F", "least (s)", "wall (s)", "overhead (%)"], table)


if __name__ == "__main__":
    main()
