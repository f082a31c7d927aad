"""Commands for topic models: score, and what predict does with the documents of a topic model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated

import typer

from dpdist.cluster.foreground import (
    Scheduler,
    Serial,
    Workers,
    backend_of,
)
from dpdist.cluster.running import Launch
from dpdist.cluster.terminal import OUTPUT
from dpdist.core.errors import InputError
from dpdist.core.outputs import claim_folder
from dpdist.data import Source, as_source
from dpdist.data.vocabularies import check_same_words
from dpdist.inference.topics.prediction import DocumentPredictor, complete_documents
from dpdist.runs.labelling import write_proportions
from dpdist.runs.opening import open_run, stored_topics
from dpdist.runs.topic_fitting import UPDATES


def score(
    run: Annotated[str, typer.Argument(help="A run or a model of dpdist topics.")],
    data: Annotated[str, typer.Argument(help="Corpus of documents that it was not fitted to.")],
    share: Annotated[float, typer.Option(help="Of each document's tokens, to fit its proportions to.")] = 0.8,
    random_state: Annotated[int, typer.Option(min=0, help="Key of the draw of these tokens.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Plain values for scripts.")] = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
) -> None:
    """Score documents by completion: the mean log probability of tokens held out, in nats."""
    predictor, source = _fitting(run, data)
    with backend_of(workers, scheduler, serial, source, UPDATES) as backend:
        found = complete_documents(predictor, source, backend, share, random_state)
    values = {
        "per_token": found.per_token,
        "tokens": found.tokens,
        "documents": source.shape[0],
        "n_topics": len(predictor.ids),
        "share": share,
        "random_state": random_state,
    }
    if as_json:
        typer.echo(json.dumps(values, indent=2))
        return
    told = f"{found.per_token:.6f} nats a token over {found.tokens:.0f} tokens held out of {source.shape[0]} documents"
    OUTPUT.print(told, highlight=False, soft_wrap=True)


def predict_topics(
    run: str,
    data: str,
    out: str,
    top: int,
    density: bool,
    launch_for: Callable[[Source, int], Launch],
    overwrite: bool,
) -> None:
    """Write documents' proportions of the topics of a run."""
    if density:
        raise InputError("a topic model tells no density; leave out --density, and score documents with: dpdist score")
    predictor, source = _fitting(run, data)
    claim_folder(out, overwrite)
    backend = launch_for(source, UPDATES)()
    try:
        write_proportions(predictor, source, backend, out, top=top, overwrite=overwrite)
    finally:
        backend.close()
    told = f"{source.shape[0]} documents in {out}: proportions of {len(predictor.ids)} topics"
    OUTPUT.print(told, highlight=False, soft_wrap=True)


def _fitting(run: str, data: str) -> tuple[DocumentPredictor, Source]:
    """A model, and documents over its vocabulary."""
    predictor, source = stored_topics(run), as_source(data)
    predictor.check_words(source.shape[1])
    store = open_run(run)
    check_same_words(store.problem().words, source, run)
    return predictor, source
