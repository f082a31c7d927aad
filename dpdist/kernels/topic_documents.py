"""The local step of a topic model: documents as CSR counts, and what they add to the sums of the bound."""

from __future__ import annotations

import math

import numpy as np

from dpdist.kernels.jit import jit
from dpdist.kernels.rows import copy_row
from dpdist.kernels.special import digamma
from dpdist.kernels.topic_updates import Work, gather, iterate, room, settle


@jit
def _start_fresh(
    weights: np.ndarray,
    prior: np.ndarray,
    words: np.ndarray,
    counts: np.ndarray,
    gathered: np.ndarray,
    work: Work,
    reach: float,
    most: int,
) -> tuple[int, float]:
    """Update a document that begins with the same tokens of every topic; returns its topics and bound."""
    topics, tokens = weights.shape[1], counts.sum()
    for k in range(topics):
        work.active[k], work.held[k] = k, tokens / topics
    gather(weights, words, work, topics, gathered)
    # One topic is settled at once; a constant would be compiled as another `iterate`.
    topics, bound, _ = iterate(prior, counts, gathered, work, topics, reach, most, topics > 1)
    return topics, bound


@jit
def _go_on(
    weights: np.ndarray,
    prior: np.ndarray,
    words: np.ndarray,
    counts: np.ndarray,
    known: np.ndarray,
    known_counts: np.ndarray,
    gathered: np.ndarray,
    work: Work,
    reach: float,
    most: int,
) -> tuple[int, float]:
    """Update a document from its earlier topics, to no less than its bound after one plain update."""
    bound = np.nan
    for hurried in (True, False):
        topics = known.shape[0]
        copy_row(known, work.active)
        copy_row(known_counts, work.held)
        gather(weights, words, work, topics, gathered)
        # One update, as a constant 1 would say, which would be compiled as another `iterate`.
        topics, least, done = iterate(prior, counts, gathered, work, topics, reach, min(most, 1), hurried)
        if done or most == 1:
            return topics, least
        topics, bound, _ = iterate(prior, counts, gathered, work, topics, reach, most - 1, hurried)
        if bound >= least:
            break
    return topics, bound


@jit
def _update(
    weights: np.ndarray,
    prior: np.ndarray,
    words: np.ndarray,
    counts: np.ndarray,
    known: np.ndarray,
    known_counts: np.ndarray,
    gathered: np.ndarray,
    anew: Work,
    onward: Work,
    reach: float,
    most: int,
    fresh: bool,
) -> tuple[Work, int, float]:
    """Update a document from the better of its starts: where that is, how many topics it has, and its bound."""
    if len(words) == 0:
        return anew, 0, 0.0
    used, best = 0, -np.inf
    if fresh or len(known) == 0:
        used, best = _start_fresh(weights, prior, words, counts, gathered, anew, reach, most)
        settle(counts, gathered, anew, used)
    if len(known) > 0:
        size, bound = _go_on(weights, prior, words, counts, known, known_counts, gathered, onward, reach, most)
        if np.isfinite(bound) and not best >= bound:
            settle(counts, gathered, onward, size)
            return onward, size, bound
    return anew, used, best


@jit
def _add_groups(prior: np.ndarray, own: np.ndarray, work: Work, topics: int, groups: np.ndarray) -> None:
    """Add to the sums of psi(theta_k) and log Gamma(theta_k) what a document's own counts change of them."""
    for a in range(topics):
        k = work.active[a]
        groups[k, 0] += digamma(prior[k] + work.held[a]) - own[k, 0]
        groups[k, 1] += math.lgamma(prior[k] + work.held[a]) - own[k, 1]


@jit
def _add_pairs(
    prior: np.ndarray,
    pairs: np.ndarray,
    own: np.ndarray,
    weights: np.ndarray,
    words: np.ndarray,
    ratios: np.ndarray,
    pull: np.ndarray,
    held: np.ndarray,
    entropy: np.ndarray,
    groups: np.ndarray,
) -> None:
    """As :func:`_add_groups` for unions of two topics, and what their entropies lose; `pull` and `held` are (K,)."""
    for p in range(pairs.shape[0]):
        a, b = pairs[p]
        if pull[a] == 0.0 and pull[b] == 0.0:
            continue
        union = prior[a] + prior[b] + held[a] + held[b]
        groups[p, 0] += digamma(union) - own[p, 0]
        groups[p, 1] += math.lgamma(union) - own[p, 1]
        if pull[a] > 0.0 and pull[b] > 0.0:
            for u in range(words.shape[0]):
                row = weights[words[u]]
                x, y = row[a] * pull[a] * ratios[u], row[b] * pull[b] * ratios[u]
                if x > 0.0 and y > 0.0:
                    entropy[p] -= x * math.log1p(y / x) + y * math.log1p(x / y)


@jit
def _of_priors(prior: np.ndarray) -> np.ndarray:
    """psi and log Gamma of each, (n, 2)."""
    own = np.empty((prior.shape[0], 2))
    for k in range(prior.shape[0]):
        own[k, 0], own[k, 1] = digamma(prior[k]), math.lgamma(prior[k])
    return own


