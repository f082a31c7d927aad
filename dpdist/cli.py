"""The command line: ``dpdist fit | resume | show | predict | demo | convert``."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dpdist import __version__
from dpdist.backends import Backend, SerialBackend
from dpdist.backends.dask import connect, local_backend
from dpdist.checkpoint import Store
from dpdist.config import FitConfig, parse_config, read_config
from dpdist.errors import DpdistError, InputError
from dpdist.fitting import Fit, Limits, resumed
from dpdist.labelling import write_labels
from dpdist.prediction import MixturePredictor
from dpdist.progress import LiveProgress
from dpdist.sources import as_source
from dpdist.storage import claim

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Cluster any number of feature vectors without being told how many clusters there are.",
)
_output, _messages = Console(), Console(stderr=True)

Workers = Annotated[int | None, typer.Option(min=1, help="Local worker processes. Default: one a core.")]
Scheduler = Annotated[str | None, typer.Option(help="Address of a running Dask scheduler, as tcp://host:8786.")]
Serial = Annotated[bool, typer.Option("--serial", help="Run in this process, without Dask; same results.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
CheckpointEvery = Annotated[
    float, typer.Option(min=0, help="Longest time between checkpoints, in seconds; there is one a lap in any case.")
]
Out = Annotated[str, typer.Option(help="Folder to write to.")]


def main() -> None:
    """Entry point: errors meant for people are printed as one sentence."""
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"  # type: ignore[assignment]
    try:
        app(standalone_mode=True)
    except DpdistError as error:
        _messages.print(f"dpdist: {error}", style="red", highlight=False, soft_wrap=True, markup=False)
        sys.exit(1)
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        _messages.print(f"dpdist: {error.strerror or error}{place}", style="red", highlight=False, markup=False)
        sys.exit(1)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    if version:
        _output.print(__version__, highlight=False)
        raise typer.Exit
    if context.invoked_subcommand is None:
        _output.print(context.get_help())


@app.command()
def fit(
    data: Annotated[str | None, typer.Argument(help="Zarr array of rows; may stand in the configuration.")] = None,
    out: Out = "run.zarr",
    config: Annotated[Path | None, typer.Option(help="TOML file with settings; options override it.")] = None,
    seed: Annotated[int | None, typer.Option(help="Key of every draw. Default: 0.")] = None,
    family: Annotated[str | None, typer.Option(help="Likelihood of a cluster. Default: gaussian.")] = None,
    concentration: Annotated[float | None, typer.Option(help="Of the Dirichlet process. Default: 10.")] = None,
    initial: Annotated[str | None, typer.Option(help="First model: one or k-means++.")] = None,
    initial_components: Annotated[int | None, typer.Option(help="Clusters of a k-means++ start.")] = None,
    max_components: Annotated[int | None, typer.Option(help="Bound on the clusters. Default: none.")] = None,
    schedule: Annotated[str | None, typer.Option(help="memoized or stochastic.")] = None,
    waves: Annotated[int | None, typer.Option(help="Groups of partitions; 1 is batch inference.")] = None,
    lookahead: Annotated[int | None, typer.Option(help="0, or 1 to overlap waves.")] = None,
    pca: Annotated[int | None, typer.Option(help="Principal components to keep.")] = None,
    center: Annotated[bool | None, typer.Option("--center", help="Subtract the mean.")] = None,
    scale: Annotated[bool | None, typer.Option("--scale", help="Divide by the standard deviation.")] = None,
    compute_dtype: Annotated[str | None, typer.Option(help="float64 or float32.")] = None,
    tolerance: Annotated[float | None, typer.Option(help="ELBO change a row, in nats, that counts as none.")] = None,
    max_laps: Annotated[int | None, typer.Option(help="Passes over the data at most. Default: 100.")] = None,
    max_time: Annotated[float | None, typer.Option(help="Seconds at most.")] = None,
    checkpoint_every: CheckpointEvery = 600.0,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
    overwrite: Overwrite = False,
) -> None:
    """Fit a Dirichlet-process mixture, with a checkpoint after every lap."""
    options: dict[str, Any] = {
        "data": data,
        "seed": seed,
        "family": {"name": family},
        "concentration": concentration,
        "initial": initial,
        "initial_components": initial_components,
        "max_components": max_components,
        "schedule": {"name": schedule, "waves": waves, "lookahead": lookahead},
        "transform": {"pca": pca, "center": center, "scale": scale},
        "compute_dtype": compute_dtype,
        "tolerance": tolerance,
        "max_laps": max_laps,
        "max_time": max_time,
    }
    settings = read_config(config, options)
    if settings.data is None:
        raise InputError("fit needs data: name a Zarr array, as in dpdist fit rows.zarr, or set data in the TOML file.")
    claim(out, overwrite)
    settings = settings.model_copy(update={"data": _absolute(settings.data)})
    source = as_source(settings.data)
    with _backend(workers, scheduler, serial) as backend:
        fitting = settings.estimator().prepare(source, out, overwrite, backend, settings.model_dump())
        _drive(replace(fitting, checkpoint_seconds=checkpoint_every), out)


@app.command()
def resume(
    run: Annotated[str, typer.Argument(help="A run that dpdist fit began.")],
    data: Annotated[str | None, typer.Option(help="Where the data are now, if they moved.")] = None,
    max_laps: Annotated[int | None, typer.Option(help="New bound on the laps in all.")] = None,
    max_time: Annotated[float | None, typer.Option(help="Seconds at most from now.")] = None,
    checkpoint_every: CheckpointEvery = 600.0,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
) -> None:
    """Go on where a run stopped, to the same bits."""
    store = Store.open(run)
    settings = parse_config(store.settings)
    fitted = store.fitted()
    if fitted is not None and fitted.stop is not None and max_laps is None and max_time is None:
        _output.print(f"{run} has ended ({fitted.stop}); give --max-laps or --max-time to go on.", highlight=False)
        return
    source = as_source(_data_of(settings, data))
    limits = Limits(max_laps or settings.max_laps, max_time or settings.max_time)
    with _backend(workers, scheduler, serial) as backend:
        _drive(replace(resumed(store, source, backend, limits), checkpoint_seconds=checkpoint_every), run)


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run or a saved model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Plain values for scripts.")] = False,
) -> None:
    """Show what a run reached: K, ELBO, sizes, and the moves taken and refused, and why."""
    from dpdist.show import summary_tables, summary_values

    store = Store.open(run)
    if as_json:
        typer.echo(json.dumps(summary_values(store), indent=2))
    else:
        _output.print(summary_tables(store))


@app.command()
def predict(
    run: Annotated[str, typer.Argument(help="A run or a saved model.")],
    data: Annotated[str, typer.Argument(help="Zarr array of raw rows.")],
    out: Out = "labels.zarr",
    top: Annotated[int, typer.Option(min=1, help="Most probable components to write for each row.")] = 1,
    density: Annotated[bool, typer.Option("--density", help="Write each row's log predictive density.")] = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
    overwrite: Overwrite = False,
) -> None:
    """Label rows with the ids of their most probable components."""
    store = Store.open(run)
    fitted = store.fitted()
    if fitted is None:
        raise InputError(f"{run} holds no finished lap yet; go on with: dpdist resume {run}")
    source = as_source(data)
    problem = store.problem()
    predictor = MixturePredictor(problem.model, problem.preparation, fitted.total, fitted.ids)
    predictor.preparation.check_columns(source.shape[1])
    claim(out, overwrite)
    with _backend(workers, scheduler, serial) as backend:
        write_labels(predictor, source, backend, out, top=top, density=density, overwrite=overwrite)
    _output.print(f"{source.shape[0]} rows labelled in {out}", highlight=False)


@app.command()
def demo(
    out: Out = "dpdist-demo",
    seed: Annotated[int, typer.Option(help="Key of every draw.")] = 0,
    workers: Workers = None,
    serial: Serial = False,
) -> None:
    """Cluster 1,797 handwritten digits on a local Dask cluster; nothing is downloaded."""
    from dpdist.demo import run_demo

    with _backend(workers, None, serial) as backend, LiveProgress(_messages) as progress:
        result = run_demo(Path(out), backend, seed, progress.show)
    table = Table()
    for name in ("cluster", "digits", "mostly", "share"):
        table.add_column(name, justify="right")
    for identity, count, digit, share in result.rows:
        table.add_row(str(identity), str(count), str(digit), f"{100 * share:.0f} %")
    _output.print(table)
    _output.print(f"{len(result.rows)} clusters of 1,797 digits; purity {100 * result.purity:.1f} %", highlight=False)
    _output.print(f"pictures: {result.folder / 'clusters.png'} and {result.folder / 'trace.png'}", highlight=False)


@app.command()
def convert(
    file: Annotated[str, typer.Argument(help="Rows as .npy, .parquet, .csv, .fvecs or .bvecs.")],
    out: Out = "rows.zarr",
    columns: Annotated[str | None, typer.Option(help="Columns to take, separated by commas.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write rows to a Zarr array, a block at a time."""
    from dpdist.convert import convert as write_rows

    chosen = None if columns is None else [name.strip() for name in columns.split(",")]
    rows, width = write_rows(file, out, overwrite=overwrite, columns=chosen)
    _output.print(f"{rows} rows of {width} columns in {out}", highlight=False)


