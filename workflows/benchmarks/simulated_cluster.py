"""Hundreds of simulated workers on one host: the real loop, backend and Dask scheduler, with visits that sleep.

    python workflows/benchmarks/simulated_cluster.py [--workers 256] [--rows 240000000] [--lookahead 0 1 2]

A visit of a partition sleeps for the time that its rows would take, varied by a tenth between partitions, and returns a
small summary. The global step and the end of a lap at the coordinator sleep, too. Partitions, batches and sums are
those of a fit of diagonal Gaussians to the given number of rows of 128 bytes. Threads of a few processes act as
workers. The result is the share of the workers' time spent in tasks, which shows how many workers the coordinator and
the scheduler can keep busy. It is compared with the lap that ``dpdist plan`` predicts from the unit costs of this
cluster, measured just before: a trivial task, its submission, a transfer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import dask
import numpy as np
from common import options
from distributed import Client, LocalCluster

from dpdist import DPMixture
from dpdist.core.randomness import generator
from dpdist.data import Source
from dpdist.data.base import Partition
from dpdist.execution.base import Backend
from dpdist.execution.dask import DaskBackend
from dpdist.execution.faults import TaskLimits
from dpdist.execution.settings import WORKER_ENVIRONMENT, environment, worker_settings
from dpdist.inference.loop import Step, Work, first_lap, next_lap, run_steps
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.local_step import Visit
from dpdist.inference.sample import Sample
from dpdist.inference.schedules import Memoized
from dpdist.inference.state import Info, State
from dpdist.models.families import DiagonalGaussian
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.methods.mixture import MemoizedMixture
from dpdist.runs.planning.calibration import cluster_costs
from dpdist.runs.planning.costs import UnitCosts
from dpdist.runs.planning.forecast import Shape, lap_cost
from dpdist.runs.planning.unwritten import UnwrittenSource

#: Bytes of a row, and how far the seconds of a partition are from what its rows take, as a share of these.
ROW_BYTES, APART = 128, 0.1
#: Components and statistics of the small summaries that travel.
COMPONENTS, COLUMNS = 50, 65
#: Seconds of a visit of a lap that is not counted.
WARM_SECONDS = 0.5
COLUMN_NAMES = (
    *("workers", "useful", "ahead", "lap", "measured (s)", "predicted (s)"),
    *("ratio", "in tasks (%)", "task (ms)", "trip (ms)"),
)


@dataclass(frozen=True)
class Seconds:
    """What everything takes: a row of a visit, the global step, the lap's end."""

    row: float
    global_step: float
    end: float

    def of(self, partition: Partition) -> float:
        """Seconds of a visit."""
        return partition.rows * self.row * (1 + APART * generator(0, "seconds", partition.index).uniform(-1, 1))


class Size(NamedTuple):
    """How large the benchmark is."""

    rows: int
    batches: int
    laps: int
    processes: int
    seconds: Seconds


FULL = Size(240_000_000, 40, 2, 4, Seconds(4e-5, 0.02, 1.0))
SMALL = Size(2_000_000, 4, 2, 2, Seconds(2e-6, 0.001, 0.01))


def visit(partition: Partition, seconds: Seconds, task: np.ndarray, known: object) -> Visit:
    """Sleep as long as the rows take; one is in the sums, so that all are counted."""
    time.sleep(seconds.of(partition))
    summary = Summary(np.ones(task.shape), np.ones(len(task)))
    return Visit(BatchSummary(summary), Sample(*(np.zeros(0) for _ in range(3)), np.zeros((0, 1))))


class Sleeping(Work):
    """Work whose every part takes its time."""

    visit = staticmethod(visit)

    def __init__(self, schedule: Memoized, seconds: Seconds) -> None:
        self.schedule, self.shared = schedule, seconds

    def task(self, state: State, total: BatchSummary) -> np.ndarray:
        """A posterior."""
        time.sleep(self.shared.global_step)
        return np.zeros((COMPONENTS, COLUMNS))

    def end(self, backend: Backend, last: Step, rows: float) -> Step:
        """The end of a lap without moves."""
        time.sleep(self.shared.end)
        state, exact = last.state, last.exact.summary
        info = Info(state.lap, 0.0, 0.0, rows, rows, COMPONENTS, state.ids, exact.counts, (), 0.0, exact)
        return last._replace(state=next_lap(self.schedule, 0, replace(state, start=None)), info=info)


@contextmanager
def cluster(workers: int, processes: int) -> Iterator[DaskBackend]:
    """Threads of a few processes, with the settings that workers have."""
    limits = TaskLimits()
    with environment(WORKER_ENVIRONMENT), dask.config.set(worker_settings(limits.stuck_after)):
        started = LocalCluster(
            n_workers=processes,
            threads_per_worker=workers // processes,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
            scheduler_kwargs={"dashboard": False},
        )
    backend = DaskBackend(Client(started, set_as_default=False), owned=True, limits=limits)
    try:
        yield backend
    finally:
        backend.close()


