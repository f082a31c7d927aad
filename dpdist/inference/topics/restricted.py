"""The restricted iteration of a split, in two forms: what documents do with tokens while other topics hold still.

Shared: documents divide the tokens that topic k explains, phi' + phi'' = phi_k, and lambda of k is divided word by word
as these tokens are. Nothing but k changes, so a gain is the change of one bound, and all of it is due to the split.

Free, nearer to the paper: documents share out their tokens afresh, with lambda and theta of all other topics held
constant, so phi' + phi'' may be more or less than phi_k and what other topics explain changes by as much. The global
update of the mini-batch is made anew with these tokens, of k and of a topic that has no past,

    lambda' = (1 - rho) lambda_k + rho (eta + D/|S| n'),    lambda'' = (1 - rho) eta + rho (eta + D/|S| n'').

What is compared is the bound of the scaled mini-batch under the K + 1 topics so fitted, with that under the K topics as
the global update left them. Either side is a bound, but a gain is no change of one bound by a split alone: tokens have
moved between k and other topics, by which K topics might have gained as well, had they been updated again; and splits
that are accepted together may each have taken the same tokens of other topics, so their gains do not add up. In a
document that uses no other topic than k both forms do the same.

If lambda went on from where it is at each restricted iteration instead, the two would soon forget the past and fit the
mini-batch alone, which k, that keeps the past, cannot: nearly any topic would be split.

Source: Bryant & Sudderth (NeurIPS 2012), section 3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from dpdist.data.base import Partition
from dpdist.inference.topics.batch_summary import Measured
from dpdist.inference.topics.documents import DocumentTopics
from dpdist.inference.topics.local_step import documents_of
from dpdist.inference.topics.model import TopicModel, TopicPosterior, expected_log_words, point_posterior
from dpdist.inference.topics.trials import Merging
from dpdist.kernels.sequential_counts import Sparse
from dpdist.kernels.topic_splits import divide_documents, divide_freely, topic_tokens
from dpdist.models.families.multinomial import entries_of

#: Restricted updates of a document: tokens of change at which they end, and their largest number.
_TOLERANCE, _MOST = 1e-3, 30
#: Shares of a token below which a topic has none of it.
_LEAST_SHARE = 1e-12


@dataclass(frozen=True, eq=False)
class Split:
    """Halves of a topic.

    Parameters
    ----------
    topic : k
    words : (W, 2) lambda of the halves less the pseudocount
    weights : (2,) beta of the halves, which add up to that of the topic
    gain : change of the bound in nats, log p(beta) apart
    doubt : nats that the gain must exceed, for the documents seen are few
    """

    topic: int
    words: np.ndarray
    weights: np.ndarray
    gain: float = -np.inf
    doubt: float = -np.inf


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


class Restricted(ABC):
    """A form of the restricted iteration: two functions that workers run, and what the coordinator makes of them."""

    #: (partition, its sums, posterior, merging, topics (C,)) -> what documents have of each of the topics.
    cut: ClassVar[Callable[..., tuple[object, ...]]]
    #: (what was cut, task of each split, whether to measure the change of the bound) -> Halves.
    divide: ClassVar[Callable[..., Halves]]
    #: (what was cut of one topic, the order of its split) -> words of each document that uses it, and both for it.
    alone: ClassVar[Callable[..., Iterator[tuple[np.ndarray, object, object]]]]

    @abstractmethod
    def order(self, model: TopicModel, words: np.ndarray, split: Split) -> object:
        """What workers need to know of a split; `words` (W, K) are the topics' expected counts."""

    @abstractmethod
    def update(self, words: np.ndarray, split: Split, seen: np.ndarray) -> np.ndarray:
        """Expected counts (W, 2) of the halves, from those of the topics (W, K) and what documents gave them (W, 2)."""


def cut_tokens(
    partition: Partition, measured: Measured, posterior: TopicPosterior, merging: Merging, topics: np.ndarray
) -> tuple[Sparse, ...]:
    """Expected counts c_jw r_jwk of each of `topics` (C,), as CSR, in documents whose topics `merging` has turned."""
    entries, _, found = _tokens_of(partition, measured, posterior, merging, topics)
    return tuple(_entries_where(entries, values, values > 0) for values in found)


def _tokens_of(
    partition: Partition, measured: Measured, posterior: TopicPosterior, merging: Merging, topics: np.ndarray
) -> tuple[Sparse, DocumentTopics, np.ndarray]:
    """A partition's counts c_jw, topics of its documents as `merging` has turned them, and c_jw r_jwk of each of
    `topics` beside the counts, (C, nnz)."""
    entries, held = entries_of(documents_of(partition)), merging.apply(measured, 0).topics
    assert held is not None, "documents of a partition are known"
    place = np.full(posterior.weights.shape[1], -1, dtype=np.int64)
    place[topics] = np.arange(len(topics))
    found = np.zeros((len(topics), len(entries.values)))
    topic_tokens(entries, posterior.weights, posterior.prior, held.entries, place, found)
    return entries, held, found


def _entries_where(entries: Sparse, values: np.ndarray, there: np.ndarray) -> Sparse:
    """Those of the `values` beside some entries that are `there`, and where they are."""
    before = np.concatenate([[0], np.cumsum(there)])
    return Sparse(values[there], entries.columns[there], before[entries.begins])


