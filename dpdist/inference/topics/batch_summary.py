"""What a batch of documents leaves behind: sums under the topics in use and under those that are tried instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln, psi

from dpdist.inference.mixture.local_step import Sample
from dpdist.inference.topics.documents import DocumentTopics, PairSums, join_documents
from dpdist.inference.topics.summary import (
    DOCUMENTS,
    LOG_GAMMA,
    LOG_PI,
    PRIOR,
    PSI_SUM,
    SLACK,
    TopicSummary,
)


@dataclass(frozen=True, eq=False)
class Measured:
    """Documents under one set of topics.

    Parameters
    ----------
    summary : their sums
    pairs : sums of unions of two topics
    topics : the topics of each document; None in sums over batches
    """

    summary: TopicSummary
    pairs: PairSums
    topics: DocumentTopics | None = None

    def __add__(self, other: Measured) -> Measured:
        return Measured(self.summary + other.summary, self.pairs + other.pairs)

    def scaled(self, factor: float) -> Measured:
        """Every sum times `factor`."""
        return Measured(self.summary.scaled(factor), self.pairs.scaled(factor))

    @property
    def layout(self) -> tuple[Any, ...]:
        """Shapes of what is stored of it, and whether its documents' topics are known."""
        return self.summary.words.shape, self.pairs.entropy.shape, self.topics is not None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        summary, pairs, known = self.summary, self.pairs, self.topics
        arrays = [summary.words, summary.entropy, summary.groups, summary.totals, pairs.entropy, pairs.groups]
        arrays += [] if known is None else [known.indptr, known.topics, known.counts]
        return sum(array.nbytes for array in arrays)

    def beside(self, other: Measured) -> Measured:
        """Of documents of the same batch, one set after the other."""
        assert self.topics is not None and other.topics is not None, "documents of a batch are known"
        joined = join_documents([self.topics, other.topics])
        return Measured(self.summary + other.summary, self.pairs + other.pairs, joined)


@dataclass(frozen=True, eq=False)
class TopicBatchSummary:
    """The last visit of a batch, or a sum of such: under the topics in use, and under those tried instead, if any."""

    own: Measured
    other: Measured | None = None

    @property
    def summary(self) -> TopicSummary:
        """Under the topics in use."""
        return self.own.summary

    @property
    def layout(self) -> tuple[Any, ...]:
        """The same for batch summaries that can be stored as one."""
        return self.own.layout, None if self.other is None else self.other.layout

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.own.nbytes + (0 if self.other is None else self.other.nbytes)

    def __add__(self, other: TopicBatchSummary) -> TopicBatchSummary:
        mine, others = self.other, other.other
        return TopicBatchSummary(self.own + other.own, None if mine is None or others is None else mine + others)

    def scaled(self, factor: float) -> TopicBatchSummary:
        """Every sum times `factor`."""
        return TopicBatchSummary(self.own.scaled(factor), None if self.other is None else self.other.scaled(factor))


@dataclass(frozen=True, eq=False)
class TopicVisit:
    """What comes back from documents; adds over partitions of a batch."""

    batch_summary: TopicBatchSummary
    sample: Sample

    def __add__(self, other: TopicVisit) -> TopicVisit:
        mine, others = self.batch_summary, other.batch_summary
        tried = None if mine.other is None or others.other is None else mine.other.beside(others.other)
        return TopicVisit(TopicBatchSummary(mine.own.beside(others.own), tried), self.sample + other.sample)


def awaiting(summary: TopicSummary, fresh: int) -> TopicSummary:
    """The same documents before they have met `fresh` new topics, last: these sums of theirs are still to come."""
    groups = np.insert(summary.groups, [len(summary.entropy)] * fresh, 0.0, axis=0)
    words = np.concatenate([summary.words, np.zeros((len(summary.words), fresh))], axis=1)
    return TopicSummary(words, np.concatenate([summary.entropy, np.zeros(fresh)]), groups, summary.totals)


def without(summary: TopicSummary, gone: np.ndarray) -> TopicSummary:
    """The same documents without the topics `gone` and without the tokens these explained, until the next visit."""
    documents = max(float(summary.totals[DOCUMENTS]), 1.0)
    rest = summary.groups[[*gone, -1], PRIOR].sum() / documents
    groups = np.concatenate([np.delete(summary.groups[:-1], gone, axis=0), unused(summary, rest)[None]])
    words = np.ascontiguousarray(np.delete(summary.words, gone, axis=1))
    return TopicSummary(words, np.delete(summary.entropy, gone), groups, summary.totals)


def united(summary: TopicSummary, measured: PairSums, pairs: np.ndarray, chosen: np.ndarray) -> TopicSummary:
    """The same documents with the `chosen` of the `pairs` made one each, in the first one's place.

    Parameters
    ----------
    pairs : (P, 2) topics
    chosen : which of them, no topic twice
    """
    first, second = pairs[chosen, 0], pairs[chosen, 1]
    words, entropy, groups = summary.words.copy(), summary.entropy.copy(), summary.groups.copy()
    words[:, first] += words[:, second]
    entropy[first] += entropy[second] + measured.entropy[chosen]
    groups[first] = measured.groups[chosen]
    kept = np.setdiff1d(np.arange(len(entropy)), second)
    return TopicSummary(words, entropy, groups, summary.totals).take(kept)


def unused(summary: TopicSummary, prior: float) -> np.ndarray:
    """Sums (4,) of a topic that no document uses and each gives the same `prior`."""
    row, documents = np.zeros(4), summary.totals[DOCUMENTS]
    if documents > 0:
        row[LOG_PI] = documents * psi(prior) - summary.totals[PSI_SUM]
        row[LOG_GAMMA] = documents * gammaln(prior)
        row[SLACK] = -prior * row[LOG_PI]
        row[PRIOR] = documents * prior
    return row
