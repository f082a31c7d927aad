"""Tokens of one topic in documents, and their division between two topics while all other topics are fixed."""

from __future__ import annotations

import math

import numpy as np

from dpdist.kernels.jit import jit, jit_reassociated
from dpdist.kernels.sequential_counts import Sparse, longest
from dpdist.kernels.special import digamma
from dpdist.kernels.topic_updates import AFTER, EVERY, ahead

#: Replaces the sum of two odds that are both zero; such words go to the second topic.
LEAST_ODDS = 1e-300
#: Larger log odds of one topic against another are truncated.
MOST_LOG_ODDS = 300.0


@jit
def topic_tokens(
    documents: Sparse, weights: np.ndarray, prior: np.ndarray, held: Sparse, place: np.ndarray, found: np.ndarray
) -> None:
    """Expected counts of some topics' tokens in documents that were fitted before.

    Parameters
    ----------
    documents : positive counts of n documents
    weights : (W, K) float64, exp(E log phi_kw) divided by the largest of each word
    prior : (K + 1,) float64, alpha beta
    held : n_jk
    place : (K,) int64, row of each topic in `found`; -1 for topics not requested
    found : (C, nnz) float64 of zeros, filled with c_jw r_jwk
    """
    pull = np.empty(prior.shape[0])
    for j in range(documents.begins.shape[0] - 1):
        first, last = held.begins[j], held.begins[j + 1]
        topics, top = held.columns[first:last], -np.inf
        for a in range(last - first):
            pull[a] = digamma(prior[topics[a]] + held.values[first + a])
            top = max(top, pull[a])
        for a in range(last - first):
            pull[a] = math.exp(pull[a] - top)
        for entry in range(documents.begins[j], documents.begins[j + 1]):
            row, total = weights[documents.columns[entry]], 0.0
            for a in range(last - first):
                total += row[topics[a]] * pull[a]
            for a in range(last - first):
                target = place[topics[a]]
                if target >= 0 and total > 0.0:
                    found[target, entry] = documents.values[entry] * row[topics[a]] * pull[a] / total


@jit
def _log_of(share: float) -> float:
    """share log share."""
    return share * math.log(share) if share > 0.0 else 0.0


@jit_reassociated
def _first_half(counts: np.ndarray, odds: np.ndarray, first: float, second: float) -> float:
    """``sum_u c_u x_u / (x_u + y_u)``, where x and y are the two rows of `odds` times `first` and `second`."""
    total = 0.0
    for u in range(counts.shape[0]):
        x = odds[0, u] * first
        total += counts[u] * (x / max(x + odds[1, u] * second, LEAST_ODDS))
    return total


@jit
def _ahead_of_both(
    before: tuple[float, float], held: tuple[float, float], found: tuple[float, float]
) -> tuple[float, float]:
    """Extrapolated n' and n'' after three counts of each, with the same total number of tokens."""
    one, two = ahead(before[0], held[0], found[0]), ahead(before[1], held[1], found[1])
    scale = (found[0] + found[1]) / (one + two) if one + two > 0.0 else 0.0
    return one * scale, two * scale


@jit
def _divide(
    counts: np.ndarray, odds: np.ndarray, prior: np.ndarray, tokens: float, tolerance: float, most: int
) -> tuple[float, float, float]:
    """Tokens n' of the first topic in a converged document, and the pulls from which they follow."""
    first, second, before, since = prior[0], prior[1], 0.0, 0
    one = _first_half(counts, odds, first, second)
    for step in range(most):
        first, second = digamma(prior[0] + one), digamma(prior[1] + max(tokens - one, 0.0))
        top = max(first, second)
        first, second = math.exp(first - top), math.exp(second - top)
        found = _first_half(counts, odds, first, second)
        if abs(found - one) <= tolerance or step == most - 1:
            return found, first, second
        since += 1
        if since >= EVERY and step >= AFTER:
            found, _ = _ahead_of_both((before, tokens - before), (one, tokens - one), (found, tokens - found))
            since = 0
        before, one = one, found
    return one, first, second


@jit
def _settle(
    words: np.ndarray,
    counts: np.ndarray,
    odds: np.ndarray,
    first: float,
    second: float,
    measured: bool,
    target: np.ndarray,
) -> float:
    """Add the two topics' tokens to `target` (W, 2); returns the entropy of their division if `measured`."""
    entropy = 0.0
    for u in range(words.shape[0]):
        x = odds[0, u] * first
        share = x / max(x + odds[1, u] * second, LEAST_ODDS)
        target[words[u], 0] += counts[u] * share
        target[words[u], 1] += counts[u] * (1.0 - share)
        if measured:
            entropy -= counts[u] * (_log_of(share) + _log_of(1.0 - share))
    return entropy


