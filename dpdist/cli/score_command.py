"""The command that scores held-out data: rows by their density, documents by completion."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dpdist.cli.foreground import NOT_KEPT, Scheduler, Serial, Workers, backend_of
from dpdist.cli.terminal import OUTPUT
from dpdist.core.errors import InputError
from dpdist.data import Source, as_source
from dpdist.data.base import total_weight
from dpdist.execution.base import Backend
from dpdist.inference.prediction import Predictor, mean_log_density
from dpdist.inference.topics.prediction import DocumentPredictor, complete_documents
from dpdist.runs.methods import METHODS
from dpdist.runs.opening import model_in, open_run, rows_for

#: Defaults of the share of observed tokens of a document, and of the seed of their draw.
_SHARE, _KEY = 0.8, 0
#: Plain values, and the sentence about them.
Scored = tuple[dict[str, object], str]


def score(
    run: Annotated[str, typer.Argument(help="A run or a model.")],
    data: Annotated[str, typer.Argument(help="Rows or a corpus of documents that the model was not fitted to.")],
    share: Annotated[
        float | None,
        typer.Option(help="Share of each document's tokens that its topic proportions are fitted to. Default: 0.8."),
    ] = None,
    random_state: Annotated[
        int | None, typer.Option(min=0, help="Seed of the draw of these tokens. Default: 0.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
) -> None:
    """Score held-out data: mean log predictive density of rows, or of tokens by document completion, in nats."""
    store = open_run(run)
    model = model_in(store)
    rows = isinstance(model, Predictor)
    if rows and (share, random_state) != (None, None):
        raise InputError(f"{run} is a model of rows, and all rows are scored; leave out --share and --random-state.")
    source = rows_for(store, data) if rows else as_source(data)
    model.check_source(source, run)
    with backend_of(workers, scheduler, serial, source, METHODS[store.method].updates, stopped=NOT_KEPT) as backend:
        if rows:
            values, told = _score_rows(model, source, backend)
        else:
            key = _KEY if random_state is None else random_state
            values, told = _score_documents(model, source, backend, _SHARE if share is None else share, key)
    if as_json:
        typer.echo(json.dumps(values, indent=2))
    else:
        OUTPUT.print(told, highlight=False, soft_wrap=True)


def _score_rows(model: Predictor, source: Source, backend: Backend) -> Scored:
    found, rows = mean_log_density(backend, source, model), source.shape[0]
    values: dict[str, object] = {"per_row": found, "rows": rows, "n_components": len(model.ids)}
    told = f"{found:.6f} nats per row over {rows} rows"
    if source.weights is None:
        return values, told
    weight = total_weight(source)
    return values | {"weight": weight}, f"{told}, weighted, with total weight {weight:g}"


def _score_documents(
    model: DocumentPredictor, source: Source, backend: Backend, share: float, random_state: int
) -> Scored:
    found = complete_documents(model, source, backend, share, random_state)
    values: dict[str, object] = {
        "per_token": found.per_token,
        "tokens": found.tokens,
        "documents": source.shape[0],
        "n_topics": len(model.ids),
        "share": share,
        "random_state": random_state,
    }
    told = (
        f"{found.per_token:.6f} nats per token over {found.tokens:.0f} held-out tokens of {source.shape[0]} documents"
    )
    return values, told
