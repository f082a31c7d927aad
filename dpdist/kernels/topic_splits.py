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
def _extrapolated(before: float, held: float, found: float, tokens: float) -> float:
    """n' extrapolated from three of its values, and n'' from the rest of all `tokens`, with the same total."""
    one, two = ahead(before, held, found), ahead(tokens - before, tokens - held, tokens - found)
    return one * ((found + (tokens - found)) / (one + two)) if one + two > 0.0 else 0.0


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
            found, since = _extrapolated(before, one, found, tokens), 0
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
