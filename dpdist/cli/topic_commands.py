"""The command for topic models alone: score."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dpdist.cluster.foreground import (
    Scheduler,
    Serial,
    Workers,
    backend_of,
)
from dpdist.cluster.terminal import OUTPUT
from dpdist.data import as_source
from dpdist.inference.topics.prediction import complete_documents
from dpdist.runs.methods.topics import UPDATES
from dpdist.runs.opening import stored_topics


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
    predictor, source = stored_topics(run), as_source(data)
    predictor.check_source(source, run)
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
