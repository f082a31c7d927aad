"""What commands that run here have in common: where they run, how work is driven, what is said at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer

from dpdist.cluster.running import (
    Launch,
    OrderedToEnd,
    drive,
    obeying_signals,
    outcome_of,
)
from dpdist.cluster.terminal import MESSAGES, OUTPUT
from dpdist.core.errors import InputError
from dpdist.data import Source
from dpdist.execution import Backend, SerialBackend
from dpdist.runs.progress import LiveProgress
from dpdist.runs.run import Run

Workers = Annotated[int | None, typer.Option(min=1, help="Local worker processes. Default: one a core.")]
Scheduler = Annotated[str | None, typer.Option(help="Address of a running Dask scheduler, as tcp://host:8786.")]
Serial = Annotated[bool, typer.Option("--serial", help="Run in this process, without Dask; same results.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
CheckpointSeconds = Annotated[
    float,
    typer.Option(min=0, help="Longest time between checkpoints, seconds; sooner where they cost below 3 % of the run."),
]
#: What a lap is expected to take, before anything but the data's shape is known: components, seconds for each number of
#: a row and component, and the numbers of a sparse row that are not zero.
COMPONENTS, NUMBER_SECONDS, ENTRIES = 50, 1.5e-8, 100
#: Seconds that the tasks of a lap take on a local cluster beside their work.
TASK_SECONDS = 1.5

Out = Annotated[str, typer.Option(help="Folder to write to.")]


@contextmanager
def backend_of(
    workers: int | None, scheduler: str | None, serial: bool, source: Source | None = None, updates: int = 1
) -> Iterator[Backend]:
    """What :func:`launcher_of` starts, while it is needed."""
    backend = launcher_of(workers, scheduler, serial, source, updates)()
    try:
        yield backend
    finally:
        backend.close()


def launcher_of(
    workers: int | None, scheduler: str | None, serial: bool, source: Source | None = None, updates: int = 1
) -> Launch:
    """What starts the cluster asked for; where nothing was, this process does small work, and says so.

    Parameters
    ----------
    workers, scheduler, serial : as asked for
    source : the data of the work; None for work that is for a cluster in any case
    updates : of each row, in a lap
    """
    if serial and (scheduler is not None or workers is not None):
        raise InputError("--serial runs in this process; leave out --workers and --scheduler, or leave out --serial.")
    if scheduler is not None and workers is not None:
        raise InputError("--workers starts a local cluster; leave it out with --scheduler, whose workers are its own.")
    if serial:
        return SerialBackend
    if scheduler is not None:
        return partial(_connected, scheduler)
    if workers is None and source is not None:
        return _chosen(lap_seconds(source, updates), len(os.sched_getaffinity(0)))
    return partial(_started, workers)


def _connected(scheduler: str) -> Backend:
    """A running cluster; Dask, which takes long to import, is imported here by those who need it."""
    from dpdist.execution.connecting import connect

    return connect(scheduler)


def _started(workers: int | None = None) -> Backend:
    """A local cluster."""
    from dpdist.execution.connecting import local_backend

    return local_backend(workers)


def _chosen(seconds: float, cores: int) -> Launch:
    """Where work runs that may run anywhere, to the same bits."""
    if cluster_pays(seconds, cores):
        _tell(f"running on a local cluster of {cores} workers; with --serial in this process, to the same bits.")
        return _started
    _tell(f"running in this process, which is faster for so little work; with --workers {cores} on a local cluster.")
    return SerialBackend


def lap_seconds(source: Source, updates: int = 1) -> float:
    """Seconds that a lap over data may take in one process, judged by their shape alone."""
    rows, columns = source.shape
    numbers = rows * (min(columns, ENTRIES) if source.sparse else columns)
    return numbers * updates * COMPONENTS * NUMBER_SECONDS


def cluster_pays(seconds: float, cores: int) -> bool:
    """Whether a lap of so many seconds in one process is shorter on a local cluster with a worker a core."""
    return seconds / cores + TASK_SECONDS < seconds


def _tell(sentence: str) -> None:
    MESSAGES.print(sentence, highlight=False, soft_wrap=True)


def drive_here(prepare: Callable[[Backend], Run[Any]], launch: Launch, path: str) -> None:
    """Run to the end, here; a signal ends it after a last checkpoint."""
    with _ending_well(path), LiveProgress(MESSAGES) as progress:
        run = drive(prepare, launch, progress)
    told = f"{outcome_of(run)} Look closer with: dpdist show {path}"
    OUTPUT.print(told, highlight=False, soft_wrap=True)


@contextmanager
def _ending_well(run: str) -> Iterator[None]:
    try:
        with obeying_signals():
            yield
    except (KeyboardInterrupt, OrderedToEnd) as order:
        MESSAGES.print(f"stopped; nothing is lost. Go on with: dpdist resume {run}", highlight=False, soft_wrap=True)
        raise typer.Exit(order.status if isinstance(order, OrderedToEnd) else 130) from None


def data_of(kept: str | None, moved: str | None) -> str:
    """Where a run's data are: where they moved to, or as it kept it."""
    path = moved or kept
    if path is None:
        raise InputError("the run's data were in memory; go on from Python, or give --data.")
    return path
