"""The restricted iteration of a split: documents divide the tokens of one topic while all other topics are fixed.

Documents divide the tokens that topic k explains, phi' + phi'' = phi_k, and lambda of k is divided word by word in the
same proportions. Only k changes, so a gain is the change of one bound, and it is due to the split alone.

In the paper, documents reassign all their tokens, so phi' + phi'' may differ from phi_k. Then the two bounds compared
differ by more than the split: tokens have moved between k and other topics, and the gains of several splits, which may
have taken the same tokens of other topics, do not add.

Source: Bryant & Sudderth (NeurIPS 2012), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dpdist.data.base import Partition
from dpdist.inference.topics.batch_summary import Measured
from dpdist.inference.topics.local_step import documents_of
from dpdist.inference.topics.model import TopicPosterior
from dpdist.inference.topics.trials import Merging
from dpdist.kernels.sequential_counts import Sparse
from dpdist.kernels.topic_splits import divide_documents, topic_tokens
from dpdist.models.families.multinomial import entries_of
from dpdist.models.sufficient_statistics import Additive

#: Restricted updates of a document: change in tokens at which they stop, and their largest number.
_TOLERANCE, _MOST = 1e-3, 30


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


def cut_tokens(
    partition: Partition, measured: Measured, posterior: TopicPosterior, merging: Merging, topics: np.ndarray
) -> tuple[Sparse, ...]:
    """Expected counts c_jw r_jwk of each of `topics` (C,), as CSR, after `merging` of the documents' topics."""
    entries, held = entries_of(documents_of(partition)), merging.apply(measured, 0).topics
    assert held is not None, "documents of a partition are known"
    place = np.full(posterior.weights.shape[1], -1, dtype=np.int64)
    place[topics] = np.arange(len(topics))
    found = np.zeros((len(topics), len(entries.values)))
    topic_tokens(entries, posterior.weights, posterior.prior, held.entries, place, found)
    return tuple(_positive(entries, values) for values in found)


def _positive(entries: Sparse, values: np.ndarray) -> Sparse:
    """The positive `values` of entries, as sparse rows."""
    there = values > 0
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


def tokens_alone(tokens: Sparse, posterior: TopicPosterior) -> Iterator[tuple[np.ndarray, Sparse, TopicPosterior]]:
    """Each document that has tokens: their words, and the tokens and the two topics restricted to these words."""
    for j in np.flatnonzero(np.diff(tokens.begins)).tolist():
        part = slice(tokens.begins[j], tokens.begins[j + 1])
        words = tokens.columns[part]
        places = np.arange(len(words), dtype=tokens.columns.dtype)
        row = Sparse(tokens.values[part], places, np.array([0, len(words)], dtype=tokens.begins.dtype))
        yield words, row, replace(posterior, weights=posterior.weights[words])


def divided_words(words: np.ndarray, split: Split, seen: np.ndarray, smoothing: float) -> np.ndarray:
    """Expected counts (W, 2) of the halves, from those of the topics (W, K) and of the documents, `seen` (W, 2).

    `smoothing` is the number of additional tokens of each word that are divided like all tokens of the topic.
    """
    sums = seen.sum(axis=0) + 1e-300
    shares = (seen + smoothing * sums / sums.sum()) / (seen.sum(axis=1, keepdims=True) + smoothing)
    return np.asarray(words[:, [split.topic]] * shares)
