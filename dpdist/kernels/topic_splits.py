"""One topic's tokens in documents, and two topics in its place with all other topics held constant."""

from __future__ import annotations

import math

import numpy as np

from dpdist.kernels.jit import jit, jit_reassociated
from dpdist.kernels.special import digamma

#: Stands in for the sum of two odds that are both nothing; the second topic takes such words.
LEAST_ODDS = 1e-300
#: No larger odds of one topic to another are told apart.
MOST_LOG_ODDS = 600.0


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


@jit
def _odds(share: float, log_odds: float, pull: float) -> float:
    """What speaks for a topic in the place of one that has `share`, to what speaks for all."""
    return share * math.exp(min(log_odds + pull, MOST_LOG_ODDS))


@jit
def _taken(
    counts: np.ndarray, shares: np.ndarray, words: np.ndarray, log_odds: np.ndarray, first: float, second: float
) -> tuple[float, float]:
    """Tokens n' and n'' that two topics take, each word in proportion to what speaks for any topic."""
    one, two = 0.0, 0.0
    for u in range(counts.shape[0]):
        x, y = _odds(shares[u], log_odds[words[u], 0], first), _odds(shares[u], log_odds[words[u], 1], second)
        part = counts[u] / (1.0 - shares[u] + max(x + y, LEAST_ODDS))
        one += part * x
        two += part * y
    return one, two


@jit
def _log_of(share: float) -> float:
    """share log share."""
    return share * math.log(share) if share > 0.0 else 0.0


@jit
def _settle_freely(
    counts: np.ndarray,
    shares: np.ndarray,
    words: np.ndarray,
    log_odds: np.ndarray,
    pulls: tuple[float, float, float],
    target: np.ndarray,
) -> float:
    """Add the two topics' tokens to `target` (W, 2); returns the change of all tokens' part of the bound, apart from
    what is linear in `target`. The last pull is psi of the topic's theta."""
    change = 0.0
    for u in range(counts.shape[0]):
        share, left = shares[u], 1.0 - shares[u]
        x, y = _odds(share, log_odds[words[u], 0], pulls[0]), _odds(share, log_odds[words[u], 1], pulls[1])
        total = left + max(x + y, LEAST_ODDS)
        target[words[u], 0] += counts[u] * x / total
        target[words[u], 1] += counts[u] * y / total
        part = _log_of(share) - _log_of(x / total) - _log_of(y / total)
        if left > 0.0:
            part += (left / total - left) * (pulls[2] + math.log(left / share)) - _log_of(left / total) + _log_of(left)
        change += counts[u] * part
    return change


@jit
def _normaliser(alpha: float, others: float, tokens: float, held: float) -> float:
    """What sum_l theta_jl contributes to a document's bound, `held` tokens being those of the topics that change."""
    total = alpha + others + held
    return -digamma(total) * (tokens - others - held) - math.lgamma(total)


@jit
def divide_freely(
    indptr: np.ndarray,
    indices: np.ndarray,
    counts: np.ndarray,
    shares: np.ndarray,
    documents: np.ndarray,
    log_odds: np.ndarray,
    prior: np.ndarray,
    alpha: float,
    tolerance: float,
    most: int,
    words_by_topic: np.ndarray,
    log_theta: np.ndarray,
    totals: np.ndarray,
) -> None:
    """The free restricted local step: two topics in the place of k, all others' theta held constant.

    Tokens are shared out afresh among all topics, so those of others may come to the two, and those of k go to others:

        r'_jw = r_jwk x' / (1 - r_jwk + r_jwk (x' + x'')), log x' = E log (phi'_w / phi_kw) + psi(theta') - psi(theta_k)

    A document begins with beta' / beta_k in place of exp(psi(theta') - psi(theta_k)).

    Parameters
    ----------
    indptr, indices, counts : CSR of c_jw of words that k has a share of, float64
    shares : r_jwk, above zero and at most 1, beside `counts`
    documents : (n, 3) float64, theta_jk, tokens of all other topics sum_l n_jl, and tokens of all words
    log_odds : (W, 2) float64, E log phi of the two less that of k
    prior : (2,) float64, alpha beta of the two, which add up to that of k
    alpha : of all topics
    tolerance : change of n' and of n'', in tokens, at which a document has converged
    most : largest number of updates
    words_by_topic, log_theta : as for :func:`divide_documents`
    totals : (2,) float64, gains the change of the documents' bound apart from sum_w (n'_jw E log phi'_w + n''_jw
        E log phi''_w - (n'_jw + n''_jw) E log phi_kw), and their number
    """
    both = prior[0] + prior[1]
    for j in range(indptr.shape[0] - 1):
        part = slice(indptr[j], indptr[j + 1])
        words, own, tokens = indices[part], shares[part], counts[part]
        if words.shape[0] == 0:
            continue
        theta, others, every = documents[j]
        base, whole = digamma(theta), (tokens * own).sum()
        first, second = math.log(prior[0] / both), math.log(prior[1] / both)
        one, two = _taken(tokens, own, words, log_odds, first, second)
        for _ in range(most):
            first, second = digamma(prior[0] + one) - base, digamma(prior[1] + two) - base
            before = (one, two)
            one, two = _taken(tokens, own, words, log_odds, first, second)
            if max(abs(one - before[0]), abs(two - before[1])) <= tolerance:
                break
        totals[0] += _settle_freely(tokens, own, words, log_odds, (first, second, base), words_by_topic)
        totals[0] += _gain(prior[0], one) + _gain(prior[1], two) - _gain(both, whole)
        totals[0] += _normaliser(alpha, others, every, one + two) - _normaliser(alpha, others, every, whole)
        totals[1] += 1.0
        log_theta[0] += digamma(prior[0] + one)
        log_theta[1] += digamma(prior[1] + two)
