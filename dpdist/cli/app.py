"""Commands that work on rows here: fit, sva, extend, resume, show, predict; demo, convert, corpus."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dpdist.cluster.foreground import (
    UPDATES,
    CheckpointEvery,
    Out,
    Overwrite,
    Scheduler,
    Serial,
    Workers,
    backend_of,
    data_of,
    drive_fit,
    drive_pass,
    launcher_of,
)
from dpdist.cluster.running import Launch
from dpdist.cluster.terminal import MESSAGES, OUTPUT
from dpdist.core.errors import InputError
from dpdist.core.outputs import claim_folder
from dpdist.core.places import absolute
from dpdist.data import Source, as_source
from dpdist.data.columns import listed
from dpdist.execution import Backend
from dpdist.runs.config import CONFIGS, FitConfig, PassConfig, parse_config, read_config
from dpdist.runs.extending import prepare_extension
from dpdist.runs.labelling import write_labels
from dpdist.runs.limits import Limits
from dpdist.runs.opening import command_of, is_pass, open_run, resumed, stored_predictor
from dpdist.runs.passing import PassFit, is_finished, resumed_pass
from dpdist.runs.progress import LiveProgress, say
from dpdist.runs.run import Run
from dpdist.storage.checkpoint import RunStore
from dpdist.storage.commits import claim


def fit(
    data: Annotated[str | None, typer.Argument(help="Zarr array of rows; may stand in the configuration.")] = None,
    out: Out = "run.zarr",
    config: Annotated[Path | None, typer.Option(help="TOML file with settings; options override it.")] = None,
    seed: Annotated[int | None, typer.Option(help="Key of every draw. Default: 0.")] = None,
    family: Annotated[str | None, typer.Option(help="Likelihood of a cluster. Default: gaussian.")] = None,
    concentration: Annotated[float | None, typer.Option(help="Of the Dirichlet process. Default: 10.")] = None,
    initial: Annotated[str | None, typer.Option(help="First model: one, k-means++ or sva.")] = None,
    initial_components: Annotated[int | None, typer.Option(help="Clusters of a k-means++ start.")] = None,
    initial_rows: Annotated[int | None, typer.Option(help="Rows that an sva start passes over.")] = None,
    max_components: Annotated[int | None, typer.Option(help="Bound on the clusters. Default: none.")] = None,
    schedule: Annotated[str | None, typer.Option(help="memoized, stochastic or batch.")] = None,
    batches: Annotated[int | None, typer.Option(help="Groups of partitions; 1 is batch inference.")] = None,
    lookahead: Annotated[int | None, typer.Option(help="0, or 1 to overlap batches.")] = None,
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
    """Fit a Dirichlet-process mixture; checkpoints are made as often as they are cheap."""
    options: dict[str, Any] = {
        "data": data,
        "seed": seed,
        "family": {"name": family},
        "concentration": concentration,
        "initial": initial,
        "initial_components": initial_components,
        "initial_rows": initial_rows,
        "max_components": max_components,
        "schedule": {"name": schedule, "batches": batches, "lookahead": lookahead},
        "transform": {"pca": pca, "center": center, "scale": scale},
        "compute_dtype": compute_dtype,
        "tolerance": tolerance,
        "max_laps": max_laps,
        "max_time": max_time,
    }
    settings = read_config(FitConfig, config, options)
    if settings.data is None:
        raise InputError("fit needs data: name a Zarr array, as in dpdist fit rows.zarr, or set data in the TOML file.")
    claim(out, overwrite)
    settings = settings.model_copy(update={"data": absolute(settings.data)})
    source = as_source(settings.data)

    def prepare(backend: Backend) -> Run[Any]:
        fitting = settings.prepare(source, out, overwrite, backend)
        fitting.checkpoint_seconds = checkpoint_every
        return fitting

    drive_fit(prepare, launcher_of(workers, scheduler, serial, source), out)


def sva(
    data: Annotated[str | None, typer.Argument(help="Zarr array of rows; may stand in the configuration.")] = None,
    out: Out = "model.zarr",
    config: Annotated[Path | None, typer.Option(help="TOML file with settings; options override it.")] = None,
    holdout: Annotated[str | None, typer.Option(help="Zarr array of rows whose score is followed.")] = None,
    seed: Annotated[int | None, typer.Option(help="Key of every draw. Default: 0.")] = None,
    family: Annotated[str | None, typer.Option(help="Likelihood of a cluster. Default: gaussian.")] = None,
    concentration: Annotated[float | None, typer.Option(help="Of the Dirichlet process. Default: 1.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Share that opens a cluster. Default: 0.001.")] = None,
    merge: Annotated[str | None, typer.Option(help="auto, evidence, distance, 'absolute distance' or none.")] = None,
    merge_threshold: Annotated[float | None, typer.Option(help="Of the tests by distance. Default: 0.5.")] = None,
    prune: Annotated[float | None, typer.Option(help="Least share of the rows kept. Default: 0.00001.")] = None,
    max_components: Annotated[int | None, typer.Option(help="Bound on the clusters. Default: none.")] = None,
    sequential: Annotated[bool, typer.Option("--sequential", help="One partition after the other.")] = False,
    in_order: Annotated[bool, typer.Option("--in-order", help="Rows as they are stored, not shuffled.")] = False,
    pca: Annotated[int | None, typer.Option(help="Principal components to keep.")] = None,
    center: Annotated[bool | None, typer.Option("--center", help="Subtract the mean.")] = None,
    scale: Annotated[bool | None, typer.Option("--scale", help="Divide by the standard deviation.")] = None,
    compute_dtype: Annotated[str | None, typer.Option(help="float64 or float32.")] = None,
    checkpoint_every: Annotated[float, typer.Option(min=0, help="Longest time between checkpoints, seconds.")] = 60.0,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
    overwrite: Overwrite = False,
) -> None:
    """Cluster in one pass over the rows (sequential variational approximation)."""
    options: dict[str, Any] = {
        "data": data,
        "holdout": holdout,
        "seed": seed,
        "family": {"name": family},
        "concentration": concentration,
        "threshold": threshold,
        "merge": merge,
        "merge_threshold": merge_threshold,
        "prune": prune,
        "max_components": max_components,
        "parallel": False if sequential else None,
        "shuffle": False if in_order else None,
        "transform": {"pca": pca, "center": center, "scale": scale},
        "compute_dtype": compute_dtype,
    }
    settings = read_config(PassConfig, config, options)
    if settings.data is None:
        raise InputError("sva needs data: name a Zarr array, as in dpdist sva rows.zarr, or set data in the TOML file.")
    claim(out, overwrite)
    held = None if settings.holdout is None else absolute(settings.holdout)
    settings = settings.model_copy(update={"data": absolute(settings.data), "holdout": held})
    source = as_source(settings.data)

    def prepare(backend: Backend) -> PassFit:
        passing = settings.prepare(source, out, overwrite, backend)
        passing.checkpoint_seconds = checkpoint_every
        return passing

    drive_pass(prepare, launcher_of(workers, scheduler, serial, source), out)


def extend(
    model: Annotated[str, typer.Argument(help="A model of dpdist sva or dpdist fit.")],
    data: Annotated[str, typer.Argument(help="Zarr array of new rows.")],
    out: Annotated[
        str | None, typer.Option(help="Folder for the result. Default: the model itself, if dpdist sva made it.")
    ] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
    overwrite: Overwrite = False,
    again: Annotated[bool, typer.Option("--again", help="Take rows it was made from, twice.")] = False,
) -> None:
    """Let new rows refine and grow a model, without the rows it was made from."""
    source = as_source(data)
    settings = {"data": absolute(data), "holdout": None}
    drive_pass(
        lambda backend: prepare_extension(model, source, backend, out, overwrite, settings, again),
        launcher_of(workers, scheduler, serial, source),
        out or model,
    )


def resume(
    run: Annotated[str, typer.Argument(help="What dpdist fit, sva, topics or extend began.")],
    data: Annotated[str | None, typer.Option(help="Where the data are now, if they moved.")] = None,
    max_laps: Annotated[int | None, typer.Option(help="New bound on the laps in all, of a fit or topics.")] = None,
    max_time: Annotated[float | None, typer.Option(help="Seconds at most from now, of a fit or topics.")] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="TOML file of a cluster: a job of its own goes on, as with dpdist submit.")
    ] = None,
    checkpoint_every: CheckpointEvery = 600.0,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
) -> None:
    """Go on where a run or a pass stopped, to the same bits."""
    if cluster is not None:
        from dpdist.cli.job_commands import resume_on

        if serial or scheduler is not None or workers is not None:
            raise InputError("--cluster says where the run goes on; leave out --workers, --scheduler and --serial.")
        resume_on(run, cluster, max_laps, max_time, data)
        return
    launch_for = partial(launcher_of, workers, scheduler, serial)
    if is_pass(run):
        if max_laps is not None or max_time is not None:
            raise InputError(f"{run} is a pass, which ends with its rows; leave out --max-laps and --max-time.")
        _resume_pass(RunStore.open(run), data, checkpoint_every, launch_for)
        return
    store = open_run(run)
    settings: Any = parse_config(CONFIGS[command_of(run)], store.settings)
    fitted = store.fitted()
    if fitted is not None and fitted.stop is not None and max_laps is None and max_time is None:
        say(OUTPUT, f"{run} has ended ({fitted.stop}); give --max-laps or --max-time to go on.")
        return
    source = as_source(data_of(settings.data, data))
    limits = Limits(settings.max_laps, settings.max_time).but(max_laps, max_time)

    def prepare(backend: Backend) -> Run[Any]:
        fitting = resumed(store, source, backend, limits)
        fitting.checkpoint_seconds = checkpoint_every
        return fitting

    drive_fit(prepare, launch_for(source, UPDATES if command_of(run) == "topics" else 1), run)


def _resume_pass(store: RunStore, moved: str | None, every: float, launch_for: Callable[[Source], Launch]) -> None:
    if is_finished(store):
        say(OUTPUT, f"{store.path} has passed over all its rows; add others with: dpdist extend")
        return
    source = as_source(data_of(store.settings.get("data"), moved))
    held = store.settings.get("holdout")

    def prepare(backend: Backend) -> PassFit:
        fit = resumed_pass(store, source, backend, None if held is None else as_source(held))
        fit.checkpoint_seconds = min(every, 60.0)
        return fit

    drive_pass(prepare, launch_for(source), store.path)


def show(
    run: Annotated[str, typer.Argument(help="A run or a model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Plain values for scripts.")] = False,
) -> None:
    """Show what a run or a pass reached: K, ELBO or held-out score, sizes, moves taken and refused and why."""
    from dpdist.report.show import shown_tables, shown_values

    if as_json:
        typer.echo(json.dumps(shown_values(run), indent=2))
    else:
        OUTPUT.print(shown_tables(run))


def predict(
    run: Annotated[str, typer.Argument(help="A run or a model.")],
    data: Annotated[str, typer.Argument(help="Zarr array of raw rows, or a corpus.")],
    out: Out = "labels.zarr",
    top: Annotated[int, typer.Option(min=1, help="Most probable components or topics to write for each row.")] = 1,
    density: Annotated[bool, typer.Option("--density", help="Write each row's log predictive density.")] = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
    overwrite: Overwrite = False,
) -> None:
    """Label rows with their most probable components, or documents with the proportions of their topics.

    Labels are positions among the components, as predict gives them in Python; id[label] are stable ids. Densities are
    those of the raw columns, whatever transform was fitted.
    """
    if command_of(run) == "topics":
        from dpdist.cli.topic_commands import predict_topics

        predict_topics(run, data, out, top, density, partial(launcher_of, workers, scheduler, serial), overwrite)
        return
    predictor = stored_predictor(run)
    source = as_source(data)
    predictor.preparation.check_source(source)
    claim_folder(out, overwrite)
    with backend_of(workers, scheduler, serial, source) as backend:
        write_labels(predictor, source, backend, out, top=top, density=density, overwrite=overwrite)
    say(OUTPUT, f"{source.shape[0]} rows labelled in {out}")


def demo(
    out: Out = "dpdist-demo",
    seed: Annotated[int, typer.Option(help="Key of every draw.")] = 0,
    workers: Workers = None,
    serial: Serial = False,
) -> None:
    """Cluster 1,797 handwritten digits on a local Dask cluster; nothing is downloaded."""
    from dpdist.cli.demo import run_demo

    with backend_of(workers, None, serial) as backend, LiveProgress(MESSAGES) as progress:
        result = run_demo(Path(out), backend, seed, progress.show)
    table = Table()
    for name in ("cluster", "digits", "mostly", "share"):
        table.add_column(name, justify="right")
    for identity, count, digit, share in result.rows:
        table.add_row(str(identity), str(count), str(digit), f"{100 * share:.0f} %")
    OUTPUT.print(table)
    say(OUTPUT, f"{len(result.rows)} clusters of 1,797 digits; purity {100 * result.purity:.1f} %")
    say(OUTPUT, f"pictures: {result.folder / 'clusters.png'} and {result.folder / 'trace.png'}")


def convert(
    file: Annotated[str, typer.Argument(help="Rows as .npy, .parquet, .csv, .fvecs or .bvecs.")],
    out: Out = "rows.zarr",
    columns: Annotated[str | None, typer.Option(help="Columns to take, separated by commas.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write rows to a Zarr array, a block at a time; the index of a data frame is left out unless it is named."""
    from dpdist.data.convert import convert as write_rows

    chosen = None if columns is None else [name.strip() for name in columns.split(",")]
    rows, width = write_rows(file, out, overwrite=overwrite, columns=chosen)
    names = as_source(out).names
    told = f": {listed(names)}" if names else ""
    say(OUTPUT, f"{rows} rows of {width} columns in {out}{told}")


def corpus(
    file: Annotated[str, typer.Argument(help="Documents as .npz (SciPy CSR), docword.*.txt[.gz] or .ldac.")],
    out: Out = "corpus.zarr",
    vocabulary: Annotated[str | None, typer.Option(help="File with the word of each column, one a line.")] = None,
    format: Annotated[str, typer.Option(help="npz, docword, ldac, or auto to go by the file's name.")] = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Write documents as counts of words to a corpus, a block at a time."""
    from dpdist.data.corpora import convert_corpus

    documents, words = convert_corpus(file, out, vocabulary=vocabulary, format=format, overwrite=overwrite)
    say(OUTPUT, f"{documents} documents over {words} words in {out}")
