"""Topic models as generations on disk: as runs of mixtures are, with batch summaries and trials of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import zarr

from dpdist.core.strings import join_strings, part_strings
from dpdist.data.vocabularies import Words
from dpdist.inference.schedules import Schedule
from dpdist.inference.topics.batch_summary import Measured, TopicBatchSummary
from dpdist.inference.topics.documents import DocumentTopics, Effort, PairSums, join_documents
from dpdist.inference.topics.hyperparameters import learned
from dpdist.inference.topics.lap_moves import Merging, TopicMap, TopicTrials
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.problem import PosteriorProblem, TopicPlan, TopicProblem
from dpdist.inference.topics.summary import TopicSummary
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess
from dpdist.storage import schema
from dpdist.storage.checkpoint import Fitted, RunStore
from dpdist.storage.stored_parts import read_part, write_part
from dpdist.storage.stored_state import StateKind

#: Plain values of trials.
_PLAIN = ("kind", "fresh", "age", "births_refused", "deletes_refused")


def write_summary(group: zarr.Group, summary: TopicSummary) -> None:
    """Store sums over documents in a group."""
    schema.write(group, "word_count", summary.words)
    schema.write(group, "topic_entropy", summary.entropy)
    schema.write(group, "topic_group", summary.groups)
    schema.write(group, "document_total", summary.totals)


def read_summary(group: zarr.Group) -> TopicSummary:
    """The sums over documents in a group."""
    names = ("word_count", "topic_entropy", "topic_group", "document_total")
    return TopicSummary(*(schema.read(group, name) for name in names))


def write_words(group: zarr.Group, words: Words | None) -> None:
    """Store the words of the documents in a group, if they are known."""
    if words is not None:
        text, offsets = join_strings(words)
        schema.write(group, "vocabulary_text", text)
        schema.write(group, "vocabulary_offset", offsets)


def read_words(group: zarr.Group) -> Words | None:
    """The words stored in a group; None if there are none."""
    if "vocabulary_text" not in group:
        return None
    return tuple(part_strings(schema.read(group, "vocabulary_text"), schema.read(group, "vocabulary_offset")))


def write_documents(group: zarr.Group, parts: Sequence[DocumentTopics]) -> None:
    """Store the topics of several sets of documents, one after the other, in a group."""
    joined = join_documents(list(parts))
    group.attrs["documents"] = [len(part) for part in parts]
    schema.write(group, "document_indptr", joined.indptr)
    schema.write(group, "document_topic", joined.topics)
    schema.write(group, "document_count", joined.counts)


def read_documents(group: zarr.Group) -> list[DocumentTopics]:
    """The topics of the sets of documents in a group."""
    documents: Any = group.attrs["documents"]
    names = ("document_indptr", "document_topic", "document_count")
    joined = DocumentTopics(*(schema.read(group, name) for name in names))
    return [joined.part(a, b) for a, b in itertools.pairwise(np.cumsum([0, *documents]).tolist())]


#: What of measured documents is stored in one array for all batch summaries of a pack.
_MEASURED: dict[str, Callable[[Measured], np.ndarray]] = {
    "batch_word_count": lambda measured: measured.summary.words,
    "batch_topic_entropy": lambda measured: measured.summary.entropy,
    "batch_topic_group": lambda measured: measured.summary.groups,
    "batch_document_total": lambda measured: measured.summary.totals,
    "pair_entropy": lambda measured: measured.pairs.entropy,
    "pair_group": lambda measured: measured.pairs.groups,
}


def _write_measured(group: zarr.Group, parts: Sequence[Measured]) -> None:
    for name, of in _MEASURED.items():
        schema.write(group, name, np.stack([of(part) for part in parts]))
    known = [part.topics for part in parts if part.topics is not None]
    group.attrs["batches"], group.attrs["documents_known"] = len(parts), bool(known)
    if known:
        write_documents(group, known)


def _read_measured(group: zarr.Group) -> list[Measured]:
    count: Any = group.attrs["batches"]
    columns = [schema.read(group, name) for name in _MEASURED]
    known = read_documents(group) if group.attrs["documents_known"] else [None] * count
    parts = zip(*columns, known, strict=True)
    return [_measured([array.copy() for array in arrays], topics) for *arrays, topics in parts]


def _measured(arrays: list[np.ndarray], topics: DocumentTopics | None) -> Measured:
    return Measured(TopicSummary(*arrays[:4]), PairSums(*arrays[4:]), topics)


def _write_batch_summaries(group: zarr.Group, batch_summaries: Sequence[TopicBatchSummary]) -> None:
    others = [batch_summary.other for batch_summary in batch_summaries if batch_summary.other is not None]
    group.attrs["others_tried"] = bool(others)
    _write_measured(group.create_group("own"), [batch_summary.own for batch_summary in batch_summaries])
    if others:
        _write_measured(group.create_group("other"), others)


def _read_batch_summaries(group: zarr.Group) -> list[TopicBatchSummary]:
    owns = _read_measured(schema.subgroup(group, "own"))
    others = _read_measured(schema.subgroup(group, "other")) if group.attrs["others_tried"] else [None] * len(owns)
    return [TopicBatchSummary(own, other) for own, other in zip(owns, others, strict=True)]


def _write_trials(group: zarr.Group, trials: tuple[TopicTrials]) -> None:
    (tried,) = trials
    gain = tried.gain if np.isfinite(tried.gain) else None
    group.attrs.update({name: getattr(tried, name) for name in _PLAIN} | {"gain": gain, "model": _plain(tried.model)})
    schema.write(group, "topic_pair", tried.pairs)
    schema.write(group, "topic_gone", tried.gone)
    schema.write(group, "other_id", tried.other_ids)
    schema.write(group, "other_pair", tried.other_pairs)


def _read_trials(group: zarr.Group) -> tuple[TopicTrials]:
    attrs: dict[str, Any] = dict(group.attrs)
    attrs["gain"] = -np.inf if attrs["gain"] is None else attrs["gain"]
    attrs["model"] = None if attrs["model"] is None else model_of(attrs["model"])
    names = {"pairs": "topic_pair", "gone": "topic_gone", "other_ids": "other_id", "other_pairs": "other_pair"}
    arrays: dict[str, Any] = {name: schema.read(group, key) for name, key in names.items()}
    return (TopicTrials(**arrays, **attrs),)


def _plain(model: TopicModel | None) -> dict[str, Any] | None:
    return None if model is None else asdict(model)


def model_of(values: dict[str, Any]) -> TopicModel:
    """The model of plain values."""
    return TopicModel(**{**values, "allocation": HierarchicalDirichletProcess(**values["allocation"])})


def _write_turning(group: zarr.Group, component_map: TopicMap) -> None:
    group.attrs.update({"take_other": component_map.take_other, "tried_on": component_map.other is not None})
    _write_merging(group.create_group("own"), component_map.own)
    if component_map.other is not None:
        _write_merging(group.create_group("other"), component_map.other)


def _read_turning(group: zarr.Group, after: tuple[TopicTrials]) -> TopicMap:
    return TopicMap(
        take_other=bool(group.attrs["take_other"]),
        own=_read_merging(schema.subgroup(group, "own")),
        other=_read_merging(schema.subgroup(group, "other")) if group.attrs["tried_on"] else None,
        after=after[0],
    )


def _write_merging(group: zarr.Group, merging: Merging) -> None:
    schema.write(group, "turned_pair", merging.pairs)
    schema.write(group, "turned_chosen", merging.chosen)
    schema.write(group, "turned_order", merging.order)


def _read_merging(group: zarr.Group) -> Merging:
    pairs, chosen, order = (schema.read(group, f"turned_{name}") for name in ("pair", "chosen", "order"))
    return Merging(pairs, chosen.astype(np.intp), order.astype(np.intp))


#: How the states of topic models are stored.
TOPICS = StateKind(
    _write_batch_summaries, _read_batch_summaries, _write_trials, _read_trials, _write_turning, _read_turning
)


class TopicStore(RunStore):
    """A run of a topic model, or a model saved from one."""

    method = "memoized topics"
    kind = TOPICS

    @staticmethod
    def write_problem(group: zarr.Group, problem: PosteriorProblem) -> None:
        group.attrs.update(
            {
                "model": asdict(problem.model),
                "seed": problem.seed,
                "tolerance": problem.tolerance,
                "learn": list(problem.learn),
            }
        )
        for name in ("schedule", "plan", "effort"):
            write_part(group, name, getattr(problem, name))
        write_words(group, problem.words)

    @staticmethod
    def read_problem(group: zarr.Group) -> PosteriorProblem:
        attrs: dict[str, Any] = dict(group.attrs)
        return TopicProblem(
            model=model_of(attrs["model"]),
            weights="posterior",
            schedule=read_part(group, "schedule", Schedule),
            plan=read_part(group, "plan", TopicPlan),
            effort=read_part(group, "effort", Effort),
            seed=attrs["seed"],
            tolerance=attrs["tolerance"],
            learn=tuple(attrs["learn"]),
            words=read_words(group),
        )

    @staticmethod
    def write_fitted(group: zarr.Group, problem: PosteriorProblem, fitted: Fitted) -> None:
        weights = learned(problem.model, fitted.total, problem.learn).sticks(fitted.total).weights
        group.attrs["rest_weight"] = float(weights[-1])
        schema.write(group, "id", fitted.ids)
        schema.write(group, "topic_weight", weights[:-1])
        write_summary(group, fitted.total)

    @staticmethod
    def read_total(group: zarr.Group) -> TopicSummary:
        return read_summary(group)