@jit
def _gain(prior: float, held: float) -> float:
    """Contribution of a topic's tokens in a document to its bound: log Gamma(prior + n) - log Gamma(prior)."""
    return math.lgamma(prior + held) - math.lgamma(prior)


@jit
def divide_documents(
    tokens: Sparse,
    weights: np.ndarray,
    prior: np.ndarray,
    tolerance: float,
    most: int,
    measured: bool,
    words_by_topic: np.ndarray,
    log_theta: np.ndarray,
    totals: np.ndarray,
) -> None:
    """The restricted local step: one topic's tokens r_jwk = r'_jw + r''_jw between two topics, the others fixed.

    A document starts with the odds beta' exp(E log phi'_w) to beta'' exp(E log phi''_w), then updates

        r'_jw / r''_jw = exp(E log phi'_w + psi(theta'_j)) / exp(E log phi''_w + psi(theta''_j)).

    Parameters
    ----------
    tokens : of the topic, c_jw r_jwk, positive
    weights : (W, 2) float64, exp(E log phi) of the two divided by the larger of each word
    prior : (2,) float64, alpha beta of the two
    tolerance : change of n', in tokens, at which a document has converged
    most : largest number of updates
    measured : whether to measure the change of the documents' bound
    words_by_topic : (W, 2) float64, incremented by sum_j c_jw r_jw
    log_theta : (2,) float64, incremented by sum_j psi(theta_j) of documents that use the topic
    totals : (2,) float64, incremented by the change of the documents' bound without the words' probabilities, if
        measured, and by the number of documents
    """
    gathered = np.empty((2, longest(tokens)))
    for j in range(tokens.begins.shape[0] - 1):
        part = slice(tokens.begins[j], tokens.begins[j + 1])
        words, counts = tokens.columns[part], tokens.values[part]
        if words.shape[0] == 0:
            continue
        for u in range(words.shape[0]):
            gathered[0, u], gathered[1, u] = weights[words[u], 0], weights[words[u], 1]
        odds, size = gathered[:, : words.shape[0]], counts.sum()
        one, first, second = _divide(counts, odds, prior, size, tolerance, most)
        two = max(size - one, 0.0)
        totals[0] += _settle(words, counts, odds, first, second, measured, words_by_topic)
        if measured:
            totals[0] += _gain(prior[0], one) + _gain(prior[1], two) - _gain(prior[0] + prior[1], one + two)
        totals[1] += 1.0
        log_theta[0] += digamma(prior[0] + one)
        log_theta[1] += digamma(prior[1] + two)


@jit_reassociated
def _taken(counts: np.ndarray, left: np.ndarray, odds: np.ndarray, first: float, second: float) -> tuple[float, float]:
    """Tokens n' and n'' that two topics take, each word divided in proportion to the topics' weights.

    The weights of the two topics are the rows of `odds` times `first` and `second`; `left` is that of all others.
    """
    one, two = 0.0, 0.0
    for u in range(counts.shape[0]):
        x, y = odds[0, u] * first, odds[1, u] * second
        part = counts[u] / (left[u] + max(x + y, LEAST_ODDS))
        one += part * x
        two += part * y
    return one, two


@jit
def _divide_freely(
    counts: np.ndarray,
    left: np.ndarray,
    odds: np.ndarray,
    prior: np.ndarray,
    base: float,
    tolerance: float,
    most: int,
) -> tuple[float, float, float, float]:
    """Tokens n' and n'' of the two topics in a converged document, and the pulls from which they follow."""
    first, second, since = prior[0] / prior.sum(), prior[1] / prior.sum(), 0
    held = _taken(counts, left, odds, first, second)
    before = held
    for step in range(most):
        first = math.exp(min(digamma(prior[0] + held[0]) - base, MOST_LOG_ODDS))
        second = math.exp(min(digamma(prior[1] + held[1]) - base, MOST_LOG_ODDS))
        found = _taken(counts, left, odds, first, second)
        if max(abs(found[0] - held[0]), abs(found[1] - held[1])) <= tolerance or step == most - 1:
            return found[0], found[1], first, second
        since += 1
        if since >= EVERY and step >= AFTER:
            found, since = _ahead_of_both(before, held, found), 0
        before, held = held, found
    return held[0], held[1], first, second


