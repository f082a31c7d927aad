"""The local step for documents: sums for the bound, and each document's topics for its next visit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from scipy import sparse

from dpdist.core.checks import COUNT, FLAG, number
from dpdist.core.errors import PrecisionError
from dpdist.core.settings import check_settings, documented, setting
from dpdist.core.stored import Stored
from dpdist.inference.topics.model import TopicPosterior
from dpdist.inference.topics.summary import TopicSummary
from dpdist.kernels.sequential_counts import Sparse
from dpdist.kernels.topic_documents import Sums, share_documents
from dpdist.kernels.topic_updates import LEAST
from dpdist.kernels.topics import expected_logs
from dpdist.models.families.multinomial import entries_of
from dpdist.models.sufficient_statistics import Additive

#: An empty array of pairs of topics.
NO_PAIRS = np.zeros((0, 2), dtype=np.int64)
#: Number of documents in a block, for which n_jk is stored densely.
BLOCK = 256


@documented
@dataclass(frozen=True)
class Effort:
    """How far documents are iterated."""

    tolerance: float = setting(
        1e-3, number(least=0), "Mean over topics of the change of n_jk, in tokens, at which a document has converged."
    )
    most: int = setting(100, COUNT, "Largest number of updates of a document.")
    fresh: bool = setting(
        True,
        FLAG,
        "Whether documents are fitted from a new start, too, besides their earlier topics; the better fit is kept.",
    )

    def __post_init__(self) -> None:
        check_settings(self, " of Effort")


@dataclass(frozen=True, eq=False)
class DocumentTopics:
    """n_jk of documents as CSR: `indptr` (n + 1,), `topics` and `counts` (float32; the start of the next visit)."""

    indptr: Annotated[
        np.ndarray, Stored(("document_boundary",), "offset of each document in the arrays of topics and counts")
    ]
    topics: Annotated[np.ndarray, Stored(("use",), "topic that a document uses")]
    counts: Annotated[np.ndarray, Stored(("use",), "expected tokens of that topic in the document")]

    @staticmethod
    def unknown(documents: int) -> DocumentTopics:
        """Documents that were never visited."""
        return DocumentTopics(
            np.zeros(documents + 1, dtype=np.int64), np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
        )

    @staticmethod
    def of(held: np.ndarray) -> DocumentTopics:
        """From dense n_jk (n, K)."""
        rows, topics = np.nonzero(held >= LEAST)
        indptr = np.zeros(len(held) + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=len(held)), out=indptr[1:])
        return DocumentTopics(indptr, topics.astype(np.int32), held[rows, topics].astype(np.float32))

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def entries(self) -> Sparse:
        """n_jk in the form that kernels take."""
        return Sparse(self.counts.astype(np.float64), self.topics.astype(np.int64), self.indptr)

    def matrix(self, topics: int) -> sparse.csr_array:
        """n_jk as a matrix (n, K), float64."""
        return sparse.csr_array((self.counts.astype(np.float64), self.topics, self.indptr), shape=(len(self), topics))

    def part(self, start: int, stop: int) -> DocumentTopics:
        """The documents from `start` to `stop`."""
        first, last = self.indptr[start], self.indptr[stop]
        return DocumentTopics(self.indptr[start : stop + 1] - first, self.topics[first:last], self.counts[first:last])

    def renamed(self, names: np.ndarray) -> DocumentTopics:
        """The documents with topic k renamed to ``names[k]``; -1 drops a topic, and equal names are summed."""
        if np.array_equal(names, np.arange(len(names))):
            return self
        named = names[self.topics]
        rows = np.repeat(np.arange(len(self)), np.diff(self.indptr))
        shape = (len(self), int(names.max(initial=-1)) + 1)
        kept = named >= 0
        joined = sparse.csr_array(
            sparse.coo_array((self.counts[kept].astype(np.float64), (rows[kept], named[kept])), shape=shape)
        )
        joined.sum_duplicates()
        return DocumentTopics(
            joined.indptr.astype(np.int64), joined.indices.astype(np.int32), joined.data.astype(np.float32)
        )


def join_documents(parts: list[DocumentTopics]) -> DocumentTopics:
    """Concatenated documents; an empty list gives no documents."""
    none = DocumentTopics.unknown(0)
    ends = np.cumsum([0, *(part.indptr[-1] for part in parts)])
    indptr = [part.indptr[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
    return DocumentTopics(
        np.concatenate([none.indptr, *indptr]),
        np.concatenate([none.topics, *(part.topics for part in parts)]),
        np.concatenate([none.counts, *(part.counts for part in parts)]),
    )


@dataclass(frozen=True, eq=False)
class PairSums(Additive):
    """Sums for unions of two topics: the change of `entropy` (P,), and `groups` (P, 4) as in :class:`TopicSummary`."""

    entropy: Annotated[np.ndarray, Stored(("pair",), "change of entropy if a pair of topics is merged", "nat")]
    groups: Annotated[np.ndarray, Stored(("pair", "group_sum"), "sums over documents for merged pairs of topics")]

    @staticmethod
    def zeros(pairs: int) -> PairSums:
        """The sums over zero documents."""
        return PairSums(np.zeros(pairs), np.zeros((pairs, 4)))


def local_step(
    posterior: TopicPosterior,
    documents: sparse.csr_array,
    before: DocumentTopics,
    pairs: np.ndarray,
    effort: Effort,
) -> tuple[TopicSummary, PairSums, DocumentTopics]:
    """The local step on documents (n, W).

    Parameters
    ----------
    posterior : q
    documents : CSR counts
    before : their topics after an earlier visit
    pairs : (P, 2) topics whose unions are measured
    effort : how far documents are iterated

    Raises
    ------
    PrecisionError
        If a document's numbers are not finite.
    """
    count, entries = documents.shape[0], entries_of(documents)
    vocabulary, topics = posterior.weights.shape
    shapes = (vocabulary, topics), (topics,), (topics + 1, 2), (2,), (len(pairs),), (len(pairs), 2)
    sums, parts = Sums(*map(np.zeros, shapes)), list[DocumentTopics]()
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        parts.append(_share_block(posterior, entries, start, before.part(start, stop), pairs, effort, sums))
    logs = np.empty(topics)
    expected_logs(sums.words, posterior.weights, logs)
    groups = _with_slack(sums.groups, posterior.prior, count)
    totals = np.array([*sums.totals, count, entries.values.sum()])
    unions = PairSums(sums.pair_entropy, _with_slack(sums.pair_groups, posterior.prior[pairs].sum(axis=1), count))
    return TopicSummary(sums.words, sums.entropy - logs, groups, totals), unions, join_documents(parts)


def _share_block(
    posterior: TopicPosterior,
    entries: Sparse,
    start: int,
    before: DocumentTopics,
    pairs: np.ndarray,
    effort: Effort,
    sums: Sums,
) -> DocumentTopics:
    """The topics of the documents from `start` on, whose earlier topics are `before`; adds to the sums."""
    held = np.zeros((len(before), posterior.weights.shape[1]))
    failed = share_documents(
        entries._replace(begins=entries.begins[start : start + len(before) + 1]),
        posterior.weights,
        posterior.prior,
        before.entries,
        np.ascontiguousarray(pairs, dtype=np.int64),
        effort.tolerance,
        effort.most,
        effort.fresh,
        held,
        sums,
    )
    if failed >= 0:
        raise PrecisionError(
            f"document {start + failed} has no finite probabilities under any topic; its counts should be finite and "
            "not above 1e15."
        )
    return DocumentTopics.of(held)


def _with_slack(groups: np.ndarray, prior: np.ndarray, documents: int) -> np.ndarray:
    """Sums of E log pi and log Gamma (R, 2), extended by slack and prior; n_jk - theta_jk is minus the prior."""
    return np.column_stack([groups, -prior * groups[:, 0], documents * prior])
