"""The local step of a topic model: documents as CSR counts, each iterated to convergence on the topics it uses.

For a document with counts c_w, a prior p_k = alpha E[beta_k] and e_wk proportional to exp(E log phi_kw), it updates

    r_wk proportional to e_wk exp(psi(theta_k)),     n_k = sum_w c_w r_wk,     theta_k = p_k + n_k.

Topics whose share of a document falls to nothing are left out of it from then on: what is left is still a
distribution, so every bound is exact for it, and a document costs what the few topics it uses cost.
"""

from __future__ import annotations

import math

import numpy as np

from dpdist.kernels.jit import jit, jit_reassociated
from dpdist.kernels.sequential_counts import Sparse
from dpdist.kernels.special import digamma, trigamma

#: Tokens of a topic in a document below which the topic is left out of the document.
LEAST = 1e-6


@jit_reassociated
def _share(
    gathered: np.ndarray,
    words: int,
    topics: int,
    counts: np.ndarray,
    pull: np.ndarray,
    sums: np.ndarray,
    ratios: np.ndarray,
    found: np.ndarray,
) -> bool:
    """One update: ``found[k] = pull[k] sum_w c_w e_kw / s_w`` with ``sums[w] = s_w = sum_k e_kw pull[k]``; returns
    whether every word has a topic.

    The inner loops run over words, of which there are many, however few topics are left; two topics at a time.
    """
    for u in range(words):
        sums[u] = 0.0
    paired = topics - topics % 2
    for k in range(0, paired, 2):
        one, two, p, q = gathered[k], gathered[k + 1], pull[k], pull[k + 1]
        for u in range(words):
            sums[u] += p * one[u] + q * two[u]
    if paired < topics:
        one, p = gathered[paired], pull[paired]
        for u in range(words):
            sums[u] += p * one[u]
    least = np.inf
    for u in range(words):
        least = min(least, sums[u])
    if not least > 0.0:
        return False
    for u in range(words):
        ratios[u] = counts[u] / sums[u]
    for k in range(0, paired, 2):
        one, two, first, second = gathered[k], gathered[k + 1], 0.0, 0.0
        for u in range(words):
            first += ratios[u] * one[u]
            second += ratios[u] * two[u]
        found[k], found[k + 1] = pull[k] * first, pull[k + 1] * second
    if paired < topics:
        one, first = gathered[paired], 0.0
        for u in range(words):
            first += ratios[u] * one[u]
        found[paired] = pull[paired] * first
    return True


@jit
def _pulls(prior: np.ndarray, active: np.ndarray, topics: int, held: np.ndarray, pull: np.ndarray) -> None:
    """``pull[k] = exp(psi(prior + held))`` of the active topics, divided by the largest."""
    top = -np.inf
    for k in range(topics):
        pull[k] = digamma(prior[active[k]] + held[k])
        top = max(top, pull[k])
    for k in range(topics):
        pull[k] = math.exp(pull[k] - top)


@jit
def _gather(weights: np.ndarray, words: np.ndarray, active: np.ndarray, topics: int, gathered: np.ndarray) -> None:
    """``gathered[k, u] = weights[words[u], active[k]]``."""
    for u in range(words.shape[0]):
        row = weights[words[u]]
        for k in range(topics):
            gathered[k, u] = row[active[k]]


@jit
def _narrow(gathered: np.ndarray, words: int, topics: int, active: np.ndarray, held: np.ndarray) -> int:
    """Leave out topics that hold nothing; returns how many are left."""
    kept = 0
    for k in range(topics):
        if held[k] >= LEAST:
            if kept < k:
                active[kept] = active[k]
                held[kept] = held[k]
                gathered[kept, :words] = gathered[k, :words]
            kept += 1
    return kept


