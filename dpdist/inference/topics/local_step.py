"""What a worker does with one partition of documents."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition
from dpdist.inference.mixture.local_step import Sample
from dpdist.inference.topics.batch_summary import Measured, TopicBatchSummary, TopicVisit
from dpdist.inference.topics.documents import DocumentTopics, Effort, local_step
from dpdist.inference.topics.model import TopicPosterior


@dataclass(frozen=True, eq=False)
class Under:
    """A set of topics to fit documents under: its posterior, and the pairs (P, 2) whose unions are measured."""

    posterior: TopicPosterior
    pairs: np.ndarray


@dataclass(frozen=True, eq=False)
class TopicLocalStepTask:
    """All that workers need for one batch besides their documents.

    Parameters
    ----------
    own : the topics in use
    other : those tried instead; None where none are
    effort : how far documents are iterated
    chance : with which a document joins the sample
    seed, lap : key of the draws
    """

    own: Under
    other: Under | None
    effort: Effort
    chance: float
    seed: int
    lap: int


@dataclass(frozen=True, eq=False)
class Known:
    """The topics of a partition's documents at their last visit, in use and tried; None before the first."""

    own: DocumentTopics | None = None
    other: DocumentTopics | None = None


def visit_documents(partition: Partition, _shared: None, task: TopicLocalStepTask, known: Known) -> TopicVisit:
    """Visit one partition."""
    rows, _ = partition.load()
    documents = sparse.csr_array(rows)
    documents.eliminate_zeros()
    with one_thread():
        # Where others are tried, these have the fresh starts; those in use go on from where they were.
        effort = task.effort if task.other is None else replace(task.effort, fresh=False)
        own = _measure(documents, task.own, known.own, effort)
        other = None if task.other is None else _measure(documents, task.other, known.other, task.effort)
    return TopicVisit(TopicBatchSummary(own, other), _draw(documents, task, partition.index))


def _measure(documents: sparse.csr_array, under: Under, known: DocumentTopics | None, effort: Effort) -> Measured:
    before = DocumentTopics.unknown(documents.shape[0]) if known is None else known
    return Measured(*local_step(under.posterior, documents, before, under.pairs, effort))


def _draw(documents: sparse.csr_array, task: TopicLocalStepTask, partition: int) -> Sample:
    keys: np.ndarray = generator(task.seed, "sample", task.lap, partition).random((documents.shape[0],))
    chosen = np.flatnonzero(keys < task.chance)
    return Sample(keys[chosen], np.zeros(len(chosen), dtype=np.int64), np.ones(len(chosen)), documents[chosen])
