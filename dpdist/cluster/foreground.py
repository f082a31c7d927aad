"""What commands that run here have in common: where they run, how work is driven, what is said at the end."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Annotated

import typer

from dpdist.cluster.running import Launch, OrderedToEnd, drive, obeying_signals, outcome_of
from dpdist.cluster.terminal import MESSAGES, OUTPUT
from dpdist.core.errors import InputError
from dpdist.data import Source
from dpdist.execution import Backend, SerialBackend
from dpdist.inference.mixture.problem import Problem
from dpdist.runs.methods.base import AnyMethod
from dpdist.runs.opening import after_stop
from dpdist.runs.progress import LiveProgress, say
from dpdist.runs.run import Run

Workers = Annotated[int | None, typer.Option(min=1, help="Local worker processes. Default: one a core where they pay.")]
Scheduler = Annotated[str | None, typer.Option(help="Address of a running Dask scheduler, as tcp://host:8786.")]
Serial = Annotated[bool, typer.Option("--serial", help="Run in this process, without Dask; same results.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
_SECONDS = typer.Option(
    min=0, help="Longest time between checkpoints, seconds; sooner where they cost below 3 % of the run."
)
CheckpointSeconds = Annotated[float, _SECONDS]
ResumedSeconds = Annotated[float | None, _SECONDS]
#: What a lap is expected to take, before anything but the data's shape is known: components, seconds for each number of
#: a row and component, and the numbers of a sparse row that are not zero.
COMPONENTS, NUMBER_SECONDS, ENTRIES = 50, 1.5e-8, 100
#: Seconds that the tasks of a lap take on a local cluster beside their work.
TASK_SECONDS = 1.5

Out = Annotated[str, typer.Option(help="Folder to write to.")]

#: What is there after a command was stopped that goes on with what it did, and after one that does not.
KEPT = "what was done is kept, and the same command goes on with it."
NOT_KEPT = "nothing of it is kept; give the command again."


@contextmanager
def stopped_by_signals(what_is_there: Callable[[], str]) -> Iterator[None]:
    """Within it a signal ends the command, once, with a sentence about what is there then."""
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
    """What :func:`launcher_of` starts, while it is needed; a signal ends the command, which then says what is there."""
    with (
        stopped_by_signals(lambda: stopped),
        closing(launcher_of(workers, scheduler, serial, source, updates)()) as own,
    ):
        yield own


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
    if workers is None and scheduler is None and source is not None:
        return _chosen(lap_seconds(source, updates), len(os.sched_getaffinity(0)))
    return partial(_started, workers, scheduler)


def _started(workers: int | None = None, scheduler: str | None = None) -> Backend:
    """A running cluster or a local one; Dask, which takes long to import, is imported here by those who need it."""
    from dpdist.execution.connecting import connect, local_backend

    return local_backend(workers) if scheduler is None else connect(scheduler)


def _chosen(seconds: float, cores: int) -> Launch:
    """Where work runs that may run anywhere, to the same bits."""
    pays = cluster_pays(seconds, cores)
    here = f"in this process, which is faster for so little work; with --workers {cores} on a local cluster."
    there = f"on a local cluster of {cores} workers; with --serial in this process, to the same bits."
    say(MESSAGES, f"running {there if pays else here}")
    return _started if pays else SerialBackend


def lap_seconds(source: Source, updates: int = 1) -> float:
    """Seconds that a lap over data may take in one process, judged by their shape alone."""
    rows, columns = source.shape
    numbers = rows * (min(columns, ENTRIES) if source.sparse else columns)
    return numbers * updates * COMPONENTS * NUMBER_SECONDS


def cluster_pays(seconds: float, cores: int) -> bool:
    """Whether a lap of so many seconds in one process is shorter on a local cluster with a worker a core."""
    return seconds / cores + TASK_SECONDS < seconds


def way_on(method: AnyMethod) -> str:
    """What can be done with a run of a method that has ended."""
    return "give --max-laps or --max-time to go on" if method.endless else "add others with: dpdist extend"


def drive_here(prepare: Callable[[Backend], Run], launch: Launch, path: str, moved: str | None = None) -> None:
    """Run to the end, here; a signal ends it after a last checkpoint. `moved` is where the data are now, if they were
    elsewhere."""
    with stopped_by_signals(partial(after_stop, path)), LiveProgress(MESSAGES) as progress:
        run = drive(prepare, launch, progress)
    named, going_on = shlex.quote(path), ""
    if run.warning is not None:
        more = f"--max-laps {2 * len(run.history.laps)}" + ("" if moved is None else f" --data {shlex.quote(moved)}")
        going_on = f" It has not converged: go on with: dpdist resume {named} {more}."
    say(OUTPUT, f"{outcome_of(run)}{going_on}{_advice(run)} Look closer with: dpdist show {named}")


def _advice(run: Run) -> str:
    """What may be tried where a fit of rows of real numbers found one cluster alone."""
    assert run.fitted is not None, "a run ends after a lap"
    if len(run.fitted.ids) > 1 or not isinstance(run.problem, Problem) or run.problem.model.family.support is not None:
        return ""
    return " If there should be more than one, try --prior clusters, and --pca 50 where columns are many."