@jit
def _iterate(
    prior: np.ndarray,
    counts: np.ndarray,
    gathered: np.ndarray,
    active: np.ndarray,
    topics: int,
    held: np.ndarray,
    pull: np.ndarray,
    sums: np.ndarray,
    ratios: np.ndarray,
    found: np.ndarray,
    tolerance: float,
    most: int,
) -> tuple[int, float]:
    """Update a document from ``held`` (n_k of the active topics) until the sum of |change of n_k| is at most
    `tolerance`; returns the number of active topics and the document's bound but for what no start changes.

    At the end ``held`` is n_k under the responsibilities that ``pull`` makes.
    """
    words = counts.shape[0]
    bound = -np.inf
    for step in range(most):
        _pulls(prior, active, topics, held, pull)
        if not _share(gathered, words, topics, counts, pull, sums, ratios, found):
            return topics, np.nan
        change = 0.0
        for k in range(topics):
            change += abs(found[k] - held[k])
        if change <= tolerance or step == most - 1:
            bound = 0.0
            for u in range(words):
                bound += counts[u] * math.log(sums[u])
            for k in range(topics):
                held[k] = found[k]
                if pull[k] > 0.0:
                    bound -= found[k] * math.log(pull[k])
                own = prior[active[k]]
                bound += math.lgamma(own + found[k]) - math.lgamma(own)
            return topics, bound
        for k in range(topics):
            held[k] = found[k]
        topics = _narrow(gathered, words, topics, active, held)
    return topics, bound


@jit
def _settle(
    words: np.ndarray,
    counts: np.ndarray,
    gathered: np.ndarray,
    active: np.ndarray,
    topics: int,
    pull: np.ndarray,
    sums: np.ndarray,
    words_by_topic: np.ndarray,
    entropy: np.ndarray,
) -> None:
    """Add up a document under the responsibilities that `pull` makes; they are left in `gathered`."""
    size = words.shape[0]
    for u in range(size):
        sums[u] = 0.0
    for k in range(topics):
        row, p = gathered[k], pull[k]
        for u in range(size):
            row[u] *= p
            sums[u] += row[u]
    for u in range(size):
        target = words_by_topic[words[u]]
        for k in range(topics):
            row = gathered[k]
            row[u] /= sums[u]
            if row[u] > 0.0:
                part = counts[u] * row[u]
                target[active[k]] += part
                entropy[active[k]] -= part * math.log(row[u])


@jit
def _add_groups(
    prior: np.ndarray,
    own: np.ndarray,
    active: np.ndarray,
    topics: int,
    held: np.ndarray,
    groups: np.ndarray,
) -> None:
    """Add to the sums of psi(theta_k) and log Gamma(theta_k) what a document's own counts change of them."""
    for a in range(topics):
        k = active[a]
        groups[k, 0] += digamma(prior[k] + held[a]) - own[k, 0]
        groups[k, 1] += math.lgamma(prior[k] + held[a]) - own[k, 1]


@jit
def _add_pairs(
    prior: np.ndarray,
    pairs: np.ndarray,
    own: np.ndarray,
    place: np.ndarray,
    held: np.ndarray,
    counts: np.ndarray,
    resp: np.ndarray,
    entropy: np.ndarray,
    groups: np.ndarray,
) -> None:
    """As :func:`_add_groups` for unions of two topics, and what their entropies lose."""
    for p in range(pairs.shape[0]):
        a, b = place[pairs[p, 0]], place[pairs[p, 1]]
        if a < 0 and b < 0:
            continue
        union = prior[pairs[p, 0]] + prior[pairs[p, 1]]
        union += (held[a] if a >= 0 else 0.0) + (held[b] if b >= 0 else 0.0)
        groups[p, 0] += digamma(union) - own[p, 0]
        groups[p, 1] += math.lgamma(union) - own[p, 1]
        if a >= 0 and b >= 0:
            for u in range(counts.shape[0]):
                x, y = resp[a, u], resp[b, u]
                if x > 0.0 and y > 0.0:
                    entropy[p] -= counts[u] * (x * math.log1p(y / x) + y * math.log1p(x / y))


