"""The loops of bHDP, oHDP and oHDP-SM: mini-batches of whole partitions of a source, run by a backend."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import sparse

from dpdist.core.errors import InputError
from dpdist.core.phases import Phase, phase
from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.arrays import ArraySource
from dpdist.data.base import Source
from dpdist.execution.base import Backend, Ref
from dpdist.execution.serial import SerialBackend
from dpdist.inference.loop import Step, batch_count, running_state
from dpdist.inference.moves.accept import Verdict
from dpdist.inference.schedules import Batch, Stochastic
from dpdist.inference.state import Info, Record, State
from dpdist.inference.topics.batch_summary import Measured
from dpdist.inference.topics.confidence import UnionLogs, delete_contributions, doubts, union_contributions
from dpdist.inference.topics.documents import NO_PAIRS
from dpdist.inference.topics.kept import BatchDocuments, DocumentFiles, TopicNames
from dpdist.inference.topics.local_step import (
    OnlineLocalStep,
    keep_topics,
    measure_unions,
    measured_of,
    online_local_step,
)
from dpdist.inference.topics.merges import ROUNDING, judge_online_merges, propose_online_pairs
from dpdist.inference.topics.model import point_elbo, point_posterior
from dpdist.inference.topics.online import OnlineState, updated, with_learned
from dpdist.inference.topics.online_deletes import apply_delete, choose_leftovers, fit_without, judge_deletes
from dpdist.inference.topics.online_splits import Restriction, apply_split, begin_splits, choose_topics, judge_splits
from dpdist.inference.topics.problem import PointProblem
from dpdist.inference.topics.restricted import cut_tokens
from dpdist.inference.topics.summary import TOKENS, TopicSummary
from dpdist.inference.topics.trials import Merging


class OnlineStep(NamedTuple):
    """The result of one mini-batch, or of one batch update.

    Parameters
    ----------
    state : after it
    elbo : bound in nats. Batch: of the corpus, after the update. Online: of the mini-batch scaled to the corpus, under
        the topics before it
    documents : number in the mini-batch
    tokens : number that the bound covers: those of the mini-batch, scaled in the same way
    records : every merge, split and delete judged
    seconds : wall time
    """

    state: OnlineState
    elbo: float
    documents: float
    tokens: float
    records: tuple[Record, ...]
    seconds: float


def point_steps(
    problem: PointProblem, source: Source, state: State, backend: Backend, path: str | None = None
) -> Iterator[Step]:
    """Run passes from `state` without end, online or batch according to the schedule; the caller decides when to stop.

    Each mini-batch is a batch and each pass a lap. There are no batch summaries: a fit continues from the running
    total, an :class:`OnlineState`, and in batch inference also from the documents' topics, stored at the run's `path`,
    if any.
    """
    in_batches = isinstance(problem.schedule, Batch)
    running: OnlineState = state.running
    if in_batches:
        steps = batch_steps(problem, source, running, backend, path)
    else:
        steps = online_steps(problem, source, running, backend)
    for step in steps:
        batch, lap = running.visited, running.lap
        records, seconds = running.records + step.records, running.seconds + step.seconds
        if step.state.visited:
            running = replace(step.state, records=records, seconds=seconds)
            yield Step(point_state(problem, source, running), None, None, batch, None)
            continue
        running = replace(step.state, records=(), seconds=0.0)
        info = lap_info(step._replace(records=records, seconds=seconds), lap, float(source.shape[0]))
        change = np.inf if state.elbo is None else abs(info.elbo - state.elbo)
        settled = in_batches and bool(change < problem.tolerance * max(info.counts.sum(), 1.0))
        state = replace(point_state(problem, source, running), elbo=info.elbo, quiet=settled)
        yield Step(state, info, None, batch, None)


def lap_info(step: OnlineStep, lap: int, rows: float) -> Info:
    """A pass as one lap; online, the bound is that of its last mini-batch, scaled to the corpus.

    Parameters
    ----------
    step : the last one, with the records and seconds of the whole pass
    lap : its number
    rows : number of documents
    """
    state = replace(step.state, known=None, records=(), seconds=0.0)
    return Info(
        lap=lap,
        elbo=step.elbo,
        elbo_before_moves=step.elbo,
        rows=rows,
        units=step.tokens,
        n_components=len(state.ids),
        ids=state.ids,
        counts=state.words.sum(axis=0),
        records=step.records,
        seconds=step.seconds,
        total=state,
    )


def point_state(problem: PointProblem, source: Source, running: OnlineState) -> State:
    """The state of a fit; mini-batches are numbered in the order of a pass."""
    batches = tuple(range(batch_count(problem.schedule, source)))
    return running_state(running, running.lap, batches, running.visited)


def batch_steps(
    problem: PointProblem, source: Source, state: OnlineState, backend: Backend, path: str | None = None
) -> Iterator[OnlineStep]:
    """bHDP: batch updates from `state` without end, none of which lowers the bound; the caller decides when to stop.

    The schedule and the plan are not used. Documents' topics are stored at the run's `path`.
    """
    partitions, files = backend.share_each(source.partitions), DocumentFiles.at(path, backend)
    rows = len(partitions)
    while True:
        began = time.perf_counter()
        known = [None] * rows if state.known is None else state.known.starts()
        visits = _visit(with_learned(problem, state), backend, partitions, state, files, known, moments=False)
        total: OnlineLocalStep = backend.fetch([backend.sum(visits)])[0]
        columns = (visits, [files] * rows, [state.lap] * rows, range(rows))
        kept = tuple(backend.fetch(backend.map(keep_topics, *columns)))
        topics = BatchDocuments(files.folder(state.lap), kept, TopicNames(candidate=False))
        with one_thread(), phase(Phase.GLOBAL_STEP):
            summary = total.measured.summary
            after = updated(with_learned(problem, state), state, summary, 1.0)
            state = replace(after, lap=state.lap + 1, known=topics)
            elbo = point_elbo(with_learned(problem, state).model, summary, state.words, state.weights)
        yield OnlineStep(state, elbo, summary.documents, float(summary.totals[TOKENS]), (), time.perf_counter() - began)


def online_steps(problem: PointProblem, source: Source, state: OnlineState, backend: Backend) -> Iterator[OnlineStep]:
    """oHDP, or oHDP-SM if the plan has moves: mini-batches from `state` without end; the caller decides when to stop.

    Each pass permutes the partitions and divides them into as many mini-batches as the schedule has batches. Resumed
    from any state, the loop gives the same bits.
    """
    partitions = backend.share_each(source.partitions)
    count = batch_count(problem.schedule, source)
    while True:
        order = generator(problem.seed, "partition order", state.lap).permutation(len(partitions))
        for batch in np.array_split(order, count)[state.visited :]:
            step = _online_step(problem, backend, [partitions[p] for p in batch], source.shape[0], state)
            done = step.state.visited + 1 == count
            state = replace(step.state, lap=state.lap + done, visited=0 if done else state.visited + 1)
            yield step._replace(state=state)


def partial_step(
    problem: PointProblem,
    documents: sparse.csr_array,
    corpus: float,
    state: OnlineState,
) -> OnlineStep:
    """One mini-batch that does not come from a source, in this process.

    Parameters
    ----------
    documents : (n, W) CSR counts
    corpus : D, number of documents in the whole corpus, at least n
    state : before it

    Raises
    ------
    InputError
        If the corpus has fewer documents than the mini-batch, or the vocabulary is different.
    """
    source = ArraySource(documents)
    if source.shape[1] != problem.model.vocabulary:
        raise InputError(
            f"documents should have {problem.model.vocabulary} columns, one per word of the vocabulary; got "
            f"{source.shape[1]}. Count their words with the vocabulary of the first mini-batch."
        )
    if not corpus >= source.shape[0]:
        raise InputError(
            f"corpus should be at least {source.shape[0]}, the number of documents in the mini-batch; got {corpus!r}."
        )
    place = SerialBackend()
    return _online_step(problem, place, place.share_each(source.partitions), corpus, state)


def _visit(
    problem: PointProblem,
    backend: Backend,
    partitions: Sequence[Ref[object]],
    state: OnlineState,
    files: DocumentFiles,
    known: Sequence[BatchDocuments | None],
    moments: bool,
) -> list[Ref[OnlineLocalStep]]:
    with one_thread(), phase(Phase.GLOBAL_STEP):
        posterior = backend.share(point_posterior(problem.model, state.words, state.weights))
    rows = len(partitions)
    columns = ([posterior] * rows, [problem.effort] * rows, [files] * rows, known, [moments] * rows)
    with phase(Phase.LOCAL_STEP):
        return backend.map(online_local_step, partitions, *columns)


def _online_step(
    problem: PointProblem, backend: Backend, partitions: Sequence[Ref[object]], corpus: float, state: OnlineState
) -> OnlineStep:
    began, problem = time.perf_counter(), with_learned(problem, state)
    assert isinstance(problem.schedule, Stochastic), "the schedule of mini-batches"
    rate = problem.schedule.rate(state.step)
    unknown = [None] * len(partitions)
    visits = _visit(problem, backend, partitions, state, DocumentFiles(), unknown, problem.plan.merge)
    refs, total, pairs, unsure = _with_unions(problem, backend, partitions, visits, state, corpus, rate)
    with one_thread(), phase(Phase.MOVES):
        scale = corpus / total.summary.documents
        total = total.scaled(scale)
        elbo = point_elbo(problem.model, total.summary, state.words, state.weights)
        chosen, merges = judge_online_merges(problem.model, state, total, pairs, problem.plan.lasting, unsure)
        merging = Merging(pairs, chosen, np.arange(len(state.ids) - len(chosen)))
        records = [_record("merge", state.ids[pairs[one.proposal]], one) for one in merges]
        merged, summary = _merged(state, merging), merging.apply(total, 0).summary
        state = updated(problem, merged, summary, rate)
    batch = _Batch(partitions, refs, merging, summary, scale, corpus, rate, ROUNDING * abs(elbo))
    if problem.plan.split and rate < 1:
        state, splits = _split(with_learned(problem, state), backend, batch, merged, state)
        records += splits
    if problem.plan.delete and len(state.ids) == len(merged.ids):  # a split invalidates the documents' topics
        state, deletes = _delete(with_learned(problem, state), backend, batch, state)
        records += deletes
    tokens = float(summary.totals[TOKENS])
    return OnlineStep(state, elbo, corpus / scale, tokens, tuple(records), time.perf_counter() - began)


@phase(Phase.MOVES)
def _with_unions(
    problem: PointProblem,
    backend: Backend,
    partitions: Sequence[Ref[object]],
    visits: Sequence[Ref[OnlineLocalStep]],
    state: OnlineState,
    corpus: float,
    rate: float,
) -> tuple[list[Ref[Measured]], Measured, np.ndarray, np.ndarray | None]:
    """Documents with unions of pairs of topics measured.

    Returns refs by partition, their sum, the pairs (P, 2), and the nats (P,) that gains must exceed to be trusted, or
    None.
    """
    visit: OnlineLocalStep = backend.fetch([backend.sum(visits)])[0]
    plan, pairs = problem.plan, NO_PAIRS
    if plan.merge:
        merges = plan.merges if rate <= plan.merge_rate else 0
        pairs = propose_online_pairs(visit.covariances, state.words, merges, plan.alike)
    if not len(pairs):
        return backend.map(measured_of, visits), visit.measured, pairs, None
    with one_thread():
        posterior = backend.share(point_posterior(problem.model, state.words, state.weights))
    rows, unsure, documents = len(partitions), None, visit.measured.summary.documents
    columns = (partitions, visits, [posterior] * rows)
    refs = backend.map(measure_unions, *columns, [pairs] * rows, [problem.effort] * rows)
    if plan.errors is not None:
        logs = [backend.share(UnionLogs.of(problem.model, state.words, pairs))] * rows
        effort = [problem.effort] * rows
        unsure = doubts(plan.errors, backend, documents, corpus, union_contributions, *columns, logs, effort)
    return refs, backend.fetch([backend.sum(refs)])[0], pairs, unsure


def _merged(state: OnlineState, merging: Merging) -> OnlineState:
    """The state with the chosen pairs merged, each in place of its first topic."""
    words, weights = state.words.copy(), state.weights.copy()
    first, second = merging.pairs[merging.chosen].T
    words[:, first] += words[:, second]
    weights[first] += weights[second]
    left = merging.left(len(state.ids))
    return replace(
        state,
        words=np.ascontiguousarray(words[:, left]),
        weights=weights[np.append(left, len(state.ids))],
        ids=state.ids[left],
    )


@dataclass(frozen=True, eq=False)
class _Batch:
    """A mini-batch on which splits and deletes are tried.

    Parameters
    ----------
    partitions, measured : refs
    merging : still to be applied to the documents' topics
    summary : its sums under the remaining topics, scaled to the corpus
    scale, corpus : D/|S| and D
    rate : of the global update
    noise : nats that a gain must exceed
    """

    partitions: Sequence[Ref[object]]
    measured: Sequence[Ref[Measured]]
    merging: Merging
    summary: TopicSummary
    scale: float
    corpus: float
    rate: float
    noise: float


@phase(Phase.MOVES)
def _split(
    problem: PointProblem, backend: Backend, batch: _Batch, before: OnlineState, after: OnlineState
) -> tuple[OnlineState, list[Record]]:
    """Splits after the global update from `before` to `after`."""
    model, plan, rows = problem.model, problem.plan, len(batch.partitions)
    rng = generator(problem.seed, "split topics", before.step)
    with one_thread():
        topics = choose_topics(batch.summary.counts / batch.scale, plan.splits, rng)
        splits = begin_splits(model, before, after, batch.summary, batch.rate, topics)
        posterior = backend.share(point_posterior(model, after.words, after.weights))
    if not splits:
        return after, []
    columns = ([posterior] * rows, [batch.merging] * rows, [topics] * rows)
    tokens = backend.map(cut_tokens, batch.partitions, batch.measured, *columns)
    with one_thread():
        smoothing = plan.smoothing * batch.scale
        restriction = Restriction(model, after, smoothing, backend, tokens, batch.scale, batch.corpus)
        splits = restriction.refined(splits, plan.iterations, plan.errors)
        chosen, judged = judge_splits(model, after.weights, splits, plan.max_topics - len(after.ids), batch.noise)
    records = [_record("split", after.ids[[splits[one.proposal].topic]], one) for one in judged]
    for place in chosen:
        after = apply_split(after, splits[place])
    return after, records


@phase(Phase.MOVES)
def _delete(
    problem: PointProblem, backend: Backend, batch: _Batch, state: OnlineState
) -> tuple[OnlineState, list[Record]]:
    """Deletes of small topics after the global update that led to `state`."""
    model, plan, rows, unsure = problem.model, problem.plan, len(batch.partitions), None
    with one_thread():
        rng = generator(problem.seed, "delete topics", state.step)
        topics = choose_leftovers(batch.summary.counts / batch.scale, plan.deletes, rng)
        posterior = backend.share(point_posterior(model, state.words, state.weights))
    if not len(topics):
        return state, []
    shared = ([posterior] * rows, [batch.merging] * rows, [topics] * rows, [problem.effort] * rows)
    columns = (batch.partitions, batch.measured, *shared)
    parts = backend.fetch(backend.map(fit_without, *columns))
    if plan.errors is not None:
        seen = batch.corpus / batch.scale
        unsure = doubts(plan.errors, backend, seen, batch.corpus, delete_contributions, *columns)
    with one_thread():
        fits = [functools.reduce(operator.add, each) for each in zip(*parts, strict=True)]
        chosen, judged = judge_deletes(model, state, fits, topics, batch.scale, batch.noise, unsure)
    records = [_record("delete", state.ids[[topics[one.proposal]]], one) for one in judged]
    for place in chosen:
        state = apply_delete(state, int(topics[place]))
    return state, records


def _record(kind: str, ids: np.ndarray, judged: Verdict) -> Record:
    return Record(kind, tuple(ids.tolist()), judged.gain, judged.reason)
