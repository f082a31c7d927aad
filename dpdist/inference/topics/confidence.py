"""Uncertainty of a move's gain on a mini-batch: its standard error over the documents seen.

With lambda and beta fixed, a gain is a constant plus a sum over documents, scaled to the corpus,

    G = c + D/n sum_{j in S} g_j,

and its estimate from a mini-batch S of n documents, drawn from D without replacement, has the standard error

    D sqrt(s^2 / n (1 - n/D)),    s^2 = sum_j (g_j - mean g)^2 / (n - 1),

zero if all documents are seen, and infinite if only one is. Documents that use none of a move's topics have g_j = 0 and
are counted. With confidence p, a move is accepted if its gain exceeds Phi^-1(p) standard errors. Quantities fitted to
the same documents, such as the halves of a split, are treated as fixed, and so is the factor max(1, T_k / S_k) of
deletes (:mod:`dpdist.inference.topics.online_deletes`): p is not a guaranteed probability, but a scale from bold to
cautious.

Documents are fitted again one by one, in the same way as for the gain.

Source: Bryant & Sudderth (NeurIPS 2012), section 3, who suggest confidence intervals for moves accepted on
mini-batches; the standard error of a total under sampling without replacement is that of Cochran, Sampling techniques
(1977), chapter 2.
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
from dpdist.inference.topics.restricted import Split, divide_tokens, tokens_alone
from dpdist.inference.topics.summary import LOG_GAMMA
from dpdist.inference.topics.trials import Merging
from dpdist.kernels.sequential_counts import Sparse
from dpdist.kernels.topics import LEAST_WEIGHT
from dpdist.models.sufficient_statistics import Additive


@dataclass(frozen=True, eq=False)
class Contributions(Additive):
    """Sums over documents of contributions g_j to P gains, and of their squares, (P,) each; adds over documents."""

    first: np.ndarray
    second: np.ndarray

    @staticmethod
    def of(values: np.ndarray) -> Contributions:
        """From g_j of documents, (n, P)."""
        return Contributions(values.sum(axis=0), (values**2).sum(axis=0))

    def standard_errors(self, documents: float, corpus: float) -> np.ndarray:
        """Standard errors of the sums scaled from `documents` to `corpus` documents, (P,)."""
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
    """Nats that gains must exceed to be `errors` standard errors above zero, (P,).

    Parameters
    ----------
    documents, corpus : n and D
    function, columns : compute the contributions of each partition
    """
    found = backend.fetch([backend.total(function, *columns)])[0]
    return errors * found.standard_errors(documents, corpus)


@dataclass(frozen=True, eq=False)
class UnionLogs:
    """Pairs (P, 2) of topics, and E log phi of their unions minus that of the first and second topic, (W, P) each."""

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
    """Contributions of a partition to the gains of merging pairs of topics. Changes of slack and weights cancel."""
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
    tokens: tuple[Sparse, ...], posteriors: tuple[TopicPosterior, ...], logs: tuple[np.ndarray, ...]
) -> Contributions:
    """Contributions of a partition to the gains of C splits.

    Parameters
    ----------
    tokens, posteriors : as in :func:`~dpdist.inference.topics.restricted.divide_tokens`
    logs : E log phi of the halves minus that of their topic, (W, 2) for each split
    """
    parts = []
    for own, posterior, log_odds in zip(tokens, posteriors, logs, strict=True):
        found = list[float]()
        for words, document, its_own in tokens_alone(own, posterior):
            halves = divide_tokens((document,), (its_own,), True)
            found.append(halves.totals[0, 0] + (halves.words[0] * log_odds[words]).sum())
        parts.append(Contributions.of(np.array(found).reshape(-1, 1)))
    return _beside(parts)


def _beside(parts: Sequence[Contributions]) -> Contributions:
    """Contributions of the same documents to the gains of all parts, concatenated."""
    return Contributions(*(np.concatenate([getattr(each, name) for each in parts]) for name in ("first", "second")))


def split_logs(model: TopicModel, words: np.ndarray, splits: Sequence[Split]) -> tuple[np.ndarray, ...]:
    """The `logs` of :func:`split_contributions`, from the topics' expected counts (W, K)."""
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
    """Contributions of a partition to the change of its documents' bound if each of `topics` (C,) is deleted."""
    parts, afresh = list[Contributions](), replace(effort, fresh=True)
    for documents, *starts in with_and_without(partition, measured, posterior, merging, topics):
        before, after = (_bounds(one, documents, known, afresh) for one, known in starts)
        parts.append(Contributions.of(after - before))
    return _beside(parts)


def _bounds(
    posterior: TopicPosterior, documents: sparse.csr_array, before: DocumentTopics, effort: Effort
) -> np.ndarray:
    """The bound of each document (n, 1), without terms that are equal with and without the deleted topic."""
    found, cumulant = np.zeros((documents.shape[0], 1)), gammaln(posterior.prior).sum()
    for j, (words, own) in enumerate(_one_by_one(posterior, documents, before, NO_PAIRS, effort)):
        seen, logs = own.summary.words, np.log(np.maximum(posterior.weights[words], LEAST_WEIGHT))
        found[j] = own.summary.entropy.sum() + own.summary.groups[:, LOG_GAMMA].sum() + (seen * logs).sum() - cumulant
    return found


def _one_by_one(
    posterior: TopicPosterior, documents: sparse.csr_array, before: DocumentTopics, pairs: np.ndarray, effort: Effort
) -> Iterator[tuple[np.ndarray, Measured]]:
    """The words of each document, and the result of a local step on this document alone."""
    for j in range(documents.shape[0]):
        part = slice(documents.indptr[j], documents.indptr[j + 1])
        words = documents.indices[part]
        own = sparse.csr_array((documents.data[part], np.arange(len(words)), [0, len(words)]), shape=(1, len(words)))
        narrow = replace(posterior, weights=posterior.weights[words])
        yield words, Measured(*local_step(narrow, own, before.part(j, j + 1), pairs, effort))
