"""How sure the gain of a move is that is judged on a mini-batch: its standard error over the documents seen.

With lambda and beta as they are, a gain is a constant and a sum over documents, scaled to the corpus,

    G = c + D/n sum_{j in S} g_j,

and what the n documents of a mini-batch S, drawn from D without replacement, tell of it has the standard error

    D sqrt(s^2 / n (1 - n/D)),    s^2 = sum_j (g_j - mean g)^2 / (n - 1),

none where all documents are seen, and no bound where one is. Documents that use none of a move's topics have g_j = 0
and count. A move that is to be accepted with confidence p must gain more than Phi^-1(p) standard errors. What was
fitted to the same documents, as the halves of a split are, is held fixed, and so is the factor max(1, T_k / S_k) of
deletes (:mod:`dpdist.inference.topics.online_deletes`): p is no promise, but a scale from bold to careful.

Documents are fitted once more, one by one, in just the way in which they were for the gain.

Source: Bryant & Sudderth (NeurIPS 2012), section 3, who suggest intervals of confidence for what mini-batches accept;
the standard error of a total under sampling without replacement is that of Cochran, Sampling techniques (1977),
chapter 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.special import gammaln

from dpdist.data.base import Partition
from dpdist.execution.base import Backend
from dpdist.inference.topics.batch_summary import Measured
from dpdist.inference.topics.documents import NO_PAIRS, DocumentTopics, Effort, local_step
from dpdist.inference.topics.local_step import OnlineLocalStep, documents_of
from dpdist.inference.topics.model import TopicModel, TopicPosterior, expected_log_words
from dpdist.inference.topics.online_deletes import with_and_without
from dpdist.inference.topics.restricted import Halves, Split
from dpdist.inference.topics.summary import LOG_GAMMA
from dpdist.inference.topics.trials import Merging
from dpdist.kernels.topics import LEAST_WEIGHT


@dataclass(frozen=True, eq=False)
class Contributions:
    """Of documents to P gains: sums of g_j, and of their squares, (P,) each; adds over documents."""

    first: np.ndarray
    second: np.ndarray

    @staticmethod
    def of(values: np.ndarray) -> Contributions:
        """From g_j of some documents, (n, P)."""
        return Contributions(values.sum(axis=0), (values**2).sum(axis=0))

    def __add__(self, other: Contributions) -> Contributions:
        return Contributions(self.first + other.first, self.second + other.second)

    def standard_errors(self, documents: float, corpus: float) -> np.ndarray:
        """Of the sums scaled from so many documents to those of the corpus, (P,)."""
        if documents >= corpus:
            return np.zeros_like(self.first)
        if documents < 2:
            return np.full_like(self.first, np.inf)
        variance = np.maximum(self.second - self.first**2 / documents, 0.0) / (documents - 1)
        return np.asarray(corpus * np.sqrt(variance / documents * (1 - documents / corpus)))


def doubts(
    errors: float,
    backend: Backend,
    documents: float,
    corpus: float,
    function: Callable[..., Contributions],
    *columns: Sequence[object],
) -> np.ndarray:
    """Nats that gains must exceed to be above zero by so many standard errors, (P,).

    Parameters
    ----------
    documents, corpus : n and D
    function, columns : gives the contributions of each partition
    """
    found = backend.fetch([backend.total(function, *columns)])[0]
    return errors * found.standard_errors(documents, corpus)


@dataclass(frozen=True, eq=False)
class UnionLogs:
    """Pairs (P, 2) of topics, and E log phi of their unions less that of the first and of the second, (W, P) each."""

    pairs: np.ndarray
    first: np.ndarray
    second: np.ndarray

    @staticmethod
    def of(model: TopicModel, words: np.ndarray, pairs: np.ndarray) -> UnionLogs:
        """From the topics' expected counts (W, K)."""
        one, two = words[:, pairs[:, 0]], words[:, pairs[:, 1]]
        union = expected_log_words(model, one + two)
        return UnionLogs(pairs, union - expected_log_words(model, one), union - expected_log_words(model, two))