@jit
def _settle_freely(
    counts: np.ndarray,
    shares: np.ndarray,
    words: np.ndarray,
    odds: np.ndarray,
    pulls: tuple[float, float, float],
    measured: bool,
    target: np.ndarray,
) -> float:
    """Add the two topics' tokens to `target` (W, 2); returns the change of the tokens' part of the bound if `measured`.

    The change excludes terms linear in `target`. The last of the `pulls` is psi of the topic's theta.
    """
    change = 0.0
    for u in range(counts.shape[0]):
        share, left = shares[u], 1.0 - shares[u]
        x, y = odds[0, u] * pulls[0], odds[1, u] * pulls[1]
        total = left + max(x + y, LEAST_ODDS)
        target[words[u], 0] += counts[u] * x / total
        target[words[u], 1] += counts[u] * y / total
        if measured:
            part = _log_of(share) - _log_of(x / total) - _log_of(y / total)
            if left > 0.0:
                part += (left / total - left) * (pulls[2] + math.log(left / share))
                part += _log_of(left) - _log_of(left / total)
            change += counts[u] * part
    return change


@jit
def _normaliser(alpha: float, others: float, tokens: float, held: float) -> float:
    """Contribution of sum_l theta_jl to a document's bound; `held` counts the tokens of the topics that change."""
    total = alpha + others + held
    return -digamma(total) * (tokens - others - held) - math.lgamma(total)


@jit
def divide_freely(
    counts: Sparse,
    shares: np.ndarray,
    documents: np.ndarray,
    log_odds: np.ndarray,
    prior: np.ndarray,
    alpha: float,
    tolerance: float,
    most: int,
    measured: bool,
    words_by_topic: np.ndarray,
    log_theta: np.ndarray,
    totals: np.ndarray,
) -> None:
    """The free restricted local step: two topics in place of k, with theta of all others fixed.

    Tokens are reassigned among all topics, so tokens of others may move to the two, and those of k to others:

        r'_jw = r_jwk x' / (1 - r_jwk + r_jwk (x' + x'')), log x' = E log (phi'_w / phi_kw) + psi(theta') - psi(theta_k)

    A document starts with beta' / beta_k in place of exp(psi(theta') - psi(theta_k)).

    Parameters
    ----------
    counts : c_jw of words of which k has a share
    shares : r_jwk for each of `counts`, above zero and at most 1
    documents : (n, 3) float64, theta_jk, tokens of all other topics sum_l n_jl, and tokens of all words
    log_odds : (W, 2) float64, E log phi of the two minus that of k
    prior : (2,) float64, alpha beta of the two, which sum to that of k
    alpha : of all topics
    tolerance : change of n' and of n'', in tokens, at which a document has converged
    most : largest number of updates
    measured, words_by_topic, log_theta : as in :func:`divide_documents`
    totals : (2,) float64, incremented by the change of the documents' bound without sum_w (n'_jw E log phi'_w + n''_jw
        E log phi''_w - (n'_jw + n''_jw) E log phi_kw), if measured, and by the number of documents
    """
    both, largest = prior[0] + prior[1], longest(counts)
    gathered, left = np.empty((2, largest)), np.empty(largest)
    for j in range(counts.begins.shape[0] - 1):
        part = slice(counts.begins[j], counts.begins[j + 1])
        words, own, tokens = counts.columns[part], shares[part], counts.values[part]
        if words.shape[0] == 0:
            continue
        size = words.shape[0]
        for u in range(size):
            left[u] = 1.0 - own[u]
            for half in range(2):
                gathered[half, u] = own[u] * math.exp(min(log_odds[words[u], half], MOST_LOG_ODDS))
        theta, others, every = documents[j]
        base, odds = digamma(theta), gathered[:, :size]
        one, two, first, second = _divide_freely(tokens, left[:size], odds, prior, base, tolerance, most)
        totals[0] += _settle_freely(tokens, own, words, odds, (first, second, base), measured, words_by_topic)
        if measured:
            whole = (tokens * own).sum()
            totals[0] += _gain(prior[0], one) + _gain(prior[1], two) - _gain(both, whole)
            totals[0] += _normaliser(alpha, others, every, one + two) - _normaliser(alpha, others, every, whole)
        totals[1] += 1.0
        log_theta[0] += digamma(prior[0] + one)
        log_theta[1] += digamma(prior[1] + two)
