"""Hyperparameters learned with a point estimate of the global weights: those that raise the bound most.

    gamma = K / -log beta_rest
    alpha : psi(alpha) - sum_k beta_k psi(alpha beta_k) + sum_k beta_k mean_j E log pi_jk = 0
    eta   : where sum_k A(T_k), the evidence of the topics' counts, is highest

The bound is that of :mod:`dpdist.inference.topics.point_model`, in which each of the three has terms of its own. The
bound is concave in alpha, and gamma and alpha have one optimum each for any number of documents and topics above zero.
Both are best under the weights as the global update left them, for the sums over the documents at hand.

Eta needs care online. The topics' counts after the global update stand for the corpus: with T_k = S_k, as after a
batch update, sum_k A(T_k) is the very bound, for then lambda_k = eta + S_k is optimal whatever eta is. The counts of a
scaled mini-batch alone would not do: they lack rare words and repeat the others, so that the eta that is best for them
is too small, the more so the smaller the mini-batch.

Source: Bryant & Sudderth (NeurIPS 2012), section 2; the bound set to zero slope.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpdist.inference.topics.hyperparameters import best_pseudocount, uphill
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.summary import LOG_PI, TopicSummary
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess
from dpdist.models.allocations.point_weights import PointWeights


def best_values(
    model: TopicModel, total: TopicSummary, words: np.ndarray, weights: np.ndarray, names: tuple[str, ...]
) -> dict[str, float]:
    """The values of hyperparameters that raise the bound most.

    Parameters
    ----------
    model : where the search begins
    total : sums over documents; those of a mini-batch scaled to the corpus
    words : (W, K) lambda less the pseudocount, after the global update
    weights : (K + 1,) global weights after it
    names : as :data:`dpdist.inference.topics.hyperparameters.LEARNABLE`
    """
    found, allocation = dict[str, float](), model.allocation
    if "concentration" in names:
        found["concentration"] = PointWeights(allocation).best_concentration(weights)
    if "document_concentration" in names:
        log_pi = total.groups[:, LOG_PI]
        found["document_concentration"] = _best_document_concentration(allocation, weights, log_pi, total.documents)
    if "pseudocount" in names:
        found["pseudocount"] = best_pseudocount(model, words) if words.any() else model.pseudocount
    return found


def _best_document_concentration(
    allocation: HierarchicalDirichletProcess, weights: np.ndarray, log_pi: np.ndarray, documents: float
) -> float:
    def objective(alpha: float) -> PointWeights:
        return PointWeights(replace(allocation, document_concentration=alpha))

    def value(alpha: float) -> float:
        return objective(alpha).value(weights, log_pi, documents)

    before = allocation.document_concentration
    found = uphill(lambda alpha: objective(alpha).document_slopes(weights, log_pi, documents), before)
    return found if value(found) >= value(before) else before
