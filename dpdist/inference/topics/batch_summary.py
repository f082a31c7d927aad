"""Summary of a batch of documents: sums under the current topics and under candidates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln, psi

from dpdist.inference.sample import Sample
from dpdist.inference.topics.documents import DocumentTopics, PairSums
from dpdist.inference.topics.kept import BatchDocuments
from dpdist.inference.topics.summary import (
    DOCUMENTS,
    LOG_GAMMA,
    LOG_PI,
    PRIOR,
    PSI_SUM,
    SLACK,
    TopicSummary,
    without_topics,
)


@dataclass(frozen=True, eq=False)
class Measured:
    """Documents under one set of topics.

    Parameters
    ----------
    summary : their sums
    pairs : sums for unions of two topics
    topics : of each document, if available; None in sums
    """

    summary: TopicSummary
    pairs: PairSums
    topics: DocumentTopics | None = None

    def __add__(self, other: Measured) -> Measured:
        return Measured(self.summary + other.summary, self.pairs + other.pairs)

    def scaled(self, factor: float) -> Measured:
        """All sums multiplied by `factor`."""
        return Measured(self.summary.scaled(factor), self.pairs.scaled(factor))


@dataclass(frozen=True, eq=False)
class TopicBatchSummary:
    """The last local step of a batch, or a sum of such steps: under the current topics, and under candidates, if any.

    `documents` locates the topics of its documents; None before the first local step, and in sums over batches.
    """

    current: Measured
    candidate: Measured | None = None
    documents: BatchDocuments | None = None

    @property
    def summary(self) -> TopicSummary:
        """The sums under the current topics."""
        return self.current.summary

    @property
    def files(self) -> dict[str, dict[str, str]]:
        """Folder -> file name -> digest, of the files that belong to it."""
        return {} if self.documents is None else self.documents.files

    def __add__(self, other: TopicBatchSummary) -> TopicBatchSummary:
        mine, others = self.candidate, other.candidate
        candidate = None if mine is None or others is None else mine + others
        return TopicBatchSummary(self.current + other.current, candidate)

    def scaled(self, factor: float) -> TopicBatchSummary:
        """All sums multiplied by `factor`."""
        candidate = None if self.candidate is None else self.candidate.scaled(factor)
        return TopicBatchSummary(self.current.scaled(factor), candidate)


@dataclass(frozen=True, eq=False)
class TopicLocalStep:
    """The result of the local step on documents; adds over partitions of a batch."""

    batch_summary: TopicBatchSummary
    sample: Sample

    def __add__(self, other: TopicLocalStep) -> TopicLocalStep:
        mine, others = self.batch_summary.documents, other.batch_summary.documents
        assert mine is not None and others is not None, "documents of a batch are known"
        joined = replace(self.batch_summary + other.batch_summary, documents=mine + others)
        return TopicLocalStep(joined, self.sample + other.sample)


def with_added(summary: TopicSummary, added: int) -> TopicSummary:
    """The same documents with `added` new topics, which come last and have no sums before the next local step."""
    groups = np.insert(summary.groups, [len(summary.entropy)] * added, 0.0, axis=0)
    words = np.concatenate([summary.words, np.zeros((len(summary.words), added))], axis=1)
    return TopicSummary(words, np.concatenate([summary.entropy, np.zeros(added)]), groups, summary.totals)


def with_removed(summary: TopicSummary, removed: np.ndarray) -> TopicSummary:
    """The same documents without the topics `removed` and the tokens that these explain, until the next local step."""
    documents = max(float(summary.totals[DOCUMENTS]), 1.0)
    rest = summary.groups[[*removed, -1], PRIOR].sum() / documents
    groups = np.concatenate([np.delete(summary.groups[:-1], removed, axis=0), unused(summary, rest)[None]])
    return TopicSummary(
        without_topics(summary.words, removed), np.delete(summary.entropy, removed), groups, summary.totals
    )


def united(
    summary: TopicSummary, measured: PairSums, pairs: np.ndarray, chosen: np.ndarray, order: np.ndarray | None = None
) -> TopicSummary:
    """The same documents with the `chosen` of the `pairs` merged, each in place of its first topic.

    Parameters
    ----------
    pairs : (P, 2) topics
    chosen : indices of the merged pairs, no topic twice
    order : of the remaining topics; default: unchanged
    """
    topics = len(summary.entropy)
    first, second = pairs[chosen, 0], pairs[chosen, 1]
    kept = np.setdiff1d(np.arange(topics), second)
    kept = kept if order is None else kept[order]
    found, place = summary.take(kept), np.empty(topics, dtype=np.intp)
    if not len(chosen):
        return found
    place[kept] = np.arange(len(kept))
    into = place[first]
    found.words[:, into] += summary.words[:, second]
    found.entropy[into] += summary.entropy[second] + measured.entropy[chosen]
    found.groups[into] = measured.groups[chosen]
    return found


def unused(summary: TopicSummary, prior: float) -> np.ndarray:
    """Sums (4,) of a topic that no document uses, with the same `prior` in each document."""
    row, documents = np.zeros(4), summary.totals[DOCUMENTS]
    if documents > 0:
        row[LOG_PI] = documents * psi(prior) - summary.totals[PSI_SUM]
        row[LOG_GAMMA] = documents * gammaln(prior)
        row[SLACK] = -prior * row[LOG_PI]
        row[PRIOR] = documents * prior
    return row