@jit
def _of_priors(prior: np.ndarray) -> np.ndarray:
    """psi and log Gamma of each, (n, 2)."""
    own = np.empty((prior.shape[0], 2))
    for k in range(prior.shape[0]):
        own[k, 0], own[k, 1] = digamma(prior[k]), math.lgamma(prior[k])
    return own


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
    entropy : (K,) float64, gains -sum_jw c_jw r_jwk log r_jwk
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
    reach = tolerance * topics
    largest = 1
    for j in range(documents):
        largest = max(largest, indptr[j + 1] - indptr[j])
    gathered = np.empty((topics, largest))
    sums, ratios = np.empty(largest), np.empty(largest)
    active, best_active = np.empty(topics, dtype=np.int64), np.empty(topics, dtype=np.int64)
    held, best_held = np.empty(topics), np.empty(topics)
    pull, best_pull, found = np.empty(topics), np.empty(topics), np.empty(topics)
    place = np.full(topics, -1, dtype=np.int64)
    unions = np.empty(pairs.shape[0])
    for p in range(pairs.shape[0]):
        unions[p] = prior[pairs[p, 0]] + prior[pairs[p, 1]]
    own, own_unions, mass, psi_sums = _of_priors(prior), _of_priors(unions), prior.sum(), 0.0
    for j in range(documents):
        words, counts = indices[indptr[j] : indptr[j + 1]], data[indptr[j] : indptr[j + 1]]
        tokens = counts.sum()
        known = before_indptr[j + 1] - before_indptr[j]
        best, used = -np.inf, 0
        for start in range(2):
            if len(words) == 0 or (start == 0 and known > 0 and not fresh) or (start == 1 and known == 0):
                continue
            using = topics if start == 0 else known
            for a in range(using):
                active[a] = a if start == 0 else before_topics[before_indptr[j] + a]
                held[a] = tokens / topics if start == 0 else before_counts[before_indptr[j] + a]
            _gather(weights, words, active, using, gathered)
            using, bound = _iterate(
                prior, counts, gathered, active, using, held, pull, sums, ratios, found, reach, most
            )
            if bound > best:
                best, used = bound, using
                best_active[:using], best_held[:using], best_pull[:using] = active[:using], held[:using], pull[:using]
        if len(words) > 0 and not np.isfinite(best):
            return j
        _gather(weights, words, best_active, used, gathered)
        _settle(words, counts, gathered, best_active, used, best_pull, sums, words_by_topic, entropy)
        _add_groups(prior, own, best_active, used, best_held, groups)
        for a in range(used):
            place[best_active[a]] = a
            held_all[j, best_active[a]] = best_held[a]
        _add_pairs(prior, pairs, own_unions, place, best_held, counts, gathered, pair_entropy, pair_groups)
        for a in range(used):
            place[best_active[a]] = -1
        totals[0] += math.lgamma(mass + tokens)
        psi_sums += digamma(mass + tokens)
    totals[1] += psi_sums
    for k in range(topics + 1):
        groups[k, 0] += documents * own[k, 0] - psi_sums
        groups[k, 1] += documents * own[k, 1]
    for p in range(pairs.shape[0]):
        pair_groups[p, 0] += documents * own_unions[p, 0] - psi_sums
        pair_groups[p, 1] += documents * own_unions[p, 1]
    return -1


@jit
def word_weights(words: np.ndarray, pseudocount: float, weights: np.ndarray) -> None:
    """exp(E log phi_kw) of Dirichlet posteriors, each word's divided by its largest.

    Parameters
    ----------
    words : (W, K) float64, expected counts
    pseudocount : of the prior
    weights : (W, K) float64, overwritten
    """
    size, topics = words.shape
    sums = np.zeros(topics)
    for w in range(size):
        for k in range(topics):
            sums[k] += words[w, k]
    for k in range(topics):
        sums[k] = digamma(size * pseudocount + sums[k])
    absent = digamma(pseudocount)
    for w in range(size):
        top = -np.inf
        for k in range(topics):
            value = (absent if words[w, k] == 0.0 else digamma(pseudocount + words[w, k])) - sums[k]
            weights[w, k] = value
            top = max(top, value)
        for k in range(topics):
            weights[w, k] = math.exp(weights[w, k] - top)


