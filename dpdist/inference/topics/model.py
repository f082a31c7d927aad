"""A hierarchical Dirichlet process topic model: its bound from summaries, and its posterior as workers use it.

    ELBO = sum_k A(S_k) + sum_k H_k + sum_k [alpha E[beta_k] P_k + G_k + slack_k] - G + L(u)

with the topics' log evidences A, their entropies H, the documents' sums P of E log pi and G of log Gamma(theta), the
slack of documents fitted under other global weights, and L(u) from :mod:`dpdist.models.allocations.hierarchical`. It is
exact for any mixture of documents fitted at any time. Source: Hughes, Kim & Sudderth (AISTATS 2015), section 3.

With a point estimate beta of the global weights, and topics q(phi_k) = Dir(eta + T_k) that may come from other sums
than those of the present documents, it is

    ELBO = sum_k [A(T_k) + grad A(T_k) . (S_k - T_k)] + sum_k H_k + sum_k [G_k + slack_k] - G + V(beta, P)

with V from :mod:`dpdist.models.allocations.point_weights`. All constants are included. Source: Bryant & Sudderth
(NeurIPS 2012), section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import psi

from dpdist.core.checks import SCALE, check_fields
from dpdist.inference.topics.summary import LOG_GAMMA, LOG_GAMMA_SUM, LOG_PI, SLACK, TopicSummary
from dpdist.kernels.topics import log_evidences, union_evidences, word_weights
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess, Sticks
from dpdist.models.allocations.point_weights import PointWeights


@dataclass(frozen=True, eq=False)
class TopicPosterior:
    """What the local step needs of q.

    Parameters
    ----------
    weights : (W, K) exp(E log phi_kw) divided by the largest value of each word
    prior : (K + 1,) alpha E[beta]
    """

    weights: np.ndarray
    prior: np.ndarray


@dataclass(frozen=True)
class TopicModel:
    """Topics over a vocabulary, shared by documents.

    Parameters
    ----------
    vocabulary : W, number of words
    pseudocount : eta > 0 of the topics' Dirichlet prior
    allocation : how documents share topics
    """

    vocabulary: int
    pseudocount: float
    allocation: HierarchicalDirichletProcess

    def __post_init__(self) -> None:
        check_fields(self, pseudocount=SCALE)

    def sticks(self, total: TopicSummary) -> Sticks:
        """The posterior of the global sticks."""
        return self.allocation.sticks(total.groups[:, LOG_PI], total.documents)

    def posterior(self, total: TopicSummary) -> TopicPosterior:
        """The global step: q from sums over documents, in the form that workers use."""
        return self.posterior_of(total.words, self.allocation.document_concentration * self.sticks(total).weights)

    def posterior_of(self, words: np.ndarray, prior: np.ndarray) -> TopicPosterior:
        """The posterior from expected counts (W, K) and alpha E[beta] (K + 1,)."""
        weights = np.empty(words.shape)
        word_weights(np.ascontiguousarray(words), self.pseudocount, weights)
        return TopicPosterior(weights, prior)

    def log_evidences(self, words: np.ndarray) -> np.ndarray:
        """A(S_k) of topics' word counts (W, K), (K,)."""
        found = np.empty(words.shape[1])
        log_evidences(words, self.pseudocount, found)
        return found

    def union_evidences(self, words: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """Change of :meth:`log_evidences` of word counts (W, K) if each of the `pairs` (P, 2) is merged, (P,)."""
        found = np.empty(len(pairs))
        union_evidences(words, pairs, self.pseudocount, found)
        return found

    def allocation_value(self, groups: np.ndarray, totals: np.ndarray, documents: float) -> float:
        """The bound without evidences and entropies, under the optimal sticks."""
        log_pi = groups[:, LOG_PI]
        local = groups[:, LOG_GAMMA].sum() + groups[:, SLACK].sum() - totals[LOG_GAMMA_SUM]
        return float(local + self.allocation.value(self.allocation.sticks(log_pi, documents), log_pi, documents))

    def elbo(self, total: TopicSummary) -> float:
        """The bound on all documents of `total`, in nats, including all constants."""
        words = float(self.log_evidences(total.words).sum() + total.entropy.sum())
        return words + self.allocation_value(total.groups, total.totals, total.documents)


def point_weights(model: TopicModel) -> PointWeights:
    """The objective of the global weights, under the model's concentrations."""
    return PointWeights(model.allocation)


def point_posterior(model: TopicModel, words: np.ndarray, weights: np.ndarray) -> TopicPosterior:
    """q in the form that workers use, from expected counts (W, K) and global weights (K + 1,)."""
    return model.posterior_of(words, model.allocation.document_concentration * weights)


def expected_log_words(model: TopicModel, words: np.ndarray) -> np.ndarray:
    """E log phi of topics, from expected counts, both (W, K)."""
    return psi(model.pseudocount + words) - psi(model.vocabulary * model.pseudocount + words.sum(axis=0))


def word_values(model: TopicModel, words: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """E log p(w | z, phi) + E log p(phi) - E log q(phi) of topics, (K,), in nats.

    Parameters
    ----------
    words : (W, K) lambda minus the pseudocount: the counts from which q(phi) is computed
    seen : (W, K) expected counts of the documents
    """
    log_phi, evidences = expected_log_words(model, words), model.log_evidences(np.ascontiguousarray(words))
    return evidences + ((seen - words) * log_phi).sum(axis=0)


def point_elbo(model: TopicModel, total: TopicSummary, words: np.ndarray, weights: np.ndarray) -> float:
    """The bound on the documents of `total`, in nats.

    Parameters
    ----------
    total : sums over documents; those of a mini-batch may be scaled to the corpus
    words : (W, K) lambda minus the pseudocount; ``total.words`` after a batch update
    weights : (K + 1,) global weights
    """
    groups = total.groups
    local = total.entropy.sum() + groups[:, LOG_GAMMA].sum() + groups[:, SLACK].sum() - total.totals[LOG_GAMMA_SUM]
    shared = point_weights(model).value(weights, groups[:, LOG_PI], total.documents)
    return float(word_values(model, words, total.words).sum() + local + shared)