def union_contributions(
    partition: Partition, done: OnlineLocalStep, posterior: TopicPosterior, logs: UnionLogs, effort: Effort
) -> Contributions:
    """A partition's, to the gains of making pairs of topics one. What documents' slack changes, the weights undo."""
    before, effort = done.measured.topics, replace(effort, most=1, fresh=False)
    assert before is not None, "documents of a partition are known"
    first, second = logs.pairs.T
    prior, documents = posterior.prior, documents_of(partition)
    found = np.zeros((documents.shape[0], len(first)))
    cumulant = gammaln(prior[first]) + gammaln(prior[second]) - gammaln(prior[first] + prior[second])
    for j, (words, own) in enumerate(_one_by_one(posterior, documents, before, logs.pairs, effort)):
        seen, gamma = own.summary.words, own.summary.groups[:, LOG_GAMMA]
        change = (seen[:, first] * logs.first[words] + seen[:, second] * logs.second[words]).sum(axis=0)
        change += own.pairs.entropy + own.pairs.groups[:, LOG_GAMMA] - gamma[first] - gamma[second]
        found[j] = change + cumulant
    return Contributions.of(found)


def split_contributions(
    alone: Callable[..., Iterator[tuple[np.ndarray, object, object]]],
    divide: Callable[..., Halves],
    tokens: tuple[object, ...],
    task: tuple[object, ...],
    logs: tuple[np.ndarray, ...],
) -> Contributions:
    """A partition's, to the gains of C splits.

    Parameters
    ----------
    alone, divide, tokens, task : as of :class:`~dpdist.inference.topics.restricted.Restricted`
    logs : E log phi of the halves less that of their topic, (W, 2) of each
    """
    parts = []
    for own, order, log_odds in zip(tokens, task, logs, strict=True):
        found = list[float]()
        for words, document, its_order in alone(own, order):
            halves = divide((document,), (its_order,), True)
            found.append(halves.totals[0, 0] + (halves.words[0] * log_odds[words]).sum())
        parts.append(Contributions.of(np.array(found).reshape(-1, 1)))
    return _beside(parts)


def _beside(parts: Sequence[Contributions]) -> Contributions:
    """Of the same documents, to the gains of all parts one after the other."""
    return Contributions(*(np.concatenate([getattr(each, name) for each in parts]) for name in ("first", "second")))


def split_logs(model: TopicModel, words: np.ndarray, splits: Sequence[Split]) -> tuple[np.ndarray, ...]:
    """What :func:`split_contributions` wants, from the topics' expected counts (W, K)."""
    return tuple(
        expected_log_words(model, split.words) - expected_log_words(model, words[:, [split.topic]]) for split in splits
    )


def delete_contributions(
    partition: Partition,
    measured: Measured,
    posterior: TopicPosterior,
    merging: Merging,
    topics: np.ndarray,
    effort: Effort,
) -> Contributions:
    """A partition's, to what doing without each of `topics` (C,) changes of the bound of the documents that use it."""
    parts, afresh = list[Contributions](), replace(effort, fresh=True)
    for documents, *starts in with_and_without(partition, measured, posterior, merging, topics):
        before, after = (_bounds(one, documents, known, afresh) for one, known in starts)
        parts.append(Contributions.of(after - before))
    return _beside(parts)


def _bounds(
    posterior: TopicPosterior, documents: sparse.csr_array, before: DocumentTopics, effort: Effort
) -> np.ndarray:
    """Of each document (n, 1), apart from what is the same under all or some of the topics."""
    found, cumulant = np.zeros((documents.shape[0], 1)), gammaln(posterior.prior).sum()
    for j, (words, own) in enumerate(_one_by_one(posterior, documents, before, NO_PAIRS, effort)):
        seen, logs = own.summary.words, np.log(np.maximum(posterior.weights[words], LEAST_WEIGHT))
        found[j] = own.summary.entropy.sum() + own.summary.groups[:, LOG_GAMMA].sum() + (seen * logs).sum() - cumulant
    return found


def _one_by_one(
    posterior: TopicPosterior, documents: sparse.csr_array, before: DocumentTopics, pairs: np.ndarray, effort: Effort
) -> Iterator[tuple[np.ndarray, Measured]]:
    """Each document's words, and what the local step has of them and of it alone."""
    for j in range(documents.shape[0]):
        part = slice(documents.indptr[j], documents.indptr[j + 1])
        words = documents.indices[part]
        own = sparse.csr_array((documents.data[part], np.arange(len(words)), [0, len(words)]), shape=(1, len(words)))
        narrow = replace(posterior, weights=posterior.weights[words])
        yield words, Measured(*local_step(narrow, own, before.part(j, j + 1), pairs, effort))
