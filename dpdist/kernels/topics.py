"""Compiled functions of topics: weights and evidences from expected counts, and completion of documents."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit, jit_inlined, jit_reassociated
from dpdist.kernels.sequential_counts import Sparse
from dpdist.kernels.special import digamma, trigamma
from dpdist.kernels.vectorised import LEAST_EXPONENT, Bits, bits_of, digammas, exponentials, log_gammas, logarithms

#: The exponentials of larger logarithms are nonzero and finite.
_NEAR = -600.0
#: Smallest number with full precision.
LEAST_WEIGHT = float(np.finfo(np.float64).tiny)


@jit
def word_weights(words: np.ndarray, pseudocount: float, weights: np.ndarray) -> None:
    """exp(E log phi_kw) of Dirichlet posteriors, divided by the largest value of each word.

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
    least = sums.min()
    absent = digamma(pseudocount)
    without = np.exp(absent - sums)  # most words are in few topics, so this saves exponentials
    there, logs, room = np.empty(topics, dtype=np.int64), np.empty(topics), _room(topics)
    for w in range(size):
        row, found = weights[w], _gather(words[w], pseudocount, there, room.numbers)
        digammas(room.numbers[:found], room.bits, room.far, logs)
        top = absent - least
        for place in range(found):
            logs[place] -= sums[there[place]]
            top = max(top, logs[place])
        if absent > _NEAR and top > _NEAR:
            scale = math.exp(-top)
            for k in range(topics):
                row[k] = without[k] * scale
        else:
            for k in range(topics):
                row[k] = math.exp(absent - sums[k] - top)
        for place in range(found):
            room.numbers[place] = logs[place] - top
        exponentials(room.numbers[:found], LEAST_EXPONENT, room.bits, logs)
        for place in range(found):
            row[there[place]] = logs[place]


class _Room(NamedTuple):
    """Buffers for vectorised functions: the numbers, a copy, and bits."""

    numbers: np.ndarray
    far: np.ndarray
    bits: Bits


@jit_inlined
def _room(size: int) -> _Room:
    return _Room(np.empty(size), np.empty(size), bits_of(size))


@jit_inlined
def _gather(counts: np.ndarray, pseudocount: float, there: np.ndarray, numbers: np.ndarray) -> int:
    """Find the nonzero counts (K,) and add the pseudocount to them; returns their number."""
    found = 0
    for k in range(counts.shape[0]):  # no branch, because zeros are unpredictable
        there[found], numbers[found] = k, pseudocount + counts[k]
        found += counts[k] != 0.0
    return found


@jit
def log_evidences(words: np.ndarray, pseudocount: float, found: np.ndarray) -> None:
    """Log marginal likelihoods (K,) of topics' counts (W, K) under a symmetric Dirichlet prior, overwritten."""
    size, topics = words.shape
    sums, there, values, room = np.zeros(topics), np.empty(topics, dtype=np.int64), np.empty(topics), _room(topics)
    own = math.lgamma(pseudocount)
    for k in range(topics):
        found[k] = 0.0
    for w in range(size):
        count = _gather(words[w], pseudocount, there, room.numbers)
        log_gammas(room.numbers[:count], room.bits, room.far, values)
        for place in range(count):
            k = there[place]
            found[k] += values[place] - own
            sums[k] += words[w, k]
    for k in range(topics):
        found[k] += math.lgamma(size * pseudocount) - math.lgamma(size * pseudocount + sums[k])


@jit
def union_evidences(words: np.ndarray, pairs: np.ndarray, pseudocount: float, found: np.ndarray) -> None:
    """Change of :func:`log_evidences` of counts (W, K) if each of the `pairs` (P, 2) is merged, (P,), overwritten.

    Words that only one of the two topics has contribute the same to both sides.
    """
    size, topics = words.shape
    sums = np.zeros(topics)
    own = math.lgamma(pseudocount)
    found[:] = 0.0
    for w in range(size):
        row = words[w]
        for k in range(topics):
            sums[k] += row[k]
        for p in range(pairs.shape[0]):
            one, two = row[pairs[p, 0]], row[pairs[p, 1]]
            if one != 0.0 and two != 0.0:
                joint = math.lgamma(pseudocount + one + two) + own
                found[p] += joint - math.lgamma(pseudocount + one) - math.lgamma(pseudocount + two)
    prior = size * pseudocount
    for p in range(pairs.shape[0]):
        one, two = sums[pairs[p, 0]], sums[pairs[p, 1]]
        found[p] += math.lgamma(prior + one) + math.lgamma(prior + two) - math.lgamma(prior + one + two)
        found[p] -= math.lgamma(prior)


@jit
def expected_logs(words: np.ndarray, weights: np.ndarray, found: np.ndarray) -> None:
    """``sum_w words_wk log weights_wk`` (K,), overwritten, both (W, K).

    Words without tokens of a topic are skipped, whatever their weight in it.
    """
    size, topics = words.shape
    there, room = np.empty(topics, dtype=np.int64), _room(topics)
    found[:] = 0.0
    for w in range(size):
        count = 0
        for k in range(topics):
            there[count], room.numbers[count] = k, max(weights[w, k], LEAST_WEIGHT)
            count += words[w, k] != 0.0
        logarithms(room.numbers[:count], room.bits, room.far)
        for place in range(count):
            k = there[place]
            found[k] += words[w, k] * room.far[place]


@jit
def expect_counts(documents: Sparse, used: Sparse, words: np.ndarray, found: np.ndarray) -> None:
    """Expected counts of the words in documents, overwritten.

    Parameters
    ----------
    documents : n documents, of which only the words are used
    used : tokens of each of K topics in them
    words : (W, K) float64, probability of each word in each topic
    found : one entry for each value of `documents`
    """
    for j in range(documents.begins.shape[0] - 1):
        for entry in range(documents.begins[j], documents.begins[j + 1]):
            row, total = words[documents.columns[entry]], 0.0
            for place in range(used.begins[j], used.begins[j + 1]):
                total += used.values[place] * row[used.columns[place]]
            found[entry] = total


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
    held : counts of the tokens that are scored
    topics : (W, K) probability of each word in each topic
    prior : (K,) Dirichlet parameter of the proportions
    tolerance : mean change of n_k at convergence, in units of the larger of 1 and N / K
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
    """First and second derivative by the pseudocount of the summed :func:`log_evidences` of counts (W, K)."""
    size, topics = words.shape
    sums, there, values, room = np.zeros(topics), np.empty(topics, dtype=np.int64), np.empty(topics), _room(topics)
    slope, bend, entries = 0.0, 0.0, 0
    for w in range(size):
        count = _gather(words[w], pseudocount, there, room.numbers)
        digammas(room.numbers[:count], room.bits, room.far, values)
        for place in range(count):
            room.far[place] = trigamma(room.numbers[place])
        for place in range(count):
            slope += values[place]
            bend += room.far[place]
            sums[there[place]] += words[w, there[place]]
        entries += count
    slope -= entries * digamma(pseudocount)
    bend -= entries * trigamma(pseudocount)
    for k in range(topics):
        if sums[k] != 0.0:
            slope += size * (digamma(size * pseudocount) - digamma(size * pseudocount + sums[k]))
            bend += size**2 * (trigamma(size * pseudocount) - trigamma(size * pseudocount + sums[k]))
    return slope, bend
