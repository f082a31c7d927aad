"""Additive summaries of documents: the results that workers return for them.

Documents enter the bound through sums alone, so summaries of disjoint documents add, even if they were fitted under
different global weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dpdist.core.stored import Stored
from dpdist.kernels.rows import take_columns
from dpdist.models.sufficient_statistics import Additive

#: Columns of :attr:`TopicSummary.groups`.
LOG_PI, LOG_GAMMA, SLACK, PRIOR = range(4)
#: Entries of :attr:`TopicSummary.totals`.
LOG_GAMMA_SUM, PSI_SUM, DOCUMENTS, TOKENS = range(4)


@dataclass(frozen=True, eq=False)
class TopicSummary(Additive):
    """Sums over documents j, with words w and topics k; the last row of `groups` is for all topics not in use.

    Parameters
    ----------
    words : (W, K) float64
        Expected counts sum_j n_jwk.
    entropy : (K,) float64
        -sum_jw c_jw r_jwk log r_jwk, in nats.
    groups : (K + 1, 4) float64
        sum_j of E log pi_jk, of log Gamma(theta_jk), of the slack (n_jk - theta_jk) E log pi_jk, and of the prior
        theta_jk - n_jk = alpha E[beta_k] that the document was fitted under.
    totals : (4,) float64
        sum_j of log Gamma(sum_k theta_jk), of psi(sum_k theta_jk), of 1, and of the document's tokens.
    """

    words: Annotated[np.ndarray, Stored(("word", "topic"), "expected tokens of a word in a topic", name="word_count")]
    entropy: Annotated[
        np.ndarray, Stored(("topic",), "entropy of a topic's responsibilities", "nat", name="topic_entropy")
    ]
    groups: Annotated[
        np.ndarray,
        Stored(
            ("topic_or_rest", "group_sum"),
            "sums over documents of E log pi, log Gamma(theta), (n - theta) E log pi, theta - n; last: not in use",
            name="topic_group",
        ),
    ]
    totals: Annotated[
        np.ndarray,
        Stored(
            ("total",),
            "sums over documents of log Gamma(sum theta), psi(sum theta), 1 and their tokens",
            name="document_total",
        ),
    ]

    @staticmethod
    def zeros(vocabulary: int, topics: int) -> TopicSummary:
        """The summary of zero documents."""
        return TopicSummary(np.zeros((vocabulary, topics)), np.zeros(topics), np.zeros((topics + 1, 4)), np.zeros(4))

    @property
    def counts(self) -> np.ndarray:
        """Expected tokens of each topic, (K,)."""
        return np.asarray(self.words.sum(axis=0))

    @property
    def documents(self) -> float:
        """Number of documents."""
        return float(self.totals[DOCUMENTS])

    def take(self, topics: Sequence[int] | np.ndarray) -> TopicSummary:
        """The summary of the given topics, in this order; totals remain those of all documents."""
        index = np.asarray(topics, dtype=np.intp)
        if np.array_equal(index, np.arange(len(self.entropy))):
            return self
        return TopicSummary(of_topics(self.words, index), self.entropy[index], self.groups_of(index), self.totals)

    def groups_of(self, topics: np.ndarray) -> np.ndarray:
        """The rows of `groups` with topics in the given order, followed by the row for topics not in use."""
        return self.groups[np.append(topics, len(self.entropy))]


def of_topics(words: np.ndarray, topics: np.ndarray) -> np.ndarray:
    """The columns `topics` of word counts (W, K), contiguous by row."""
    found = np.empty((len(words), len(topics)))
    take_columns(words, np.asarray(topics, dtype=np.intp), found)
    return found


def without_topics(words: np.ndarray, removed: np.ndarray | int) -> np.ndarray:
    """The columns of word counts (W, K) without the topics `removed`."""
    return of_topics(words, np.delete(np.arange(words.shape[1]), removed))
