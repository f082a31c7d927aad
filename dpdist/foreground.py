"""What commands that run here have in common: where they run, how work is driven, what is said at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from dpdist.backends import Backend, SerialBackend
from dpdist.backends.dask import connect, local_backend
from dpdist.errors import InputError
from dpdist.fitting import Fit
from dpdist.passing import PassFit
from dpdist.progress import LiveProgress, PassProgress
from dpdist.running import (
    Launch,
    OrderedToEnd,
    Shown,
    drive,
    fit_course,
    fit_outcome,
    obeying_signals,
    pass_course,
    pass_outcome,
)

#: Where results and messages are printed.
OUTPUT, MESSAGES = Console(), Console(stderr=True)

Workers = Annotated[int | None, typer.Option(min=1, help="Local worker processes. Default: one a core.")]
Scheduler = Annotated[str | None, typer.Option(help="Address of a running Dask scheduler, as tcp://host:8786.")]
Serial = Annotated[bool, typer.Option("--serial", help="Run in this process, without Dask; same results.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
CheckpointEvery = Annotated[
    float, typer.Option(min=0, help="Longest time between checkpoints, in seconds; there is one a lap in any case.")
]
Out = Annotated[str, typer.Option(help="Folder to write to.")]


@contextmanager
def backend_of(workers: int | None, scheduler: str | None, serial: bool) -> Iterator[Backend]:
    """The cluster asked for, while it is needed."""
    backend = launcher_of(workers, scheduler, serial)()
    try:
        yield backend
    finally:
        backend.close()


def launcher_of(workers: int | None, scheduler: str | None, serial: bool) -> Launch:
    """What starts the cluster asked for."""
    if serial and (scheduler is not None or workers is not None):
        raise InputError("--serial runs in this process; leave out --workers and --scheduler, or leave out --serial.")
    if scheduler is not None and workers is not None:
        raise InputError("--workers starts a local cluster; leave it out with --scheduler, whose workers are its own.")
    if serial:
        return SerialBackend
    return partial(connect, scheduler) if scheduler else partial(local_backend, workers)


def drive_fit(prepare: Callable[[Backend], Fit], launch: Launch, run: str) -> None:
    """Run a fit to its end, here; a signal ends it after a last checkpoint."""
    with _ending_well(run), LiveProgress(MESSAGES) as progress:
        fit = drive(fit_course(prepare), launch, Shown(progress))
    _tell_outcome(fit_outcome(fit.fitted), run)


def drive_pass(prepare: Callable[[Backend], PassFit], launch: Launch, out: str) -> None:
    """Run a pass to its end, here; a signal ends it after a last checkpoint."""
    with _ending_well(out), PassProgress(MESSAGES) as progress:
        work = drive(pass_course(prepare), launch, Shown(progress))
    _tell_outcome(pass_outcome(work.state, work.history), out)


@contextmanager
def _ending_well(run: str) -> Iterator[None]:
    try:
        with obeying_signals():
            yield
    except (KeyboardInterrupt, OrderedToEnd) as order:
        MESSAGES.print(f"stopped; nothing is lost. Go on with: dpdist resume {run}", highlight=False, soft_wrap=True)
        raise typer.Exit(order.status if isinstance(order, OrderedToEnd) else 130) from None


def _tell_outcome(sentence: str, run: str) -> None:
    OUTPUT.print(f"{sentence} Look closer with: dpdist show {run}", highlight=False, soft_wrap=True)


def data_of(kept: str | None, moved: str | None) -> str:
    """Where a run's data are: where they moved to, or as it kept it."""
    path = moved or kept
    if path is None:
        raise InputError("the run's data were in memory; go on from Python, or give --data.")
    return path
