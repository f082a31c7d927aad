"""Commands that show models or convert data: show, report, predict; demo, convert, corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from dpdist.cli.foreground import (
    KEPT,
    NOT_KEPT,
    Out,
    Overwrite,
    Scheduler,
    Serial,
    Workers,
    backend_of,
    stopped_by_signals,
)
from dpdist.cli.options import split
from dpdist.cli.terminal import MESSAGES, OUTPUT
from dpdist.core.outputs import check_apart, claim_output, require_path
from dpdist.data import as_source, row_ids
from dpdist.data.columns import listed
from dpdist.inference.hierarchy.cut import cut
from dpdist.inference.outliers import Flagged, flagged
from dpdist.runs.events import count_of
from dpdist.runs.label_table import RowIds, claim_file, is_table
from dpdist.runs.labelling import Labeller, write_labels
from dpdist.runs.methods import METHODS
from dpdist.runs.opening import model_in, open_run, rows_for, rows_model
from dpdist.runs.progress import LiveProgress, say
from dpdist.runs.view import ROWS, SHOWN


def show(
    run: Annotated[str, typer.Argument(help="A run or a model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Show the results of a run: K, ELBO or held-out score, sizes, accepted and rejected moves with reasons."""
    from dpdist.report.show import shown_tables, shown_values

    if as_json:
        typer.echo(json.dumps(shown_values(run), indent=2))
    else:
        OUTPUT.print(shown_tables(run))


def report(
    run: Annotated[str, typer.Argument(help="A run or a model.")],
    out: Annotated[str, typer.Option("--out", "-o", help="HTML file to write.")] = "report.html",
    data: Annotated[str | None, typer.Option(help="New path of the data, if they have moved.")] = None,
    image_shape: Annotated[
        str | None, typer.Option(help="Shape of rows that are images, such as 28x28 or 32x32x3.")
    ] = None,
    largest: Annotated[int, typer.Option(min=1, help="Largest number of clusters or topics to show.")] = SHOWN,
    rows: Annotated[int, typer.Option(min=1, help="Largest number of rows or documents to read.")] = ROWS,
    watch: Annotated[
        bool, typer.Option("--watch", help="Update the report after each checkpoint until the run ends.")
    ] = False,
) -> None:
    """Write a report of a run or a model as one HTML file that needs no network: ELBO, moves, clusters, map, time.

    Profiles and nearest rows of clusters, and the coherence of topics, are computed from rows of the data. If the data
    cannot be read, profiles are computed from rows drawn from the model, and the others are left out. A run in progress
    is shown as of its last checkpoint.
    """
    from dpdist.report.watch import write_report

    for told in write_report(run, out, data, image_shape, largest, rows, watch):
        say(OUTPUT, told)


def predict(
    run: Annotated[str, typer.Argument(help="A run or a model.")],
    data: Annotated[str, typer.Argument(help="Raw rows, as Zarr or as files such as .csv and .parquet, or a corpus.")],
    out: Annotated[str, typer.Option(help="Output: a Zarr folder, or a .csv, .tsv or .parquet file.")] = "labels.zarr",
    ids: Annotated[str | None, typer.Option(help="Column of the data with row ids, copied to the output.")] = None,
    top: Annotated[
        int, typer.Option(min=1, help="Number of most probable components or topics to write for each row.")
    ] = 1,
    density: Annotated[bool, typer.Option("--density", help="Also write each row's log predictive density.")] = False,
    n_clusters: Annotated[int | None, typer.Option(help="Cut the tree of dpdist tree at this many clusters.")] = None,
    elbo_loss: Annotated[
        float | None, typer.Option(help="Cut the tree at the fewest clusters that lose at most this many nats of ELBO.")
    ] = None,
    min_cluster_size: Annotated[
        float | None,
        typer.Option(help="Merge each cluster that has fewer rows in the fitted data into the best other one."),
    ] = None,
    outliers: Annotated[bool, typer.Option("--outliers", help="Label rows that belong to no cluster as -1.")] = False,
    outlier_rate: Annotated[
        float | None,
        typer.Option(
            help="Share of rows drawn from the clusters that would be called outliers. Default: from the model."
        ),
    ] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
    overwrite: Overwrite = False,
) -> None:
    """Label rows with their most probable components, or documents with the proportions of their topics.

    Labels number the components from 0. The stable id of a component, which dpdist show and the report use, is in the
    column component_id of a table; in Zarr, the array id holds one for each label. Densities refer to raw columns, also
    if a transform was fitted. Clusters of a cut are numbered in the order of their first component, and have the id of
    their heaviest. Outliers are the rows of the background, if the model has one and no rate is given. Otherwise they
    are rows of low density under the clusters, without components of scattered rows; by default, one outlier in twenty
    is expected to belong to a cluster. A killed command continues where it stopped when it is run again.
    """
    store = open_run(run)
    predictor, method = model_in(store), METHODS[store.method]
    source = rows_for(store, data, ids=ids)
    rows = count_of(source.shape[0], method.row)
    if (n_clusters, elbo_loss, min_cluster_size) != (None, None, None):
        tree = store.finding("tree")
        predictor = cut(rows_model(predictor, run), tree, n_clusters, elbo_loss, min_cluster_size)
    predictor.check_source(source, run)
    predictor.outputs(top, density)
    (claim_file if is_table(out) else claim_output)(out, overwrite)
    check_apart(out, run, data)
    called = None if ids is None else RowIds(ids, row_ids(data, ids))
    with backend_of(workers, scheduler, serial, source, method.updates, stopped=KEPT) as backend:
        if outliers or outlier_rate is not None:
            rate, seed = True if outlier_rate is None else outlier_rate, store.problem().seed
            predictor = flagged(rows_model(predictor, run), backend, seed, rate)
        write_labels(
            predictor,
            source,
            backend,
            out,
            top=top,
            density=density,
            overwrite=overwrite,
            ids=called,
            tell=lambda there: say(MESSAGES, f"{there:,} of {rows} are labelled already; continuing"),
        )
    many = len(predictor.ids)
    parts = f"{many if many != 1 else 'one'} {method.parts_of(many)}"
    say(OUTPUT, f"{rows} labelled in {out} with the {parts} of {run}{_without(predictor)}")