def laps(backend: Backend, source: Source, schedule: Memoized, size: Size) -> Iterator[float]:
    """Seconds of laps, each of which took every partition in once."""
    zero = BatchSummary(Summary.zeros(COMPONENTS, COLUMNS))
    given: dict[str, Any] = {"start": None, "proposals": (), "sampling_probabilities": np.zeros(COMPONENTS)}
    state, work = first_lap(schedule, 0, source, zero, COMPONENTS, **given), Sleeping(schedule, size.seconds)
    for step in run_steps(work, source, state, backend):
        if step.info is not None:
            assert (step.info.total.stats == len(source.partitions)).all(), "a partition was lost or counted twice"
            yield step.info.seconds
            if step.info.lap == size.laps:
                return


def warm(backend: Backend, size: Size) -> None:
    """A short lap in which every process has something to do, and so loads its code."""
    rows = UnwrittenSource(40_000, ROW_BYTES, "uint8")
    few = size._replace(laps=1, seconds=Seconds(WARM_SECONDS / rows.partitions[0].rows, 0.0, 0.0))
    list(laps(backend, rows, Memoized(1), few))


def shape_of(source: Source, schedule: Memoized) -> Shape:
    """The shape of the laps."""
    assert schedule.batches is not None, "the schedule says how many"
    return Shape(
        rows=source.shape[0],
        row_bytes=0.0,
        columns=COLUMNS,
        components=COMPONENTS,
        batches=schedule.batches,
        partitions=len(source.partitions),
        lookahead=schedule.lookahead,
    )


def costs_of(backend: Backend, seconds: Seconds) -> UnitCosts:
    """What one of each costs, tasks as measured here and now."""
    tasks = cluster_costs(backend)
    return UnitCosts(
        row=seconds.row,
        row_component=0.0,
        summary_rows=1.0,
        add=1e-9,
        global_step=seconds.global_step / COMPONENTS,
        lap_end=seconds.end / COMPONENTS,
        search=0.0,
        task=tasks.task,
        round_trip=tasks.round_trip,
        submit=tasks.submit,
        transfer=tasks.transfer,
        read_seconds=0.0,
        read_rate=None,
        write_seconds=0.0,
        write_rate=None,
        process=tasks.process,
    )


def main() -> None:
    """Run laps for each look-ahead and print the table."""
    parser = options(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=None)
    parser.add_argument("--lookahead", type=int, nargs="+", default=None)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--row-seconds", type=float, default=None)
    parser.add_argument("--laps", type=int, default=None)
    given = parser.parse_args()
    size = SMALL if given.small else FULL
    seconds = size.seconds if given.row_seconds is None else replace(size.seconds, row=given.row_seconds)
    size = size._replace(rows=given.rows or size.rows, laps=given.laps or size.laps, seconds=seconds)
    spec = DPMixture(DiagonalGaussian()).spec()
    source = MemoizedMixture().cut(spec, UnwrittenSource(size.rows, ROW_BYTES, "uint8"))
    work = sum(size.seconds.of(partition) for partition in source.partitions)
    print(f"{size.rows} rows in {len(source.partitions)} partitions and {size.batches} batches", flush=True)
    print(f"{work:.0f} s of work a lap, {work / len(source.partitions):.2f} s a partition", flush=True)
    print("  ".join(COLUMN_NAMES), flush=True)
    for workers in given.workers or ([8] if given.small else [256]):
        with cluster(workers, size.processes) as backend:
            assert backend.threads == workers, "a worker is missing"
            warm(backend, size)
            for ahead in given.lookahead or ([0, 2] if given.small else [0, 1, 2]):
                compare(backend, source, Memoized(size.batches, ahead), size, work)


def compare(backend: Backend, source: Source, schedule: Memoized, size: Size, work: float) -> None:
    """Laps beside what is predicted of them, a line each; `work` is what all visits of a lap sleep."""
    shape, workers = shape_of(source, schedule), backend.threads
    costs = costs_of(backend, size.seconds)
    predicted = lap_cost(shape, costs, workers, dense=True).seconds
    for lap, measured in enumerate(laps(backend, source, schedule, size), start=1):
        told = [workers, shape.useful_workers, schedule.lookahead, lap, f"{measured:.1f}", f"{predicted:.1f}"]
        told += [f"{predicted / measured:.2f}", f"{100 * work / (workers * measured):.0f}", f"{1e3 * costs.task:.2f}"]
        told.append(f"{1e3 * costs.round_trip:.0f}")
        line = (str(entry).rjust(len(name)) for entry, name in zip(told, COLUMN_NAMES, strict=True))
        print("  ".join(line), flush=True)


if __name__ == "__main__":  # functions travel by the name of a module that workers import, as those of a run do
    import simulated_cluster

    simulated_cluster.main()
