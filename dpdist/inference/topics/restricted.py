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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import psi

from dpdist.data.base import Partition
from dpdist.inference.topics.batch_summary import Measured
from dpdist.inference.topics.lap_moves import Merging
from dpdist.inference.topics.model import TopicModel, TopicPosterior
from dpdist.inference.topics.online_local_step import (
    MOST,
    TOLERANCE,
    Halves,
    cut_tokens,
    divide_tokens,
    entries_where,
    tokens_of,
)
from dpdist.inference.topics.point_model import point_posterior
from dpdist.kernels.sequential_counts import Sparse
from dpdist.kernels.topic_splits import divide_freely

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
    """

    topic: int
    words: np.ndarray
    weights: np.ndarray
    gain: float = -np.inf


class Restricted(ABC):
    """A form of the restricted iteration: two functions that workers run, and what the coordinator makes of them."""

    #: (partition, its sums, posterior, merging, topics (C,)) -> what documents have of each of the topics.
    cut: ClassVar[Callable[..., tuple[Any, ...]]]
    #: (what was cut, orders of each split, whether to measure the change of the bound) -> Halves.
    divide: ClassVar[Callable[..., Halves]]

    @abstractmethod
    def order(self, model: TopicModel, words: np.ndarray, split: Split) -> object:
        """What workers need to know of a split; `words` (W, K) are the topics' expected counts."""

    @abstractmethod
    def update(self, words: np.ndarray, split: Split, seen: np.ndarray) -> np.ndarray:
        """Expected counts (W, 2) of the halves, from those of the topics (W, K) and what documents gave them (W, 2)."""


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

    def order(self, model: TopicModel, words: np.ndarray, split: Split) -> TopicPosterior:
        return point_posterior(model, split.words, split.weights)

    def update(self, words: np.ndarray, split: Split, seen: np.ndarray) -> np.ndarray:
        sums = seen.sum(axis=0) + 1e-300
        shares = (seen + self.smoothing * sums / sums.sum()) / (seen.sum(axis=1, keepdims=True) + self.smoothing)
        divided: np.ndarray = words[:, [split.topic]] * shares
        return divided


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
    entries, held, found = tokens_of(partition, measured, posterior, merging, topics)
    used = held.matrix(len(posterior.prior) - 1)
    every = np.diff(np.concatenate([[0.0], np.cumsum(entries.values)])[entries.begins])
    own = used[:, topics].toarray().T
    parts = []
    for k, tokens, explained in zip(topics.tolist(), found, own, strict=True):
        shares = tokens / entries.values
        there = shares >= _LEAST_SHARE
        documents = np.stack([posterior.prior[k] + explained, used.sum(axis=1) - explained, every], axis=1)
        parts.append(_Shares(entries_where(entries, entries.values, there), shares[there], documents))
    return tuple(parts)


def _share_afresh(tokens: tuple[_Shares, ...], task: tuple[_Replaced, ...], measured: bool) -> Halves:
    """The free restricted local step of each of C splits, with the change of the bound if it is to be measured."""
    found = Halves.zeros(len(task), len(task[0].log_odds))
    for place, (own, order) in enumerate(zip(tokens, task, strict=True)):
        divide_freely(
            own.counts.begins,
            own.counts.columns,
            own.counts.values,
            own.shares,
            own.documents,
            order.log_odds,
            order.prior,
            order.alpha,
            TOLERANCE,
            MOST,
            measured,
            found.words[place],
            found.log_theta[place],
            found.totals[place],
        )
    return found


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

    def order(self, model: TopicModel, words: np.ndarray, split: Split) -> _Replaced:
        counts = np.column_stack([split.words, words[:, split.topic]])
        log_phi = psi(model.pseudocount + counts) - psi(model.vocabulary * model.pseudocount + counts.sum(axis=0))
        alpha = model.allocation.document_concentration
        return _Replaced(log_phi[:, :2] - log_phi[:, 2:], alpha * split.weights, alpha)

    def update(self, words: np.ndarray, split: Split, seen: np.ndarray) -> np.ndarray:
        found = self.rate * seen
        found[:, 0] += (1 - self.rate) * self.before[:, split.topic]
        return found