@contextmanager
def _backend(workers: int | None, scheduler: str | None, serial: bool) -> Iterator[Backend]:
    if serial and (scheduler is not None or workers is not None):
        raise InputError("--serial runs in this process; leave out --workers and --scheduler, or leave out --serial.")
    if scheduler is not None and workers is not None:
        raise InputError("--workers starts a local cluster; leave it out with --scheduler, whose workers are its own.")
    backend = SerialBackend() if serial else connect(scheduler) if scheduler else local_backend(workers)
    try:
        yield backend
    finally:
        backend.close()


def _drive(fitting: Fit, run: str) -> None:
    """Run a fit to its end; on Ctrl-C keep the wave just finished."""
    try:
        with LiveProgress(_messages) as progress:
            for step in fitting:
                progress.show(step)
    except KeyboardInterrupt:
        fitting.save()
        fitting.settle()
        _messages.print(f"stopped; nothing is lost. Go on with: dpdist resume {run}", highlight=False)
        raise typer.Exit(130) from None
    fitted = fitting.fitted
    assert fitted is not None and fitted.stop is not None, "a fit ends after a lap, for a reason"
    _output.print(
        f"{len(fitted.ids)} clusters, ELBO {fitted.elbo:.4f} ({fitted.elbo / fitted.rows:.6f} a row), "
        f"{fitted.stop}. Look closer with: dpdist show {run}",
        highlight=False,
        soft_wrap=True,
    )


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def _data_of(settings: FitConfig, moved: str | None) -> str:
    path = moved or settings.data
    if path is None:
        raise InputError("the run's data were in memory; go on from Python, or give --data.")
    return path


if __name__ == "__main__":
    main()
