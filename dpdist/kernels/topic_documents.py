"""The local step of a topic model: documents as counts, and their contributions to the sums of the bound."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit
from dpdist.kernels.rows import copy_row
from dpdist.kernels.sequential_counts import Sparse, longest
from dpdist.kernels.special import digamma
from dpdist.kernels.topic_updates import Work, gather, iterate, room, settle


class Sums(NamedTuple):
    """Sums to which documents are added, all float64.

    Parameters
    ----------
    words : (W, K) sum_j c_jw r_jwk
    entropy : (K,) -sum_jw c_jw r_jwk log(r_jwk / weights_wk)
    groups : (K + 1, 2) sum_j of E log pi_jk and of log Gamma(theta_jk)
    totals : (2,) sum_j of log Gamma(sum_k theta_jk) and of psi(sum_k theta_jk)
    pair_entropy : (P,) change of entropy if the topics of a pair are merged
    pair_groups : (P, 2) as ``groups`` for the union
    """

    words: np.ndarray
    entropy: np.ndarray
    groups: np.ndarray
    totals: np.ndarray
    pair_entropy: np.ndarray
    pair_groups: np.ndarray


class Document(NamedTuple):
    """The words of a document and their counts, and the topics of an earlier visit, if any, with their tokens."""

    words: np.ndarray
    counts: np.ndarray
    known: np.ndarray
    held: np.ndarray


@jit
def _start_fresh(
    weights: np.ndarray, prior: np.ndarray, document: Document, work: Work, reach: float, most: int
) -> tuple[int, float]:
    """Update a document from equal numbers of tokens for all topics; returns its number of topics and its bound."""
    topics, tokens = weights.shape[1], document.counts.sum()
    for k in range(topics):
        work.active[k], work.held[k] = k, tokens / topics
    gather(weights, document.words, work, topics)
    # One topic converges at once. A constant argument would compile `iterate` again.
    topics, bound, _ = iterate(prior, document.counts, work, topics, reach, most, topics > 1)
    return topics, bound


@jit
def _go_on(
    weights: np.ndarray, prior: np.ndarray, document: Document, work: Work, reach: float, most: int
) -> tuple[int, float]:
    """Update a document from its earlier topics; its bound is at least that after one plain update."""
    bound = np.nan
    for hurried in (True, False):
        topics = document.known.shape[0]
        copy_row(document.known, work.active)
        copy_row(document.held, work.held)
        gather(weights, document.words, work, topics)
        # One update; a constant 1 would compile `iterate` again.
        topics, least, done = iterate(prior, document.counts, work, topics, reach, min(most, 1), hurried)
        if done or most == 1:
            return topics, least
        topics, bound, _ = iterate(prior, document.counts, work, topics, reach, most - 1, hurried)
        if bound >= least:
            break
    return topics, bound


@jit
def _update(
    weights: np.ndarray,
    prior: np.ndarray,
    document: Document,
    anew: Work,
    onward: Work,
    reach: float,
    most: int,
    fresh: bool,
) -> tuple[Work, int, float]:
    """Update a document from the better of its starts; returns its work arrays, number of topics, and bound."""
    if len(document.words) == 0:
        return anew, 0, 0.0
    used, best = 0, -np.inf
    if fresh or len(document.known) == 0:
        used, best = _start_fresh(weights, prior, document, anew, reach, most)
        settle(document.counts, anew, used)
    if len(document.known) > 0:
        size, bound = _go_on(weights, prior, document, onward, reach, most)
        if np.isfinite(bound) and not best >= bound:
            settle(document.counts, onward, size)
            return onward, size, bound
    return anew, used, best


@jit
def _add_groups(prior: np.ndarray, own: np.ndarray, work: Work, topics: int, groups: np.ndarray) -> None:
    """Add the change of psi(theta_k) and log Gamma(theta_k) by a document's own counts to the sums."""
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
    sums: Sums,
) -> None:
    """:func:`_add_groups` for unions of two topics, and the change of their entropies; `pull` and `held` are (K,)."""
    for p in range(pairs.shape[0]):
        a, b = pairs[p]
        if pull[a] == 0.0 and pull[b] == 0.0:
            continue
        union = prior[a] + prior[b] + held[a] + held[b]
        sums.pair_groups[p, 0] += digamma(union) - own[p, 0]
        sums.pair_groups[p, 1] += math.lgamma(union) - own[p, 1]
        if pull[a] > 0.0 and pull[b] > 0.0:
            for u in range(words.shape[0]):
                row = weights[words[u]]
                x, y = row[a] * pull[a] * ratios[u], row[b] * pull[b] * ratios[u]
                if x > 0.0 and y > 0.0:
                    sums.pair_entropy[p] -= x * math.log1p(y / x) + y * math.log1p(x / y)


