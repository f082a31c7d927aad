"""The restricted iteration of a split, in two forms: documents reassign tokens while other topics are fixed.

Shared: documents divide the tokens that topic k explains, phi' + phi'' = phi_k, and lambda of k is divided word by word
in the same proportions. Only k changes, so a gain is the change of one bound, and it is due to the split alone.

Free, closer to the paper: documents reassign all their tokens, with lambda and theta of all other topics fixed, so phi'
+ phi'' may differ from phi_k, and what other topics explain changes accordingly. The global update of the mini-batch is
repeated with these tokens, for k and for a topic without a past,

    lambda' = (1 - rho) lambda_k + rho (eta + D/|S| n'),    lambda'' = (1 - rho) eta + rho (eta + D/|S| n'').

The bound of the scaled mini-batch under the K + 1 topics fitted in this way is compared with that under the K topics
after the global update. Both are bounds, but the difference is not due to the split alone. Tokens have moved between k
and other topics, and the K topics might also have gained from another update; and several accepted splits may have
taken the same tokens of other topics, so their gains do not add. In a document that uses no topic but k, both forms are
equal.

If lambda instead continued from its value at each restricted iteration, the two halves would soon forget the past and
fit only the mini-batch, which k, which keeps the past, cannot: nearly every topic would be split.

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
from dpdist.models.sufficient_statistics import Additive

#: Restricted updates of a document: change in tokens at which they stop, and their largest number.
_TOLERANCE, _MOST = 1e-3, 30
#: Smaller shares of a token count as zero.
_LEAST_SHARE = 1e-12


@dataclass(frozen=True, eq=False)
class Split:
    """Halves of a topic.

    Parameters
    ----------
    topic : k
    words : (W, 2) lambda of the halves minus the pseudocount
    weights : (2,) beta of the halves, which sum to that of the topic
    gain : change of the bound in nats, without log p(beta)
    doubt : nats that the gain must exceed because only some documents were seen
    """

    topic: int
    words: np.ndarray
    weights: np.ndarray
    gain: float = -np.inf
    doubt: float = -np.inf


@dataclass(frozen=True, eq=False)
class Halves(Additive):
    """Two topics for each of C splits: their q, and the sums from dividing tokens between them; adds over documents.

    Parameters
    ----------
    words : (C, W, 2) expected counts
    log_theta : (C, 2) sums of psi(theta_j) over the documents that use the split topic
    totals : (C, 2) change of the documents' bound without the words' probabilities, if measured, and the number of
        these documents
    """

    words: np.ndarray
    log_theta: np.ndarray
    totals: np.ndarray

    @staticmethod
    def zeros(splits: int, vocabulary: int) -> Halves:
        """The sums over zero documents."""
        return Halves(np.zeros((splits, vocabulary, 2)), np.zeros((splits, 2)), np.zeros((splits, 2)))


class Restricted(ABC):
    """A form of the restricted iteration: functions that workers run, and the coordinator's update."""

    #: (partition, its sums, posterior, merging, topics (C,)) -> the documents' data for each of the topics.
    cut: ClassVar[Callable[..., tuple[object, ...]]]
    #: (data of all topics, orders of the splits, whether to measure the change of the bound) -> Halves.
    divide: ClassVar[Callable[..., Halves]]
    #: (data of one topic, order of its split) -> for each document that uses it: its words, its data and its order.
    alone: ClassVar[Callable[..., Iterator[tuple[np.ndarray, object, object]]]]

    @abstractmethod
    def order(self, model: TopicModel, words: np.ndarray, split: Split) -> object:
        """What workers need to know about a split; `words` (W, K) are the topics' expected counts."""

    @abstractmethod
    def update(self, words: np.ndarray, split: Split, seen: np.ndarray) -> np.ndarray:
        """Expected counts (W, 2) of the halves, from those of the topics (W, K) and of the documents, `seen` (W, 2)."""


def cut_tokens(
    partition: Partition, measured: Measured, posterior: TopicPosterior, merging: Merging, topics: np.ndarray
) -> tuple[Sparse, ...]:
    """Expected counts c_jw r_jwk of each of `topics` (C,), as CSR, after `merging` of the documents' topics."""
    entries, _, found = _tokens_of(partition, measured, posterior, merging, topics)
    return tuple(_entries_where(entries, values, values > 0) for values in found)


def _tokens_of(
    partition: Partition, measured: Measured, posterior: TopicPosterior, merging: Merging, topics: np.ndarray
) -> tuple[Sparse, DocumentTopics, np.ndarray]:
    """A partition's counts c_jw, its documents' topics after `merging`, and c_jw r_jwk of `topics`, (C, nnz)."""
    entries, held = entries_of(documents_of(partition)), merging.apply(measured, 0).topics
    assert held is not None, "documents of a partition are known"
    place = np.full(posterior.weights.shape[1], -1, dtype=np.int64)
    place[topics] = np.arange(len(topics))
    found = np.zeros((len(topics), len(entries.values)))
    topic_tokens(entries, posterior.weights, posterior.prior, held.entries, place, found)
    return entries, held, found


def _entries_where(entries: Sparse, values: np.ndarray, there: np.ndarray) -> Sparse:
    """The `values` of entries for which `there` is true, as sparse rows."""
    before = np.concatenate([[0], np.cumsum(there)])
    return Sparse(values[there], entries.columns[there], before[entries.begins])


def divide_tokens(tokens: tuple[Sparse, ...], posteriors: tuple[TopicPosterior, ...], measured: bool) -> Halves:
    """The restricted local step of each of C splits, with the change of the bound if `measured`.

    Each posterior is of two topics, with a prior (2,).
    """
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
    """Each nonempty row: its number, its slice, its columns, and the row restricted to these columns."""
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
    """Documents divide the tokens that topic k explains.

    Parameters
    ----------
    smoothing : additional tokens of each word, scaled to the corpus, that are divided like all tokens of the topic
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
    counts : c_jw of words of which the topic has a share
    shares : r_jwk for each of these counts
    documents : (n, 3) theta_jk, tokens of all other topics, tokens of all words
    """

    counts: Sparse
    shares: np.ndarray
    documents: np.ndarray


@dataclass(frozen=True, eq=False)
class _Replaced:
    """Two topics in place of one: E log phi minus that of the replaced topic (W, 2), alpha beta (2,), and alpha."""

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
    """The free restricted local step of each of C splits, with the change of the bound if `measured`."""
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
    """Documents reassign all their tokens, with lambda and theta of all other topics fixed.

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
