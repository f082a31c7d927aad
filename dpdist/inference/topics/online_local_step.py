"""What workers do with the documents of a mini-batch, and what is additive of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from dpdist.core.threads import one_thread
from dpdist.data.base import Partition
from dpdist.inference.topics.batch_summary import Measured
from dpdist.inference.topics.documents import NO_PAIRS, DocumentTopics, Effort, local_step
from dpdist.inference.topics.lap_moves import Merging
from dpdist.inference.topics.model import TopicPosterior
from dpdist.kernels.sequential_counts import Sparse
from dpdist.kernels.topic_splits import divide_documents, topic_tokens
from dpdist.models.families.multinomial import entries_of

#: Restricted updates of a document: tokens of change at which they end, and their largest number.
TOLERANCE, MOST = 1e-3, 30


@dataclass(frozen=True, eq=False)
class OnlineVisit:
    """Documents of a partition, or sums over several.

    Parameters
    ----------
    measured : their sums, and their topics
    first, second : (K,) sums over documents of n_jk, (K, K) of n_jk n_jl; of no topics where no merges are sought
    """

    measured: Measured
    first: np.ndarray
    second: np.ndarray

    def __add__(self, other: OnlineVisit) -> OnlineVisit:
        return OnlineVisit(self.measured + other.measured, self.first + other.first, self.second + other.second)

    @property
    def covariances(self) -> np.ndarray:
        """Of theta over documents, which is that of n, (K, K)."""
        documents = self.measured.summary.documents
        return self.second / documents - np.outer(self.first, self.first) / documents**2


def documents_of(partition: Partition) -> sparse.csr_array:
    """A partition's counts (n, W), entries above zero only."""
    rows, _ = partition.load()
    documents = sparse.csr_array(rows)
    documents.eliminate_zeros()
    return documents


def visit_batch(
    partition: Partition, posterior: TopicPosterior, effort: Effort, before: DocumentTopics | None, moments: bool
) -> OnlineVisit:
    """Fit a partition's documents.

    Parameters
    ----------
    before : their topics at an earlier visit; None if there was none
    moments : whether covariances are wanted
    """
    documents = documents_of(partition)
    known = DocumentTopics.unknown(documents.shape[0]) if before is None else before
    with one_thread():
        measured = Measured(*local_step(posterior, documents, known, NO_PAIRS, effort))
    if not moments or measured.topics is None:
        return OnlineVisit(measured, np.zeros(0), np.zeros((0, 0)))
    used = measured.topics.matrix(len(measured.summary.entropy))
    return OnlineVisit(measured, np.asarray(used.sum(axis=0)).ravel(), (used.T @ used).toarray())


def measured_of(visit: OnlineVisit) -> Measured:
    """A visit's sums and topics."""
    return visit.measured


def measure_unions(
    partition: Partition, visit: OnlineVisit, posterior: TopicPosterior, pairs: np.ndarray, effort: Effort
) -> Measured:
    """Update documents once more from where they are, and measure unions of `pairs` (P, 2) of topics."""
    known = visit.measured.topics
    assert known is not None, "documents of a partition are known"
    with one_thread():
        return Measured(
            *local_step(posterior, documents_of(partition), known, pairs, replace(effort, most=1, fresh=False))
        )


def topics_of(visit: OnlineVisit) -> DocumentTopics:
    """Topics of a partition's documents."""
    assert visit.measured.topics is not None, "documents of a partition are known"
    return visit.measured.topics


def cut_tokens(
    partition: Partition, measured: Measured, posterior: TopicPosterior, merging: Merging, topics: np.ndarray
) -> tuple[Sparse, ...]:
    """Expected counts c_jw r_jwk of each of `topics` (C,), as CSR, in documents whose topics `merging` has turned."""
    entries, _, found = tokens_of(partition, measured, posterior, merging, topics)
    return tuple(entries_where(entries, values, values > 0) for values in found)


def tokens_of(
    partition: Partition, measured: Measured, posterior: TopicPosterior, merging: Merging, topics: np.ndarray
) -> tuple[Sparse, DocumentTopics, np.ndarray]:
    """A partition's counts c_jw, topics of its documents as `merging` has turned them, and c_jw r_jwk of each of
    `topics` beside the counts, (C, nnz)."""
    entries, held = entries_of(documents_of(partition)), merging.apply(measured, 0).topics
    assert held is not None, "documents of a partition are known"
    place = np.full(posterior.weights.shape[1], -1, dtype=np.int64)
    place[topics] = np.arange(len(topics))
    found = np.zeros((len(topics), len(entries.values)))
    topic_tokens(
        entries.begins,
        entries.columns,
        entries.values,
        posterior.weights,
        posterior.prior,
        held.indptr,
        held.topics.astype(np.int64),
        held.counts.astype(np.float64),
        place,
        found,
    )
    return entries, held, found


def entries_where(entries: Sparse, values: np.ndarray, there: np.ndarray) -> Sparse:
    """Those of the `values` beside some entries that are `there`, and where they are."""
    before = np.concatenate([[0], np.cumsum(there)])
    return Sparse(values[there], entries.columns[there], before[entries.begins])


@dataclass(frozen=True, eq=False)
class Halves:
    """Two topics C times: their q, and what comes of dividing tokens between them; adds over documents.

    Parameters
    ----------
    words : (C, W, 2) expected counts
    log_theta : (C, 2) sums of psi(theta_j) over documents that use the topic divided
    totals : (C, 2) change of the documents' bound but for words' probabilities, where that is measured, and number of
        these documents
    """

    words: np.ndarray
    log_theta: np.ndarray
    totals: np.ndarray

    @staticmethod
    def zeros(splits: int, vocabulary: int) -> Halves:
        """Of no documents."""
        return Halves(np.zeros((splits, vocabulary, 2)), np.zeros((splits, 2)), np.zeros((splits, 2)))

    def __add__(self, other: Halves) -> Halves:
        return Halves(self.words + other.words, self.log_theta + other.log_theta, self.totals + other.totals)

    def scaled(self, factor: float) -> Halves:
        """Every sum times `factor`."""
        return Halves(factor * self.words, factor * self.log_theta, factor * self.totals)


def divide_tokens(tokens: tuple[Sparse, ...], posteriors: tuple[TopicPosterior, ...], measured: bool) -> Halves:
    """The restricted local step of each of C splits, with the change of the bound if it is to be measured; posteriors
    are of two topics, with a prior (2,)."""
    found = Halves.zeros(len(tokens), posteriors[0].weights.shape[0])
    for place, (entries, posterior) in enumerate(zip(tokens, posteriors, strict=True)):
        divide_documents(
            entries.begins,
            entries.columns,
            entries.values,
            posterior.weights,
            posterior.prior,
            TOLERANCE,
            MOST,
            measured,
            found.words[place],
            found.log_theta[place],
            found.totals[place],
        )
    return found
