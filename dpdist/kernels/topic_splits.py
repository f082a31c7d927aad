"""One topic's tokens in documents, and dividing them between two topics with all other topics held constant."""

from __future__ import annotations

import math

import numpy as np

from dpdist.kernels.jit import jit, jit_reassociated
from dpdist.kernels.special import digamma

#: Stands in for the sum of two odds that are both nothing; the second topic takes such words.
LEAST_ODDS = 1e-300


@jit
def topic_tokens(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    weights: np.ndarray,
    prior: np.ndarray,
    held_indptr: np.ndarray,
    held_topics: np.ndarray,
    held_counts: np.ndarray,
    place: np.ndarray,
    found: np.ndarray,
) -> None:
    """Expected counts of some topics' tokens in documents that are fitted already.

    Parameters
    ----------
    indptr, indices, data : CSR counts of n documents, float64, above zero
    weights : (W, K) float64, exp(E log phi_kw) divided by the largest of each word
    prior : (K + 1,) float64, alpha beta
    held_indptr, held_topics, held_counts : CSR of n_jk
    place : (K,) int64, row of each topic in `found`; -1 for those not wanted
    found : (C, nnz) float64 of zeros, filled with c_jw r_jwk
    """
    pull = np.empty(prior.shape[0])
    for j in range(indptr.shape[0] - 1):
        first, last = held_indptr[j], held_indptr[j + 1]
        topics, top = held_topics[first:last], -np.inf
        for a in range(last - first):
            pull[a] = digamma(prior[topics[a]] + held_counts[first + a])
            top = max(top, pull[a])
        for a in range(last - first):
            pull[a] = math.exp(pull[a] - top)
        for entry in range(indptr[j], indptr[j + 1]):
            row, total = weights[indices[entry]], 0.0
            for a in range(last - first):
                total += row[topics[a]] * pull[a]
            for a in range(last - first):
                target = place[topics[a]]
                if target >= 0 and total > 0.0:
                    found[target, entry] = data[entry] * row[topics[a]] * pull[a] / total


@jit_reassociated
def _first_half(counts: np.ndarray, odds: np.ndarray, first: float, second: float) -> float:
    """``sum_u c_u x_u / (x_u + y_u)`` with x and y the two rows of `odds` times `first` and `second`."""
    total = 0.0
    for u in range(counts.shape[0]):
        x = odds[0, u] * first
        total += counts[u] * (x / max(x + odds[1, u] * second, LEAST_ODDS))
    return total


@jit
def _settle(
    words: np.ndarray, counts: np.ndarray, odds: np.ndarray, first: float, second: float, target: np.ndarray
) -> float:
    """Add the two topics' tokens to `target` (W, 2); returns the entropy of dividing them."""
    entropy = 0.0
    for u in range(words.shape[0]):
        x = odds[0, u] * first
        share = x / max(x + odds[1, u] * second, LEAST_ODDS)
        target[words[u], 0] += counts[u] * share
        target[words[u], 1] += counts[u] * (1.0 - share)
        for part in (share, 1.0 - share):
            if part > 0.0:
                entropy -= counts[u] * part * math.log(part)
    return entropy


@jit
def _gain(prior: float, held: float) -> float:
    """What a topic's tokens in a document contribute to its bound: log Gamma(prior + n) - log Gamma(prior)."""
    return math.lgamma(prior + held) - math.lgamma(prior)


@jit
def divide_documents(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    weights: np.ndarray,
    prior: np.ndarray,
    tolerance: float,
    most: int,
    words_by_topic: np.ndarray,
    log_theta: np.ndarray,
    totals: np.ndarray,
) -> None:
    """The restricted local step: one topic's tokens r_jwk = r'_jw + r''_jw between two topics, others held constant.

    A document begins with odds beta' exp(E log phi'_w) to beta'' exp(E log phi''_w), then updates

        r'_jw / r''_jw = exp(E log phi'_w + psi(theta'_j)) / exp(E log phi''_w + psi(theta''_j)).

    Parameters
    ----------
    indptr, indices, data : CSR of the topic's tokens c_jw r_jwk, float64, above zero
    weights : (W, 2) float64, exp(E log phi) of the two divided by the larger of each word
    prior : (2,) float64, alpha beta of the two
    tolerance : change of n', in tokens, at which a document has converged
    most : largest number of updates
    words_by_topic : (W, 2) float64, gains sum_j c_jw r_jw
    log_theta : (2,) float64, gains sum_j psi(theta_j) of documents that use the topic
    totals : (2,) float64, gains the change of the documents' bound, words' probabilities apart, and their number
    """
    largest = 1
    for j in range(indptr.shape[0] - 1):
        largest = max(largest, indptr[j + 1] - indptr[j])
    gathered = np.empty((2, largest))
    for j in range(indptr.shape[0] - 1):
        words, counts = indices[indptr[j] : indptr[j + 1]], data[indptr[j] : indptr[j + 1]]
        if words.shape[0] == 0:
            continue
        for u in range(words.shape[0]):
            gathered[0, u], gathered[1, u] = weights[words[u], 0], weights[words[u], 1]
        odds, tokens = gathered[:, : words.shape[0]], counts.sum()
        first, second = prior[0], prior[1]
        one = _first_half(counts, odds, first, second)
        for _ in range(most):
            first, second = digamma(prior[0] + one), digamma(prior[1] + max(tokens - one, 0.0))
            top = max(first, second)
            first, second = math.exp(first - top), math.exp(second - top)
            before, one = one, _first_half(counts, odds, first, second)
            if abs(one - before) <= tolerance:
                break
        two = max(tokens - one, 0.0)
        totals[0] += _settle(words, counts, odds, first, second, words_by_topic)
        totals[0] += _gain(prior[0], one) + _gain(prior[1], two) - _gain(prior[0] + prior[1], one + two)
        totals[1] += 1.0
        log_theta[0] += digamma(prior[0] + one)
        log_theta[1] += digamma(prior[1] + two)
