"""Forecast of the seconds and bytes of a run, from unit costs and its shape, by a simulation of its queue.

The coordinator launches the batches of a lap one after another, each when the batch `lookahead + 1` before it is
complete; it does one thing at a time. Its tasks pass the scheduler one at a time, and then wait in one queue for W
workers. With tasks of t seconds that arrive at a_n, in order, the n-th ends at

    d_n = max(a_n, d_{n-W}) + t

so idle and busy times of workers and batches are simulated, not averaged. The sums of a batch are added in a tree of
tasks and reach the coordinator, which processes batches one after another. If all processes share the cores of one
machine, W is at most the number of cores, and a lap takes at least the time that these cores need for all work. The
forecast assumes that every operation takes as long as it did in the calibration.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from dpdist.execution.base import FAN_IN
from dpdist.execution.grouping import group_size
from dpdist.inference.mixture.footprint import ENDING, JUDGED, JUDGING
from dpdist.inference.mixture.kept import MEMO_BYTES
from dpdist.inference.schedules.memoized import LOOKAHEAD
from dpdist.runs.cadence import CHECKPOINT_SECONDS, SHARE
from dpdist.runs.planning.costs import UnitCosts
from dpdist.storage.memo import PACK_BYTES


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


#: Causes of cost, and the unit costs that belong to each.
CAUSES = {
    "the local step of the rows": ("row", "row_component", "candidate_row"),
    "sending sums to the coordinator": ("add",),
    "the coordinator, which computes posteriors and moves": ("global_step", "lap_end", "submit"),
    "the search for moves": ("search",),
    "the scheduler, which assigns tasks one by one": ("task", "round_trip"),
    "reading the rows": ("read_seconds",),
}
#: Rates that belong to each cause.
RATES = {"sending sums to the coordinator": ("transfer",), "reading the rows": ("read_rate", "store_rate")}
#: Least share of a lap that a suggested change must save.
WORTH = 0.05
#: Number of transfers of sampled rows: to the coordinator, and to the workers that search for moves.
SENT = 3


class LapCost(NamedTuple):
    """The cost of a lap.

    Parameters
    ----------
    seconds : wall time
    busy : seconds of work, summed over workers
    """

    seconds: float
    busy: float


class Change(NamedTuple):
    """A possible change of settings, and the seconds of a lap with it."""

    what: str
    seconds: float


class Forecast(NamedTuple):
    """The forecast cost of a run.

    Parameters
    ----------
    lap, dense_lap : seconds of an average lap, and of a lap that evaluates all components for every row
    share : share of the workers' time spent in tasks
    useful_workers : number of workers that can work at a time
    coordinator, worker : bytes of memory
    checkpoint_bytes, checkpoint_seconds, checkpoint_share : of a checkpoint, and the share of the run's time for all
    bound : the main cause of a lap's time
    changes : changes that would make laps shorter
    """

    lap: float
    dense_lap: float
    share: float
    useful_workers: int
    coordinator: float
    worker: float
    checkpoint_bytes: float
    checkpoint_seconds: float
    checkpoint_share: float
    bound: str
    changes: tuple[Change, ...]

    def run(self, laps: int) -> float:
        """Seconds of a run of `laps` laps."""
        return laps * self.lap


def forecast(shape: Shape, costs: UnitCosts, workers: int) -> Forecast:
    """The forecast for a run of this shape on `workers` workers."""
    lap = mean_lap(shape, costs, workers)
    size = summary_bytes(shape, costs)
    stored = shape.batches * size + 4 * _table(shape)
    files = math.ceil(shape.batches * size / max(size, PACK_BYTES)) + 4
    writing = files * costs.write_seconds + costs.moved(stored, costs.write_rate)
    interval = max(lap.seconds, min(writing / SHARE, CHECKPOINT_SECONDS))
    return Forecast(
        lap=lap.seconds,
        dense_lap=lap_cost(shape, costs, workers, dense=True).seconds,
        share=lap.busy / (workers * lap.seconds),
        useful_workers=shape.useful_workers,
        coordinator=coordinator_bytes(shape, costs),
        worker=worker_bytes(shape, costs),
        checkpoint_bytes=stored,
        checkpoint_seconds=writing,
        checkpoint_share=writing / interval,
        bound=_bound(shape, costs, workers, lap.seconds),
        changes=tuple(_changes(shape, costs, workers, lap.seconds)),
    )


def mean_lap(shape: Shape, costs: UnitCosts, workers: int) -> LapCost:
    """The average cost over dense laps and laps with candidates."""
    dense = lap_cost(shape, costs, workers, dense=True)
    if shape.dense_every == 1 or costs.candidate_row is None:
        return dense
    few, share = lap_cost(shape, costs, workers, dense=False), 1 / shape.dense_every
    mixed = (share * a + (1 - share) * b for a, b in zip(dense, few, strict=True))
    return LapCost(*mixed)


def row_seconds(shape: Shape, costs: UnitCosts, dense: bool) -> float:
    """Seconds of the local step of a row."""
    whole = costs.row + costs.row_component * shape.components
    return whole if dense or costs.candidate_row is None else min(whole, costs.candidate_row)


def lap_cost(shape: Shape, costs: UnitCosts, workers: int, dense: bool) -> LapCost:
    """The cost of one lap, simulated batch by batch and task by task."""
    size = summary_bytes(shape, costs)
    partition = _reading(shape, costs, workers) + shape.partition_rows * row_seconds(shape, costs, dense)
    adding = costs.moved(size, costs.transfer) + (shape.batches - 1).bit_length() * size * costs.add
    fold = costs.round_trip + adding
    at_work = costs.at_work(workers)
    ends: deque[float] = deque(maxlen=at_work)  # end times of the last W tasks
    done: list[float] = []  # end time of each batch's sum
    free = scheduled = 0.0  # times at which the coordinator and the scheduler become free
    busy = own = 0.0  # seconds of work of the workers, and of these two
    folded: list[float] = []
    for batch, count in enumerate(shape.batch_partitions):
        if batch > shape.lookahead:  # the coordinator waits for an earlier batch before it launches this one
            free = max(free, done[len(folded)]) + fold
            folded.append(free)
        tasks = math.ceil(count / group_size(count, partition, workers))
        seconds = costs.task + count * partition / tasks + costs.joined(size, FAN_IN) / FAN_IN
        launching = shape.components * costs.global_step + tasks * costs.submit
        free += launching
        own += launching + tasks * costs.task + adding
        last = 0.0
        for _ in range(tasks):
            scheduled = max(scheduled, free) + costs.task
            last = max(scheduled, ends[0] if len(ends) == at_work else 0.0) + seconds
            ends.append(last)
            busy += seconds
        done.append(last + _levels(tasks) * (costs.round_trip + costs.task + costs.joined(size, FAN_IN)))
    for end in done[len(folded) :]:
        free = max(free, end) + fold
    searches, sending = shape.components * costs.search, SENT * costs.moved(shape.sample_bytes, costs.transfer)
    ending = shape.components * costs.lap_end + sending
    free, busy = free + ending + searches / min(at_work, shape.components), busy + searches
    return LapCost(max(free, costs.on_cores(busy + own + ending)), busy)


def _levels(tasks: int) -> int:
    """Number of levels of the tree that adds the results of `tasks` tasks."""
    return 0 if tasks <= 1 else 1 + _levels(-(-tasks // FAN_IN))


def _reading(shape: Shape, costs: UnitCosts, workers: int) -> float:
    """Seconds to read a partition while all workers read from one store."""
    size = shape.partition_rows * shape.row_bytes
    alone, together = costs.moved(size, costs.read_rate), workers * costs.moved(size, costs.store_rate)
    return costs.read_seconds + max(alone, together)


# Memory


def _table(shape: Shape) -> float:
    """Bytes of the statistics of all components."""
    return 8.0 * shape.columns * shape.components


def summary_bytes(shape: Shape, costs: UnitCosts) -> float:
    """Bytes of a batch summary."""
    return costs.summary_rows * _table(shape)


def coordinator_bytes(shape: Shape, costs: UnitCosts) -> float:
    """Memory of the coordinator: three copies of the sums of all batches, and the evaluation of moves.

    Sums too large for memory are in files, and count as the largest size that is held in memory.
    """
    size = summary_bytes(shape, costs)
    held = 3 * max(size, min(shape.batches * size, MEMO_BYTES))
    judging = ENDING * _table(shape) + min(JUDGING * _table(shape), 8.0 * JUDGED)
    return costs.process + held + judging + 3 * shape.sample_bytes


def worker_bytes(shape: Shape, costs: UnitCosts) -> float:
    """Memory of a worker: a partition, its blocks, the posterior, and sums in transfer."""
    block = 8.0 * shape.block_rows * (2 * shape.columns + 3 * shape.components)
    sums = (FAN_IN + 2) * summary_bytes(shape, costs) + 2 * _table(shape)
    return costs.process + 2 * shape.partition_rows * shape.row_bytes + block + sums


# The main cause


def _halved(costs: UnitCosts, cause: str) -> UnitCosts:
    """Costs with one cause halved."""
    given = {name: getattr(costs, name) for name in (*CAUSES[cause], *RATES.get(cause, ()))}
    rates = RATES.get(cause, ())
    changed = {name: (2 * value if name in rates else value / 2) for name, value in given.items() if value is not None}
    return replace(costs, **changed)


def _bound(shape: Shape, costs: UnitCosts, workers: int, seconds: float) -> str:
    """The main cause of a lap's time: the one that saves most when halved."""
    if workers > shape.useful_workers:
        return f"too few partitions to keep {workers:,} workers busy"
    saved = {cause: seconds - mean_lap(shape, _halved(costs, cause), workers).seconds for cause in CAUSES}
    return max(saved, key=lambda cause: saved[cause])


def _changes(shape: Shape, costs: UnitCosts, workers: int, seconds: float) -> Iterator[Change]:
    """The changes of settings that save at least ``WORTH`` of a lap."""
    tried: list[tuple[str, Shape, int]] = [(f"{2 * workers:,} workers", shape, 2 * workers)]
    tried += [
        (f"lookahead = {ahead}", shape.but(lookahead=ahead), workers)
        for ahead in (shape.lookahead + 1, shape.lookahead + 3)
        if LOOKAHEAD.holds(ahead)
    ]
    if shape.batches > 1:
        tried.append((f"batches = {shape.batches // 2}", shape.but(batches=shape.batches // 2), workers))
    if costs.candidate_row is not None and shape.dense_every == 1:
        tried.append(("candidates in nine of ten laps", shape.but(dense_every=10), workers))
    for what, other, count in tried:
        found = mean_lap(other, costs, count).seconds
        if found < (1 - WORTH) * seconds:
            yield Change(what, found)