@jit
def _of_priors(prior: np.ndarray) -> np.ndarray:
    """psi and log Gamma of each prior, (n, 2)."""
    own = np.empty((prior.shape[0], 2))
    for k in range(prior.shape[0]):
        own[k, 0], own[k, 1] = digamma(prior[k]), math.lgamma(prior[k])
    return own


@jit
def _add_words(
    documents: Sparse, ratios: np.ndarray, pulls: np.ndarray, weights: np.ndarray, words_by_topic: np.ndarray
) -> None:
    """Add ``e_wk sum_j ratio_jw pull_jk``, word by word, so that each row of the large matrices is visited once."""
    (vocabulary, topics), begins, columns = weights.shape, documents.begins, documents.columns
    ends = np.zeros(vocabulary, dtype=np.int64)
    for entry in range(begins[0], begins[-1]):
        ends[columns[entry]] += 1
    total = 0
    for w in range(vocabulary):
        ends[w], total = total, total + ends[w]
    document, ratio = np.empty(total, dtype=np.int64), np.empty(total)
    for j in range(pulls.shape[0]):
        for entry in range(begins[j], begins[j + 1]):
            place = ends[columns[entry]]
            document[place], ratio[place] = j, ratios[entry - begins[0]]
            ends[columns[entry]] += 1
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
    documents: Sparse,
    weights: np.ndarray,
    prior: np.ndarray,
    before: Sparse,
    pairs: np.ndarray,
    tolerance: float,
    most: int,
    fresh: bool,
    held: np.ndarray,
    sums: Sums,
) -> int:
    """The local step on documents.

    Parameters
    ----------
    documents : positive counts of n documents
    weights : (W, K) float64, exp(E log phi_kw) divided by the largest of each word
    prior : (K + 1,) float64, alpha E[beta], the last for all topics not in use
    before : n_jk of an earlier visit; an empty row means none
    pairs : (P, 2) int64, pairs of topics whose union is measured
    tolerance : mean over topics of |change of n_jk| at which a document has converged
    most : largest number of updates
    fresh : whether documents with an earlier visit also start afresh
    held : (n, K) float64 of zeros, filled with n_jk
    sums : sums to which documents are added

    Returns
    -------
    int
        -1; or the index of the first document for which no start gives finite numbers.
    """
    (count, topics), begins = held.shape, documents.begins
    reach, gathered = tolerance * topics, np.empty((topics, longest(documents)))
    anew, onward = room(gathered), room(gathered)
    pulls, ratios = np.zeros((count, topics)), np.empty(begins[-1] - begins[0])
    unions = np.empty(pairs.shape[0])
    for p in range(pairs.shape[0]):
        unions[p] = prior[pairs[p, 0]] + prior[pairs[p, 1]]
    own, own_unions, mass, psi_sums = _of_priors(prior), _of_priors(unions), prior.sum(), 0.0
    for j in range(count):
        own_part, part = slice(begins[j], begins[j + 1]), slice(before.begins[j], before.begins[j + 1])
        words, counts = documents.columns[own_part], documents.values[own_part]
        document, tokens = Document(words, counts, before.columns[part], before.values[part]), counts.sum()
        work, used, best = _update(weights, prior, document, anew, onward, reach, most, fresh)
        if not np.isfinite(best):
            return j
        own_ratios = ratios[begins[j] - begins[0] : begins[j + 1] - begins[0]]
        copy_row(work.ratios[: len(words)], own_ratios)
        for a in range(used):
            k = work.active[a]
            held[j, k], pulls[j, k] = work.held[a], work.pull[a]
            if work.pull[a] > 0.0:
                sums.entropy[k] += work.lost[a] - work.held[a] * math.log(work.pull[a])
        _add_groups(prior, own, work, used, sums.groups)
        _add_pairs(prior, pairs, own_unions, weights, words, own_ratios, pulls[j], held[j], sums)
        sums.totals[0] += math.lgamma(mass + tokens)
        psi_sums += digamma(mass + tokens)
    _add_words(documents, ratios, pulls, weights, sums.words)
    sums.totals[1] += psi_sums
    for k in range(topics + 1):
        sums.groups[k, 0] += count * own[k, 0] - psi_sums
        sums.groups[k, 1] += count * own[k, 1]
    for p in range(pairs.shape[0]):
        sums.pair_groups[p, 0] += count * own_unions[p, 0] - psi_sums
        sums.pair_groups[p, 1] += count * own_unions[p, 1]
    return -1
