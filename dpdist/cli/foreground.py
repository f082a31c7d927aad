"""Shared parts of commands that run in the foreground: choice of the backend, driving of a run, final message."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Annotated

import typer

from dpdist.cli.terminal import MESSAGES, OUTPUT
from dpdist.cluster.running import Launch, OrderedToEnd, drive, obeying_signals, outcome_of
from dpdist.core.errors import InputError
from dpdist.data import Source
from dpdist.execution import Backend, SerialBackend
from dpdist.inference.mixture.problem import Problem
from dpdist.runs.methods.base import AnyMethod
from dpdist.runs.opening import after_stop
from dpdist.runs.progress import LiveProgress, say
from dpdist.runs.run import Run

Workers = Annotated[int | None, typer.Option(min=1, help="Local worker processes. Default: one per core if faster.")]
Scheduler = Annotated[str | None, typer.Option(help="Address of a running Dask scheduler, such as tcp://host:8786.")]
Serial = Annotated[bool, typer.Option("--serial", help="Run in this process, without Dask; same results.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
_SECONDS = typer.Option(
    min=0, help="Longest time between checkpoints, in seconds; shorter if they cost less than 3 % of the run."
)
CheckpointSeconds = Annotated[float, _SECONDS]
ResumedSeconds = Annotated[float | None, _SECONDS]
#: Estimate of a lap from the shape of the data alone: number of components, seconds per value of a row and component,
#: and number of non-zero values of a sparse row.
COMPONENTS, NUMBER_SECONDS, ENTRIES = 50, 1.5e-8, 100
#: Overhead of the tasks of a lap on a local cluster, in seconds.
TASK_SECONDS = 1.5

Out = Annotated[str, typer.Option(help="Folder to write to.")]

#: Messages after stopping a command that can be continued, and one that cannot.
KEPT = "finished work is kept; repeat the command to continue."
NOT_KEPT = "no results are kept; run the command again."


@contextmanager
def stopped_by_signals(what_is_there: Callable[[], str]) -> Iterator[None]:
    """Within this context, a signal ends the command with a sentence that includes `what_is_there()`."""
    try:
        with obeying_signals():
            yield
    except (KeyboardInterrupt, OrderedToEnd) as order:
        say(MESSAGES, f"stopped; {what_is_there()}")
        raise typer.Exit(order.status if isinstance(order, OrderedToEnd) else 130) from None


@contextmanager
def backend_of(
    workers: int | None,
    scheduler: str | None,
    serial: bool,
    source: Source | None = None,
    updates: int = 1,
    *,
    stopped: str,
) -> Iterator[Backend]:
    """The backend of :func:`launcher_of` while needed; a signal ends the command with a sentence that includes
    `stopped`."""
    with (
        stopped_by_signals(lambda: stopped),
        closing(launcher_of(workers, scheduler, serial, source, updates)()) as own,
    ):
        yield own


def launcher_of(
    workers: int | None, scheduler: str | None, serial: bool, source: Source | None = None, updates: int = 1
) -> Launch:
    """A function that starts the requested cluster; by default this process if the work is small, with a message.

    Parameters
    ----------
    workers, scheduler, serial : options of the command
    source : the data; None for work that is always for a cluster
    updates : number of updates of each row in a lap
    """
    if serial and (scheduler is not None or workers is not None):
        raise InputError("--serial runs in this process; leave out --workers and --scheduler, or leave out --serial.")
    if scheduler is not None and workers is not None:
        raise InputError("--workers starts a local cluster, but --scheduler uses an existing one; leave out one.")
    if serial:
        return SerialBackend
    if workers is None and scheduler is None and source is not None:
        return _chosen(lap_seconds(source, updates), len(os.sched_getaffinity(0)))
    return partial(_started, workers, scheduler)


def _started(workers: int | None = None, scheduler: str | None = None) -> Backend:
    """A connection to a running cluster, or a new local one; Dask, which takes long to import, is imported here."""
    from dpdist.execution.connecting import connect, local_backend

    expect_losses()
    return local_backend(workers) if scheduler is None else connect(scheduler)


def expect_losses() -> None:
    """Suppress the messages of Dask's clients about a lost scheduler, which is told of in other words; importing Dask
    sets levels, so this is called afterwards."""
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)


def _chosen(seconds: float, cores: int) -> Launch:
    """The faster of a local cluster and this process, which give the same bits."""
    pays = cluster_pays(seconds, cores)
    here = f"in this process, which is faster for little work; give --workers {cores} for a local cluster."
    there = f"on a local cluster of {cores} workers; give --serial to use this process, with the same results."
    say(MESSAGES, f"running {there if pays else here}")
    return _started if pays else SerialBackend


def lap_seconds(source: Source, updates: int = 1) -> float:
    """Estimated seconds of a lap in one process, from the shape of the data alone."""
    rows, columns = source.shape
    numbers = rows * (min(columns, ENTRIES) if source.sparse else columns)
    return numbers * updates * COMPONENTS * NUMBER_SECONDS


def cluster_pays(seconds: float, cores: int) -> bool:
    """Whether a lap that takes `seconds` in one process is faster on a local cluster with one worker per core."""
    return seconds / cores + TASK_SECONDS < seconds


def way_on(method: AnyMethod) -> str:
    """What can be done with a run of this method that has ended."""
    return "give --max-laps or --max-time to continue" if method.endless else "add more data with: dpdist extend"


def drive_here(prepare: Callable[[Backend], Run], launch: Launch, path: str, moved: str | None = None) -> None:
    """Drive a run to its end in the foreground; a signal ends it after a last checkpoint. `moved` is the new path of
    the data, if it changed."""
    with stopped_by_signals(partial(after_stop, path)), LiveProgress(MESSAGES) as progress:
        run = drive(prepare, launch, progress)
    named, going_on = shlex.quote(path), ""
    if run.warning is not None:
        more = f"--max-laps {2 * len(run.history.laps)}" + ("" if moved is None else f" --data {shlex.quote(moved)}")
        going_on = f" It has not converged; continue with: dpdist resume {named} {more}."
    say(OUTPUT, f"{outcome_of(run)}{going_on}{_advice(run)} See details with: dpdist show {named}")


def _advice(run: Run) -> str:
    """A suggestion if a fit of real rows found only one cluster."""
    assert run.fitted is not None, "a run ends after a lap"
    if len(run.fitted.ids) > 1 or not isinstance(run.problem, Problem) or run.problem.model.family.support is not None:
        return ""
    return " If you expect more than one cluster, try --prior clusters, and --pca 50 for many columns."