def divide_tokens(tokens: tuple[Sparse, ...], posteriors: tuple[TopicPosterior, ...], measured: bool) -> Halves:
    """The restricted local step of each of C splits, with the change of the bound if it is to be measured; posteriors
    are of two topics, with a prior (2,)."""
    found = Halves.zeros(len(tokens), posteriors[0].weights.shape[0])
    for place, (entries, posterior) in enumerate(zip(tokens, posteriors, strict=True)):
        divide_documents(
            entries,
            posterior.weights,
            posterior.prior,
            _TOLERANCE,
            _MOST,
            measured,
            found.words[place],
            found.log_theta[place],
            found.totals[place],
        )
    return found


def _rows_of(entries: Sparse) -> Iterator[tuple[int, slice, np.ndarray, Sparse]]:
    """Each row that has entries: its number, where they are, their columns, and the row with these columns alone."""
    for j in np.flatnonzero(np.diff(entries.begins)).tolist():
        part = slice(entries.begins[j], entries.begins[j + 1])
        columns = entries.columns[part]
        places = np.arange(len(columns), dtype=entries.columns.dtype)
        ends = np.array([0, len(columns)], dtype=entries.begins.dtype)
        yield j, part, columns, Sparse(entries.values[part], places, ends)


def _tokens_alone(tokens: Sparse, order: TopicPosterior) -> Iterator[tuple[np.ndarray, Sparse, TopicPosterior]]:
    for _, _, words, row in _rows_of(tokens):
        yield words, row, replace(order, weights=order.weights[words])


@dataclass(frozen=True)
class Shared(Restricted):
    """Documents divide what topic k explains.

    Parameters
    ----------
    smoothing : tokens more of each word, scaled to the corpus, that are divided as all of the topic's are
    """

    smoothing: float

    cut = staticmethod(cut_tokens)
    divide = staticmethod(divide_tokens)
    alone = staticmethod(_tokens_alone)

    def order(self, model: TopicModel, words: np.ndarray, split: Split) -> TopicPosterior:
        return point_posterior(model, split.words, split.weights)

    def update(self, words: np.ndarray, split: Split, seen: np.ndarray) -> np.ndarray:
        sums = seen.sum(axis=0) + 1e-300
        shares = (seen + self.smoothing * sums / sums.sum()) / (seen.sum(axis=1, keepdims=True) + self.smoothing)
        return words[:, [split.topic]] * shares


@dataclass(frozen=True, eq=False)
class _Shares:
    """A topic's shares of tokens in documents.

    Parameters
    ----------
    counts : c_jw of words that the topic has a share of
    shares : r_jwk beside them
    documents : (n, 3) theta_jk, tokens of all other topics, tokens of all words
    """

    counts: Sparse
    shares: np.ndarray
    documents: np.ndarray


@dataclass(frozen=True, eq=False)
class _Replaced:
    """Two topics in the place of one: E log phi less that of the one (W, 2), alpha beta (2,), and alpha."""

    log_odds: np.ndarray
    prior: np.ndarray
    alpha: float


def _cut_shares(
    partition: Partition, measured: Measured, posterior: TopicPosterior, merging: Merging, topics: np.ndarray
) -> tuple[_Shares, ...]:
    """Shares of each of `topics` (C,) in a partition's documents."""
    entries, held, found = _tokens_of(partition, measured, posterior, merging, topics)
    used = held.matrix(len(posterior.prior) - 1)
    every = np.diff(np.concatenate([[0.0], np.cumsum(entries.values)])[entries.begins])
    own = used[:, topics].toarray().T
    parts = []
    for k, tokens, explained in zip(topics.tolist(), found, own, strict=True):
        shares = tokens / entries.values
        there = shares >= _LEAST_SHARE
        documents = np.stack([posterior.prior[k] + explained, used.sum(axis=1) - explained, every], axis=1)
        parts.append(_Shares(_entries_where(entries, entries.values, there), shares[there], documents))
    return tuple(parts)


def _share_afresh(tokens: tuple[_Shares, ...], task: tuple[_Replaced, ...], measured: bool) -> Halves:
    """The free restricted local step of each of C splits, with the change of the bound if it is to be measured."""
    found = Halves.zeros(len(task), len(task[0].log_odds))
    for place, (own, order) in enumerate(zip(tokens, task, strict=True)):
        divide_freely(
            own.counts,
            own.shares,
            own.documents,
            order.log_odds,
            order.prior,
            order.alpha,
            _TOLERANCE,
            _MOST,
            measured,
            found.words[place],
            found.log_theta[place],
            found.totals[place],
        )
    return found


def _shares_alone(own: _Shares, order: _Replaced) -> Iterator[tuple[np.ndarray, _Shares, _Replaced]]:
    for j, part, words, row in _rows_of(own.counts):
        yield words, _Shares(row, own.shares[part], own.documents[[j]]), replace(order, log_odds=order.log_odds[words])


@dataclass(frozen=True, eq=False)
class Free(Restricted):
    """Documents share out all their tokens, with lambda and theta of all other topics held constant.

    Parameters
    ----------
    rate : rho of the global update
    before : (W, K) expected counts of the topics before it
    """

    rate: float
    before: np.ndarray

    cut = staticmethod(_cut_shares)
    divide = staticmethod(_share_afresh)
    alone = staticmethod(_shares_alone)

    def order(self, model: TopicModel, words: np.ndarray, split: Split) -> _Replaced:
        counts = np.column_stack([split.words, words[:, split.topic]])
        log_phi, alpha = expected_log_words(model, counts), model.allocation.document_concentration
        return _Replaced(log_phi[:, :2] - log_phi[:, 2:], alpha * split.weights, alpha)

    def update(self, words: np.ndarray, split: Split, seen: np.ndarray) -> np.ndarray:
        found = self.rate * seen
        found[:, 0] += (1 - self.rate) * self.before[:, split.topic]
        return found
