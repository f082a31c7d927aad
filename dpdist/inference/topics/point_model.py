"""The bound of a topic model whose global weights are a point estimate, and whose topics may come from other sums.

    ELBO = sum_k [A(T_k) + grad A(T_k) . (S_k - T_k)] + sum_k H_k + sum_k [G_k + slack_k] - G + V(beta, P)

with topics q(phi_k) = Dir(eta + T_k), documents' sums S of words, H of entropies, P of E log pi, G of log Gamma(theta)
and the slack of documents fitted under other weights, and V from :mod:`dpdist.models.allocations.point_weights`. Every
constant is included. Source: Bryant & Sudderth (NeurIPS 2012), section 2.
"""

from __future__ import annotations

import numpy as np
from scipy.special import psi

from dpdist.inference.topics.model import TopicModel, TopicPosterior
from dpdist.inference.topics.summary import LOG_GAMMA, LOG_GAMMA_SUM, LOG_PI, SLACK, TopicSummary
from dpdist.models.allocations.point_weights import PointWeights


def point_weights(model: TopicModel) -> PointWeights:
    """The objective of the global weights, with the model's concentrations."""
    return PointWeights(model.allocation)


def point_posterior(model: TopicModel, words: np.ndarray, weights: np.ndarray) -> TopicPosterior:
    """q as workers use it, from expected counts (W, K) and global weights (K + 1,)."""
    return model.posterior_of(words, model.allocation.document_concentration * weights)


def word_values(model: TopicModel, words: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """E log p(w | z, phi) + E log p(phi) - E log q(phi) of topics, (K,), in nats.

    Parameters
    ----------
    words : (W, K) lambda less the pseudocount: the counts that q(phi) is made of
    seen : (W, K) expected counts of the documents
    """
    log_phi = psi(model.pseudocount + words) - psi(model.vocabulary * model.pseudocount + words.sum(axis=0))
    values: np.ndarray = model.log_evidences(np.ascontiguousarray(words)) + ((seen - words) * log_phi).sum(axis=0)
    return values


def point_elbo(model: TopicModel, total: TopicSummary, words: np.ndarray, weights: np.ndarray) -> float:
    """The bound on the documents of `total`, in nats.

    Parameters
    ----------
    total : sums over documents; those of a mini-batch may be scaled to the corpus
    words : (W, K) lambda less the pseudocount; ``total.words`` after a batch update
    weights : (K + 1,) global weights
    """
    groups = total.groups
    local = total.entropy.sum() + groups[:, LOG_GAMMA].sum() + groups[:, SLACK].sum() - total.totals[LOG_GAMMA_SUM]
    shared = point_weights(model).value(weights, groups[:, LOG_PI], total.documents)
    return float(word_values(model, words, total.words).sum() + local + shared)
