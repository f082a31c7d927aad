"""A worker's task for one partition of documents, with posteriors or a point estimate of the global weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition
from dpdist.inference.sample import Sample
from dpdist.inference.topics.batch_summary import Measured, TopicBatchSummary, TopicLocalStep
from dpdist.inference.topics.documents import NO_PAIRS, DocumentTopics, Effort, local_step
from dpdist.inference.topics.kept import BatchDocuments, DocumentFiles, KeptDocuments, TopicNames, VisitedDocuments
from dpdist.inference.topics.model import TopicPosterior


@dataclass(frozen=True, eq=False)
class TopicSet:
    """Topics under which documents are fitted: posterior, pairs (P, 2) whose unions are measured, and effort."""

    posterior: TopicPosterior
    pairs: np.ndarray
    effort: Effort


@dataclass(frozen=True, eq=False)
class TopicLocalStepTask:
    """What workers need for one batch in addition to its documents.

    Parameters
    ----------
    current : topics
    candidate : topics that may replace them; None if none are tried
    chance : probability with which a document joins the sample
    seed, lap : key of the random draws
    files : where documents' topics are stored
    """

    current: TopicSet
    candidate: TopicSet | None
    chance: float
    seed: int
    lap: int
    files: DocumentFiles


def topic_local_step(
    partition: Partition, _shared: None, task: TopicLocalStepTask, before: BatchDocuments | None
) -> TopicLocalStep:
    """The local step on one partition, under current topics and candidates; `before` is None in the first visit."""
    documents, files = with_words(documents_of(partition)), task.files
    known, tried = (None, None) if before is None else before.read(files)
    with one_thread():
        current, visited = _measure(documents, task.current, known)
        candidate = None if task.candidate is None else _measure(documents, task.candidate, tried)
    kept = files.put(task.lap, partition.index, VisitedDocuments(visited, None if candidate is None else candidate[1]))
    names = TopicNames(candidate=False), None if candidate is None else TopicNames(candidate=True)
    left = BatchDocuments(files.folder(task.lap), (kept,), *names)
    summary = TopicBatchSummary(current, None if candidate is None else candidate[0], left)
    return TopicLocalStep(summary, _draw(documents, task, partition.index))


def _measure(
    documents: sparse.csr_array, topics: TopicSet, known: DocumentTopics | None
) -> tuple[Measured, DocumentTopics]:
    start = DocumentTopics.unknown(documents.shape[0]) if known is None else known
    summary, pairs, found = local_step(topics.posterior, documents, start, topics.pairs, topics.effort)
    return Measured(summary, pairs), found


def _draw(documents: sparse.csr_array, task: TopicLocalStepTask, partition: int) -> Sample:
    keys: np.ndarray = generator(task.seed, "sample", task.lap, partition).random((documents.shape[0],))
    chosen = np.flatnonzero(keys < task.chance)
    return Sample(keys[chosen], np.zeros(len(chosen), dtype=np.int64), np.ones(len(chosen)), documents[chosen])


def with_words(documents: sparse.csr_array) -> sparse.csr_array:
    """The nonempty documents; empty ones carry no information, but the surrogate bound would penalise each."""
    held = np.diff(documents.indptr) > 0
    return documents if held.all() else documents[held]


@dataclass(frozen=True, eq=False)
class OnlineLocalStep:
    """Documents of a partition, or sums over several.

    Parameters
    ----------
    measured : their sums and topics
    first, second : (K,) sums over documents of n_jk, (K, K) of n_jk n_jl; empty if no merges are tried
    """

    measured: Measured
    first: np.ndarray
    second: np.ndarray

    def __add__(self, other: OnlineLocalStep) -> OnlineLocalStep:
        return OnlineLocalStep(self.measured + other.measured, self.first + other.first, self.second + other.second)

    @property
    def covariances(self) -> np.ndarray:
        """(K, K) covariances of theta over documents, which equal those of n."""
        documents = self.measured.summary.documents
        return self.second / documents - np.outer(self.first, self.first) / documents**2


def documents_of(partition: Partition) -> sparse.csr_array:
    """A partition's counts (n, W), nonzero entries only."""
    rows, _ = partition.load()
    documents = sparse.csr_array(rows)
    documents.eliminate_zeros()
    return documents


def online_local_step(
    partition: Partition,
    posterior: TopicPosterior,
    effort: Effort,
    files: DocumentFiles,
    before: BatchDocuments | None,
    moments: bool,
) -> OnlineLocalStep:
    """Fit a partition's documents.

    Parameters
    ----------
    files, before : location of their topics after an earlier visit; None if there was none
    moments : whether covariances are needed
    """
    documents = documents_of(partition)
    known = DocumentTopics.unknown(documents.shape[0]) if before is None else before.read(files)[0]
    with one_thread():
        measured = Measured(*local_step(posterior, documents, known, NO_PAIRS, effort))
    if not moments or measured.topics is None:
        return OnlineLocalStep(measured, np.zeros(0), np.zeros((0, 0)))
    used = measured.topics.matrix(len(measured.summary.entropy))
    return OnlineLocalStep(measured, np.asarray(used.sum(axis=0)).ravel(), (used.T @ used).toarray())


def measured_of(done: OnlineLocalStep) -> Measured:
    """Sums and topics of the documents."""
    return done.measured


def measure_unions(
    partition: Partition, done: OnlineLocalStep, posterior: TopicPosterior, pairs: np.ndarray, effort: Effort
) -> Measured:
    """Update documents once more from their present topics, and measure unions of `pairs` (P, 2) of topics."""
    known = done.measured.topics
    assert known is not None, "documents of a partition are known"
    with one_thread():
        return Measured(
            *local_step(posterior, documents_of(partition), known, pairs, replace(effort, most=1, fresh=False))
        )


def keep_topics(done: OnlineLocalStep, files: DocumentFiles, lap: int, partition: int) -> KeptDocuments:
    """Store the topics of a partition's documents for the next lap."""
    assert done.measured.topics is not None, "documents of a partition are known"
    return files.put(lap, partition, VisitedDocuments(done.measured.topics))
