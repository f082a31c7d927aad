"""Commands for topic models: topics and score, and what predict does with the documents of a topic model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from dpdist.cluster.foreground import (
    UPDATES,
    CheckpointEvery,
    Out,
    Overwrite,
    Scheduler,
    Serial,
    Workers,
    backend_of,
    drive_fit,
    launcher_of,
)
from dpdist.cluster.running import Launch
from dpdist.cluster.terminal import OUTPUT
from dpdist.core.errors import InputError
from dpdist.core.outputs import claim_folder
from dpdist.core.places import absolute
from dpdist.data import Source, as_source
from dpdist.data.vocabularies import check_same_words
from dpdist.execution import Backend
from dpdist.inference.topics.prediction import DocumentPredictor, complete_documents
from dpdist.runs.config import TopicsConfig, read_config
from dpdist.runs.labelling import write_proportions
from dpdist.runs.opening import open_run, stored_topics
from dpdist.runs.run import Run
from dpdist.storage.commits import claim


def topics(
    data: Annotated[str | None, typer.Argument(help="Corpus of dpdist corpus; may stand in the configuration.")] = None,
    out: Out = "topics.zarr",
    config: Annotated[Path | None, typer.Option(help="TOML file with settings; options override it.")] = None,
    seed: Annotated[int | None, typer.Option(help="Key of every draw. Default: 0.")] = None,
    concentration: Annotated[float | None, typer.Option(help="gamma of the global weights. Default: 10.")] = None,
    document_concentration: Annotated[float | None, typer.Option(help="alpha of the documents. Default: 1.")] = None,
    pseudocount: Annotated[float | None, typer.Option(help="eta of the topics' words. Default: 0.1.")] = None,
    learn: Annotated[
        list[str] | None, typer.Option(help="Name of one of these three to learn; may be given several times.")
    ] = None,
    initial_topics: Annotated[int | None, typer.Option(help="Topics to begin with. Default: 50.")] = None,
    weights: Annotated[str | None, typer.Option(help="Global weights: posterior, or point (a point estimate).")] = None,
    schedule: Annotated[str | None, typer.Option(help="memoized or batch; of point: stochastic or batch.")] = None,
    batches: Annotated[
        int | None, typer.Option(help="Groups of partitions, or mini-batches of a pass; 1 is batch inference.")
    ] = None,
    lookahead: Annotated[int | None, typer.Option(help="0, or 1 to overlap batches.")] = None,
    delay: Annotated[float | None, typer.Option(help="tau of the rates of mini-batches. Default: 1.")] = None,
    forgetting: Annotated[float | None, typer.Option(help="kappa of these rates. Default: 0.5.")] = None,
    tolerance: Annotated[float | None, typer.Option(help="ELBO change a token, in nats, that counts as none.")] = None,
    max_laps: Annotated[int | None, typer.Option(help="Passes over the corpus at most. Default: 100.")] = None,
    max_time: Annotated[float | None, typer.Option(help="Seconds at most.")] = None,
    checkpoint_every: CheckpointEvery = 600.0,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
    overwrite: Overwrite = False,
) -> None:
    """Fit a hierarchical Dirichlet process topic model; checkpoints are made as often as they are cheap."""
    options: dict[str, Any] = {
        "data": data,
        "seed": seed,
        "concentration": concentration,
        "document_concentration": document_concentration,
        "pseudocount": pseudocount,
        "learn": learn or None,
        "initial_topics": initial_topics,
        "weights": weights,
        "schedule": {
            "name": schedule,
            "batches": batches,
            "lookahead": lookahead,
            "delay": delay,
            "forgetting": forgetting,
        },
        "tolerance": tolerance,
        "max_laps": max_laps,
        "max_time": max_time,
    }
    settings = read_config(TopicsConfig, config, options)
    if settings.data is None:
        raise InputError("topics needs a corpus: name one, as in dpdist topics corpus.zarr, or set data in the file.")
    claim(out, overwrite)
    settings = settings.model_copy(update={"data": absolute(settings.data)})
    source = as_source(settings.data)

    def prepare(backend: Backend) -> Run[Any]:
        fitting = settings.prepare(source, out, overwrite, backend)
        fitting.checkpoint_seconds = checkpoint_every
        return fitting

    drive_fit(prepare, launcher_of(workers, scheduler, serial, source, UPDATES), out)


def score(
    run: Annotated[str, typer.Argument(help="A run or a model of dpdist topics.")],
    data: Annotated[str, typer.Argument(help="Corpus of documents that it was not fitted to.")],
    share: Annotated[float, typer.Option(help="Of each document's tokens, to fit its proportions to.")] = 0.8,
    seed: Annotated[int, typer.Option(min=0, help="Key of the draw of these tokens.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Plain values for scripts.")] = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
) -> None:
    """Score documents by completion: the mean log probability of tokens held out, in nats."""
    predictor, source = _fitting(run, data)
    with backend_of(workers, scheduler, serial, source, UPDATES) as backend:
        found = complete_documents(predictor, source, backend, share, seed)
    values = {
        "per_token": found.per_token,
        "tokens": found.tokens,
        "documents": source.shape[0],
        "n_topics": len(predictor.ids),
        "share": share,
        "seed": seed,
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
