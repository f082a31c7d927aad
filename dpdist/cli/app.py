"""Commands that show models or convert data: show, report, predict; demo, convert, corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from dpdist.cli.options import split
from dpdist.cluster.foreground import (
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
from dpdist.cluster.terminal import MESSAGES, OUTPUT
from dpdist.core.outputs import check_apart, claim_output, require_path
from dpdist.data import as_source, row_ids
from dpdist.data.columns import listed
from dpdist.inference.hierarchy.cut import cut
from dpdist.inference.outliers import Flagged, flagged
from dpdist.runs.label_table import RowIds, claim_file, is_table
from dpdist.runs.labelling import Labeller, write_labels
from dpdist.runs.methods import METHODS
from dpdist.runs.opening import model_in, open_run, rows_for, rows_model
from dpdist.runs.progress import LiveProgress, say
from dpdist.runs.view import ROWS, SHOWN


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


def report(
    run: Annotated[str, typer.Argument(help="A run or a model.")],
    out: Annotated[str, typer.Option("--out", "-o", help="HTML file to write.")] = "report.html",
    data: Annotated[str | None, typer.Option(help="Where the data are now, if they moved.")] = None,
    image_shape: Annotated[str | None, typer.Option(help="Of rows that are pictures, as 28x28 or 32x32x3.")] = None,
    largest: Annotated[int, typer.Option(min=1, help="Clusters or topics shown, at most.")] = SHOWN,
    rows: Annotated[int, typer.Option(min=1, help="Rows or documents looked at, at most.")] = ROWS,
    watch: Annotated[bool, typer.Option("--watch", help="Write it again after each checkpoint, to the end.")] = False,
) -> None:
    """Write what a run or a model is as one HTML file that needs no network: its course, moves, clusters, map, time.

    Nearest rows, profiles and the coherence of topics are of rows read from the data, or of rows drawn from the model
    where the data are not there. A run in progress is shown as of its last checkpoint.
    """
    from dpdist.report.watch import write_report

    for told in write_report(run, out, data, image_shape, largest, rows, watch):
        say(OUTPUT, told)


def predict(
    run: Annotated[str, typer.Argument(help="A run or a model.")],
    data: Annotated[str, typer.Argument(help="Raw rows, as Zarr or files such as .csv and .parquet, or a corpus.")],
    out: Annotated[str, typer.Option(help="Zarr folder, or .csv, .tsv or .parquet, to write to.")] = "labels.zarr",
    ids: Annotated[str | None, typer.Option(help="Column of the data's files with what rows are called.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Most probable components or topics to write for each row.")] = 1,
    density: Annotated[bool, typer.Option("--density", help="Write each row's log predictive density.")] = False,
    n_clusters: Annotated[int | None, typer.Option(help="Cut the tree of dpdist tree at so many clusters.")] = None,
    elbo_loss: Annotated[
        float | None, typer.Option(help="Cut it at the fewest clusters that lie no more nats of ELBO below the best.")
    ] = None,
    min_cluster_size: Annotated[
        float | None, typer.Option(help="Clusters of fewer rows in the fit's data join their likeliest neighbour.")
    ] = None,
    outliers: Annotated[bool, typer.Option("--outliers", help="Label -1 for rows of no cluster.")] = False,
    outlier_rate: Annotated[
        float | None,
        typer.Option(help="Share of the rows drawn from clusters that outliers lie below. Default: by the model."),
    ] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
    overwrite: Overwrite = False,
) -> None:
    """Label rows with their most probable components, or documents with the proportions of their topics.

    Labels count components from 0; component_id in a table, or id[label] in Zarr, is the id by which show and the
    report name a component. Densities are those of the raw columns, whatever transform was fitted. Clusters of a cut
    are counted in the order of their first component, and have the id of their heaviest. Outliers are rows that the
    background takes, where the model has one and no rate is given; otherwise rows whose density under the clusters is
    so low that only one outlier in twenty is expected to be of a cluster. Components of scattered rows do not count as
    clusters then. A command that was killed continues where it was.
    """
    store = open_run(run)
    predictor, method = model_in(store), METHODS[store.method]
    source = rows_for(store, data, ids=ids)
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
            tell=lambda there: say(MESSAGES, f"{there} of {source.shape[0]} rows were labelled before; it goes on"),
        )
    many = len(predictor.ids)
    parts = f"{many if many != 1 else 'one'} {method.parts_of(many)}"
    say(OUTPUT, f"{source.shape[0]} rows labelled in {out} with the {parts} of {run}{_without(predictor)}")


def _without(predictor: Labeller) -> str:
    """A mask of the components that label no row because they hold scattered rows."""
    left_out = predictor.ids[~predictor.clusters()].tolist() if isinstance(predictor, Flagged) else []
    return f", but none with {', '.join(map(str, left_out))}, which are of scattered rows" if left_out else ""


#: The message after stopping a demo.
_AGAIN = "nothing of it is kept; give the command again, with --overwrite."


def demo(
    out: Out = "dpdist-demo",
    random_state: Annotated[int, typer.Option(help="Key of every draw.")] = 0,
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
    say(OUTPUT, f"open {result.folder / 'report.html'} to see them; pictures: clusters.png and trace.png beside it")


def convert(
    files: Annotated[
        list[str],
        typer.Argument(help="Rows as .csv, .tsv (also .gz), .parquet or a folder of it, .npy, .h5, .fvecs or .bvecs."),
    ],
    out: Out = "rows.zarr",
    columns: Annotated[list[str] | None, typer.Option(help="Columns to take, separated by commas.")] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="Columns to leave out, separated by commas; a name with commas in double quotes."),
    ] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    overwrite: Overwrite = False,
) -> None:
    """Write rows to a Zarr array, a block at a time; the index of a data frame is left out unless it is named.

    Many files and blocks at a time on several workers. What was killed goes on where it was.
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
    vocabulary: Annotated[str | None, typer.Option(help="File with the word of each column, one a line.")] = None,
    format: Annotated[str, typer.Option(help="npz, docword, ldac, or auto to go by the file's name.")] = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Write documents as counts of words to a corpus, a block at a time."""
    from dpdist.data.corpora import write_corpus
    from dpdist.data.documents import open_documents, read_vocabulary

    known = None if vocabulary is None else read_vocabulary(vocabulary)
    with stopped_by_signals(lambda: NOT_KEPT):
        documents, words = write_corpus(out, open_documents(file, format, known), known, overwrite, file)
    say(OUTPUT, f"{documents} documents over {words} words in {out}")
