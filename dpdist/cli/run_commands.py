"""Commands that fit or continue models: fit, sva, topics, extend, resume."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from dpdist.cli.foreground import (
    CheckpointSeconds,
    Out,
    Overwrite,
    ResumedSeconds,
    Scheduler,
    Serial,
    Workers,
    drive_here,
    launcher_of,
    way_on,
)
from dpdist.cli.options import Options, split, with_settings
from dpdist.cli.terminal import MESSAGES, OUTPUT
from dpdist.cluster.running import Launch
from dpdist.core.errors import InputError, PrecisionError
from dpdist.core.outputs import check_apart
from dpdist.data import Source
from dpdist.data.files import located
from dpdist.execution import Backend
from dpdist.runs.cadence import CHECKPOINT_SECONDS
from dpdist.runs.config import Config, read_config
from dpdist.runs.extending import prepare_extension
from dpdist.runs.methods import METHODS
from dpdist.runs.opening import (
    being_prepared,
    check_limits,
    end_of,
    gone_on,
    open_run,
    rows_for,
    run_to_resume,
    source_of,
)
from dpdist.runs.progress import say
from dpdist.runs.run import Run
from dpdist.runs.specs.mixture import STARTS
from dpdist.storage.commits import claim

Rows = Annotated[
    str | None,
    typer.Argument(
        help="Rows, as Zarr or files such as .csv, .parquet and .npy; may be set in the file of --config instead."
    ),
]
Corpus = Annotated[
    str | None, typer.Argument(help="Corpus of dpdist corpus; may be set in the file of --config instead.")
]
ConfigFile = Annotated[Path | None, typer.Option(help="TOML file with settings; options override them.")]
Columns = Annotated[list[str] | None, typer.Option(help="Columns to take from the data files, separated by commas.")]
Drop = Annotated[list[str] | None, typer.Option(help="Columns to leave out of the data files, separated by commas.")]
Holdout = Annotated[
    str | None, typer.Option(help="Rows that are not fitted but scored after every lap, or after rounds of a pass.")
]


@with_settings("fit")
def fit(
    options: Options,
    data: Rows = None,
    out: Out = "run.zarr",
    config: ConfigFile = None,
    holdout: Holdout = None,
    checkpoint_seconds: CheckpointSeconds = CHECKPOINT_SECONDS,
    workers: Workers = None,
    scheduler: Scheduler = None,
    columns: Columns = None,
    drop: Drop = None,
    serial: Serial = False,
    overwrite: Overwrite = False,
) -> None:
    """Fit a Dirichlet-process mixture; checkpoints are written as often as they are cheap."""
    places = {"data": data, "holdout": holdout, "columns": split(columns), "drop": split(drop)}
    told = _told("fit", config, {**options, **places})
    _make(told, out, overwrite, checkpoint_seconds, partial(launcher_of, workers, scheduler, serial))


@with_settings("sva")
def sva(
    options: Options,
    data: Rows = None,
    out: Out = "model.zarr",
    config: ConfigFile = None,
    holdout: Holdout = None,
    checkpoint_seconds: CheckpointSeconds = CHECKPOINT_SECONDS,
    workers: Workers = None,
    scheduler: Scheduler = None,
    columns: Columns = None,
    drop: Drop = None,
    serial: Serial = False,
    overwrite: Overwrite = False,
) -> None:
    """Cluster in one pass over the rows (sequential variational approximation)."""
    places = {"data": data, "holdout": holdout, "columns": split(columns), "drop": split(drop)}
    told = _told("sva", config, {**options, **places})
    _make(told, out, overwrite, checkpoint_seconds, partial(launcher_of, workers, scheduler, serial))


@with_settings("topics")
def topics(
    options: Options,
    data: Corpus = None,
    out: Out = "topics.zarr",
    config: ConfigFile = None,
    checkpoint_seconds: CheckpointSeconds = CHECKPOINT_SECONDS,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
    overwrite: Overwrite = False,
) -> None:
    """Fit a hierarchical Dirichlet process topic model; checkpoints are written as often as they are cheap."""
    told = _told("topics", config, {**options, "data": data})
    _make(told, out, overwrite, checkpoint_seconds, partial(launcher_of, workers, scheduler, serial))


def _told(command: str, config: Path | None, options: Options) -> Config:
    """The configuration of a command, including its data."""
    told = read_config(command, config, {name: value for name, value in options.items() if value is not None})
    if told.data is None:
        raise InputError(
            f"{command} needs data: give their path, as in dpdist {command} data.zarr, or set data in the file."
        )
    return told


def _make(told: Config, out: str, overwrite: bool, seconds: float, launch_for: Callable[[Source, int], Launch]) -> None:
    """Fit the model of a configuration, after claiming the output."""
    assert told.data is not None, "the configuration has data"
    others = (told.holdout, told.tables.get("initial"))
    claim(out, overwrite)
    check_apart(out, told.data, *(each for each in others if isinstance(each, str) and each not in STARTS))
    source, tries = told.source(), count()

    def prepare(backend: Backend) -> Run:
        if next(tries) and being_prepared(out) is not None:  # the cluster was lost during the preparation
            return gone_on(out, source, backend, checkpoint_seconds=seconds)
        run = told.prepare(source, out, overwrite, backend)
        run.checkpoint_seconds = seconds
        return run

    drive_here(prepare, launch_for(source, METHODS[told.spec.method].updates), out)


def extend(
    model: Annotated[str, typer.Argument(help="A model of dpdist sva or dpdist fit.")],
    data: Annotated[str, typer.Argument(help="New rows, as Zarr or files such as .csv, .parquet and .npy.")],
    out: Annotated[
        str | None, typer.Option(help="Folder for the result. Default: the model itself, if it is from dpdist sva.")
    ] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
    overwrite: Overwrite = False,
    again: Annotated[bool, typer.Option("--again", help="Add rows again that the model already includes.")] = False,
    give_up: Annotated[
        bool,
        typer.Option(
            "--give-up", help="Discard an unfinished extension with its rows, and extend the model before it."
        ),
    ] = False,
) -> None:
    """Extend a model with new rows, without reading the rows that it was fitted to."""
    source = rows_for(open_run(model), data)
    settings = {"data": located(data), "holdout": None}
    launch = launcher_of(workers, scheduler, serial, source)
    try:
        drive_here(
            lambda backend: prepare_extension(model, source, backend, out, overwrite, settings, again, give_up),
            launch,
            out or model,
        )
    except PrecisionError:
        if out is None:
            discard = f"dpdist extend {shlex.quote(model)} OTHER --give-up"
            say(MESSAGES, f"the model remains readable; to discard this extension, give other rows with: {discard}")
        raise


def resume(
    run: Annotated[str, typer.Argument(help="A run of dpdist fit, sva, topics or extend.")],
    data: Annotated[str | None, typer.Option(help="New path of the data, if they have moved.")] = None,
    holdout: Annotated[str | None, typer.Option(help="New path of the held-out rows, if they have moved.")] = None,
    max_laps: Annotated[int | None, typer.Option(help="New limit on all laps of the run (fit, topics).")] = None,
    max_time: Annotated[float | None, typer.Option(help="New limit on seconds from now (fit, topics).")] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="TOML file of a cluster: continue as a separate job, as with dpdist submit.")
    ] = None,
    checkpoint_seconds: ResumedSeconds = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
) -> None:
    """Continue a run where it stopped; the result is the same to the bit."""
    if cluster is not None:
        if serial or scheduler is not None or workers is not None:
            raise InputError("--cluster says where the run continues; leave out --workers, --scheduler and --serial.")
        from dpdist.cli.job_commands import resume_on

        resume_on(run, cluster, max_laps, max_time, data, holdout, checkpoint_seconds)
        return
    found = run_to_resume(run)
    method = METHODS[found.method]
    check_limits(method.command, run, max_laps, max_time)
    if (ended := end_of(found)) is not None and max_laps is None and max_time is None:
        say(OUTPUT, f"{run} has ended ({ended}); {way_on(method)}.")
        return
    source = source_of(found, data)
    seconds = CHECKPOINT_SECONDS if checkpoint_seconds is None else checkpoint_seconds
    prepare = partial(
        gone_on, run, source, max_laps=max_laps, max_time=max_time, holdout=holdout, checkpoint_seconds=seconds
    )
    drive_here(prepare, launcher_of(workers, scheduler, serial, source, method.updates), run, data)