@jit
def log_evidences(words: np.ndarray, pseudocount: float, found: np.ndarray) -> None:
    """Log marginal likelihoods (K,) of topics' counts (W, K) under a symmetric Dirichlet prior, overwritten."""
    size, topics = words.shape
    sums = np.zeros(topics)
    own = math.lgamma(pseudocount)
    for k in range(topics):
        found[k] = 0.0
    for w in range(size):
        for k in range(topics):
            count = words[w, k]
            if count != 0.0:
                found[k] += math.lgamma(pseudocount + count) - own
                sums[k] += count
    for k in range(topics):
        found[k] += math.lgamma(size * pseudocount) - math.lgamma(size * pseudocount + sums[k])


@jit
def complete_documents(
    observed: Sparse,
    held: Sparse,
    topics: np.ndarray,
    prior: np.ndarray,
    tolerance: float,
    most: int,
    found: np.ndarray,
) -> None:
    """Log probabilities (n,) of documents' held-out tokens under proportions fitted to the others, overwritten.

    Parameters
    ----------
    observed : counts of n documents
    held : counts of the tokens scored
    topics : (W, K) probability of each word in each topic
    prior : (K,) Dirichlet parameter of the proportions
    tolerance : mean change of n_k at convergence, times the larger of 1 and N / K
    most : largest number of updates
    """
    size = prior.shape[0]
    pull, theta, update = np.empty(size), np.empty(size), np.empty(size)
    for j in range(found.shape[0]):
        found[j] = 0.0
        first, last = observed.begins[j], observed.begins[j + 1]
        words, counts = observed.columns[first:last], observed.values[first:last]
        tokens = counts.sum()
        for k in range(size):
            theta[k] = prior[k] + (tokens / size if last > first else 0.0)
        threshold = tolerance * max(1.0, tokens / size)
        for _ in range(most if last > first else 0):
            for k in range(size):
                pull[k] = math.exp(digamma(max(theta[k], 1e-10)))
                update[k] = 0.0
            _expect(words, counts, topics, pull, update)
            change = 0.0
            for k in range(size):
                new = prior[k] + pull[k] * update[k]
                change += abs(new - theta[k])
                theta[k] = new
            if change / size < threshold:
                break
        mass = theta.sum()
        for place in range(held.begins[j], held.begins[j + 1]):
            row, probability = topics[held.columns[place]], 0.0
            for k in range(size):
                probability += row[k] * theta[k]
            found[j] += held.values[place] * math.log(probability / mass)


@jit_reassociated
def _expect(words: np.ndarray, counts: np.ndarray, topics: np.ndarray, pull: np.ndarray, update: np.ndarray) -> None:
    """``update[k] += sum_w c_w phi_wk / sum_l phi_wl pull[l]``."""
    for u in range(words.shape[0]):
        row, total = topics[words[u]], 1e-300
        for k in range(pull.shape[0]):
            total += row[k] * pull[k]
        share = counts[u] / total
        for k in range(pull.shape[0]):
            update[k] += share * row[k]


@jit
def evidence_slopes(words: np.ndarray, pseudocount: float) -> tuple[float, float]:
    """First and second derivative by the pseudocount of the sum of :func:`log_evidences` of counts (W, K)."""
    size, topics = words.shape
    sums = np.zeros(topics)
    slope, bend, entries = 0.0, 0.0, 0
    for w in range(size):
        for k in range(topics):
            count = words[w, k]
            if count != 0.0:
                slope += digamma(pseudocount + count)
                bend += trigamma(pseudocount + count)
                sums[k] += count
                entries += 1
    slope -= entries * digamma(pseudocount)
    bend -= entries * trigamma(pseudocount)
    for k in range(topics):
        if sums[k] != 0.0:
            slope += size * (digamma(size * pseudocount) - digamma(size * pseudocount + sums[k]))
            bend += size**2 * (trigamma(size * pseudocount) - trigamma(size * pseudocount + sums[k]))
    return slope, bend