def _without(predictor: Labeller) -> str:
    """A mask of the components that label no row because they hold scattered rows."""
    left_out = predictor.ids[~predictor.clusters()].tolist() if isinstance(predictor, Flagged) else []
    return f"; no row with component {', '.join(map(str, left_out))} (scattered rows)" if left_out else ""


#: The message after stopping a demo.
_AGAIN = "nothing is kept; run the command again with --overwrite."


def demo(
    out: Out = "dpdist-demo",
    random_state: Annotated[int, typer.Option(help="Seed of all random draws.")] = 0,
    workers: Workers = None,
    serial: Serial = False,
    overwrite: Overwrite = False,
) -> None:
    """Cluster 1,797 handwritten digits on a local Dask cluster; nothing is downloaded."""
    from dpdist.cli.demo import run_demo

    require_path(out, "the demo", "dpdist-demo")
    with backend_of(workers, None, serial, stopped=_AGAIN) as backend, LiveProgress(MESSAGES) as progress:
        result = run_demo(Path(out), backend, random_state, progress.tell, overwrite)
    table = Table()
    for name in ("id", "digits", "mostly", "share"):
        table.add_column(name, justify="right")
    for identity, count, digit, share in result.rows:
        table.add_row(str(identity), str(count), str(digit), f"{100 * share:.0f} %")
    OUTPUT.print(table)
    say(OUTPUT, f"{len(result.rows)} clusters of 1,797 digits; purity {100 * result.purity:.1f} %")
    say(
        OUTPUT,
        f"open {result.folder / 'report.html'} to see the clusters; pictures beside it: clusters.png, trace.png",
    )


def convert(
    files: Annotated[
        list[str],
        typer.Argument(help="Rows as .csv, .tsv (also .gz), .parquet or a folder of it, .npy, .h5, .fvecs or .bvecs."),
    ],
    out: Out = "rows.zarr",
    columns: Annotated[list[str] | None, typer.Option(help="Columns to take, separated by commas.")] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="Columns to leave out, separated by commas; put names that contain commas in double quotes."),
    ] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    overwrite: Overwrite = False,
) -> None:
    """Write rows to a Zarr array, block by block; the index of a data frame is written only if --columns names it.

    With several workers, many files and blocks are converted at the same time. A killed command continues where it
    stopped when it is run again.
    """
    from dpdist.data.convert import convert as write_rows

    with backend_of(workers, scheduler, workers is None and scheduler is None, stopped=KEPT) as backend:
        rows, width = write_rows(
            files, out, overwrite=overwrite, columns=split(columns), drop=split(drop) or (), backend=backend
        )
    names = as_source(out).names
    told = f": {listed(names)}" if names else ""
    say(OUTPUT, f"{rows} rows of {width} columns in {out}{told}")


def corpus(
    file: Annotated[str, typer.Argument(help="Documents as .npz (SciPy CSR), docword.*.txt[.gz] or .ldac.")],
    out: Out = "corpus.zarr",
    vocabulary: Annotated[str | None, typer.Option(help="File with the word of each column, one per line.")] = None,
    format: Annotated[str, typer.Option(help="npz, docword or ldac; auto: from the name of the file.")] = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Write documents to a corpus of word counts, block by block."""
    from dpdist.data.corpora import write_corpus
    from dpdist.data.documents import open_documents, read_vocabulary

    known = None if vocabulary is None else read_vocabulary(vocabulary)
    with stopped_by_signals(lambda: NOT_KEPT):
        documents, words = write_corpus(out, open_documents(file, format, known), known, overwrite, file)
    say(OUTPUT, f"{documents} documents over {words} words in {out}")