@jit
def _add_words(
    indptr: np.ndarray,
    indices: np.ndarray,
    ratios: np.ndarray,
    pulls: np.ndarray,
    weights: np.ndarray,
    words_by_topic: np.ndarray,
) -> None:
    """Add ``e_wk sum_j ratio_jw pull_jk``, word by word, so that each row of the large matrices is visited once."""
    vocabulary, topics = weights.shape
    ends = np.zeros(vocabulary, dtype=np.int64)
    for entry in range(indptr[0], indptr[-1]):
        ends[indices[entry]] += 1
    total = 0
    for w in range(vocabulary):
        ends[w], total = total, total + ends[w]
    document, ratio = np.empty(total, dtype=np.int64), np.empty(total)
    for j in range(pulls.shape[0]):
        for entry in range(indptr[j], indptr[j + 1]):
            place = ends[indices[entry]]
            document[place], ratio[place] = j, ratios[entry - indptr[0]]
            ends[indices[entry]] += 1
    begin, row = 0, np.empty(topics)
    for w in range(vocabulary):
        if ends[w] > begin:
            row[:] = 0.0
            for place in range(begin, ends[w]):
                own, share = pulls[document[place]], ratio[place]
                for k in range(topics):
                    row[k] += share * own[k]
            for k in range(topics):
                words_by_topic[w, k] += weights[w, k] * row[k]
        begin = ends[w]


@jit
def share_documents(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    weights: np.ndarray,
    prior: np.ndarray,
    before_indptr: np.ndarray,
    before_topics: np.ndarray,
    before_counts: np.ndarray,
    pairs: np.ndarray,
    tolerance: float,
    most: int,
    fresh: bool,
    held_all: np.ndarray,
    words_by_topic: np.ndarray,
    entropy: np.ndarray,
    groups: np.ndarray,
    totals: np.ndarray,
    pair_entropy: np.ndarray,
    pair_groups: np.ndarray,
) -> int:
    """The local step on some documents.

    Parameters
    ----------
    indptr, indices, data : CSR counts of n documents, float64, above zero
    weights : (W, K) float64, exp(E log phi_kw) divided by the largest of each word
    prior : (K + 1,) float64, alpha E[beta], the last for all topics not in use
    before_indptr, before_topics, before_counts : CSR of an earlier visit's n_jk; empty rows have none
    pairs : (P, 2) int64, pairs of topics whose union is measured
    tolerance : mean over topics of |change of n_jk| at which a document has converged
    most : largest number of updates
    fresh : whether documents with an earlier visit are started afresh too
    held_all : (n, K) float64 of zeros, filled with n_jk
    words_by_topic : (W, K) float64, gains sum_j c_jw r_jwk
    entropy : (K,) float64, gains -sum_jw c_jw r_jwk log(r_jwk / weights_wk)
    groups : (K + 1, 2) float64, gains sum_j of E log pi_jk and of log Gamma(theta_jk)
    totals : (2,) float64, gains sum_j of log Gamma(sum_k theta_jk) and of psi(sum_k theta_jk)
    pair_entropy : (P,) float64, gains the change of entropy when both are one
    pair_groups : (P, 2) float64, as ``groups`` for the union

    Returns
    -------
    int
        -1; or the first document of which no start gives finite numbers.
    """
    documents, topics = held_all.shape
    reach, largest = tolerance * topics, 1
    for j in range(documents):
        largest = max(largest, indptr[j + 1] - indptr[j])
    gathered, anew, onward = np.empty((topics, largest)), room(topics, largest), room(topics, largest)
    pulls, ratios = np.zeros((documents, topics)), np.empty(indptr[-1] - indptr[0])
    unions = np.empty(pairs.shape[0])
    for p in range(pairs.shape[0]):
        unions[p] = prior[pairs[p, 0]] + prior[pairs[p, 1]]
    own, own_unions, mass, psi_sums = _of_priors(prior), _of_priors(unions), prior.sum(), 0.0
    for j in range(documents):
        words, counts = indices[indptr[j] : indptr[j + 1]], data[indptr[j] : indptr[j + 1]]
        part = slice(before_indptr[j], before_indptr[j + 1])
        known, known_counts, tokens = before_topics[part], before_counts[part], counts.sum()
        work, used, best = _update(
            weights, prior, words, counts, known, known_counts, gathered, anew, onward, reach, most, fresh
        )
        if not np.isfinite(best):
            return j
        own_ratios = ratios[indptr[j] - indptr[0] : indptr[j + 1] - indptr[0]]
        copy_row(work.ratios[: len(words)], own_ratios)
        for a in range(used):
            k = work.active[a]
            held_all[j, k], pulls[j, k] = work.held[a], work.pull[a]
            if work.pull[a] > 0.0:
                entropy[k] += work.lost[a] - work.held[a] * math.log(work.pull[a])
        _add_groups(prior, own, work, used, groups)
        _add_pairs(
            prior,
            pairs,
            own_unions,
            weights,
            words,
            own_ratios,
            pulls[j],
            held_all[j],
            pair_entropy,
            pair_groups,
        )
        totals[0] += math.lgamma(mass + tokens)
        psi_sums += digamma(mass + tokens)
    _add_words(indptr, indices, ratios, pulls, weights, words_by_topic)
    totals[1] += psi_sums
    for k in range(topics + 1):
        groups[k, 0] += documents * own[k, 0] - psi_sums
        groups[k, 1] += documents * own[k, 1]
    for p in range(pairs.shape[0]):
        pair_groups[p, 0] += documents * own_unions[p, 0] - psi_sums
        pair_groups[p, 1] += documents * own_unions[p, 1]
    return -1
