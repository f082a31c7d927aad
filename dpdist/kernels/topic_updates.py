"""The updates of one document of a topic model, iterated to convergence on the topics it uses.

For a document with counts c_w, a prior p_k = alpha E[beta_k] and e_wk proportional to exp(E log phi_kw), the update is

    r_wk proportional to e_wk exp(psi(theta_k)),     n_k = sum_w c_w r_wk,     theta_k = p_k + n_k.

Topics whose share of a document becomes negligible are dropped from it. The remaining responsibilities are still a
distribution, so the bound is exact for them, and the cost of a document depends on the few topics that it uses. Between
updates a document may be extrapolated along the trend of its counts, which reduces the number of updates to a third.
The last update computes the responsibilities that are used, whatever n_k it starts from.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit, jit_reassociated
from dpdist.kernels.rows import copy_row
from dpdist.kernels.special import digamma

#: A topic with fewer tokens in a document is dropped from the document.
LEAST = 1e-6
#: Number of updates between extrapolations, doubled whenever one does not help, and number of updates before the first.
EVERY, AFTER = 2, 3
#: Largest accepted ratio of successive changes of a count, and the smallest share of a count that is kept.
STEADIEST, KEPT = 0.95, 0.1
#: Words whose weights are gathered at once: one cache line.
LINE = 8


class Work(NamedTuple):
    """A document during its updates: arrays for its active topics (K,), and ``sums`` and ``ratios`` for its words.

    Parameters
    ----------
    active, at : int64, topics, and their rows in the gathered weights
    before, held, found : n_k one update ago, now, and after the present update
    pull : exp(psi(theta_k)), scaled to a maximum of one
    lost : sum_w c_w r_wk log s_w, after the last update
    sums, ratios : s_w = sum_k e_wk pull_k, and c_w / s_w
    gathered : (K, words) weights of its words
    """

    active: np.ndarray
    at: np.ndarray
    before: np.ndarray
    held: np.ndarray
    found: np.ndarray
    pull: np.ndarray
    lost: np.ndarray
    sums: np.ndarray
    ratios: np.ndarray
    gathered: np.ndarray


@jit
def room(gathered: np.ndarray) -> Work:
    """Buffers for documents with at most as many topics and words as `gathered`, which they share."""
    topics, words = gathered.shape
    active, at = np.empty(topics, dtype=np.int64), np.empty(topics, dtype=np.int64)
    before, held, found = np.empty(topics), np.empty(topics), np.empty(topics)
    pull, lost, sums, ratios = np.empty(topics), np.empty(topics), np.empty(words), np.empty(words)
    return Work(active, at, before, held, found, pull, lost, sums, ratios, gathered)


@jit
def gather(weights: np.ndarray, words: np.ndarray, work: Work, topics: int) -> None:
    """``gathered[k, u] = weights[words[u], active[k]]``, and ``at[k] = k``."""
    size = words.shape[0]
    for k in range(topics):
        work.at[k] = k
    for first in range(0, size, LINE):
        last = min(first + LINE, size)
        for k in range(topics):
            topic, row = work.active[k], work.gathered[k]
            for u in range(first, last):
                row[u] = weights[words[u], topic]


@jit_reassociated
def _expect_words(gathered: np.ndarray, at: np.ndarray, topics: int, pull: np.ndarray, sums: np.ndarray) -> float:
    """``sums[u] = sum_k pull[k] gathered[at[k], u]``; returns the smallest.

    The inner loops run over words, of which there are many even if few topics remain; four topics at a time.
    """
    words, grouped = sums.shape[0], topics - topics % 4
    for u in range(words):
        sums[u] = 0.0
    for k in range(0, grouped, 4):
        p, q, r, s = pull[k], pull[k + 1], pull[k + 2], pull[k + 3]
        one, two, three, four = gathered[at[k]], gathered[at[k + 1]], gathered[at[k + 2]], gathered[at[k + 3]]
        for u in range(words):
            sums[u] += (p * one[u] + q * two[u]) + (r * three[u] + s * four[u])
    for k in range(grouped, topics):
        row, p = gathered[at[k]], pull[k]
        for u in range(words):
            sums[u] += p * row[u]
    least = np.inf
    for u in range(words):
        least = min(least, sums[u])
    return least


@jit_reassociated
def _expect_topics(
    gathered: np.ndarray, at: np.ndarray, topics: int, pull: np.ndarray, ratios: np.ndarray, found: np.ndarray
) -> None:
    """``found[k] = pull[k] sum_u gathered[at[k], u] ratios[u]``."""
    words, grouped = ratios.shape[0], topics - topics % 4
    for k in range(0, grouped, 4):
        one, two, three, four = gathered[at[k]], gathered[at[k + 1]], gathered[at[k + 2]], gathered[at[k + 3]]
        first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
        for u in range(words):
            first += ratios[u] * one[u]
            second += ratios[u] * two[u]
            third += ratios[u] * three[u]
            fourth += ratios[u] * four[u]
        found[k], found[k + 1] = pull[k] * first, pull[k + 1] * second
        found[k + 2], found[k + 3] = pull[k + 2] * third, pull[k + 3] * fourth
    for k in range(grouped, topics):
        row, first = gathered[at[k]], 0.0
        for u in range(words):
            first += ratios[u] * row[u]
        found[k] = pull[k] * first


@jit
def _set_pulls(prior: np.ndarray, work: Work, topics: int) -> None:
    """``pull[k] = exp(psi(prior + held))`` of the active topics, divided by the largest."""
    top = -np.inf
    for k in range(topics):
        work.pull[k] = digamma(prior[work.active[k]] + work.held[k])
        top = max(top, work.pull[k])
    for k in range(topics):
        work.pull[k] = math.exp(work.pull[k] - top)


@jit
def _narrow(work: Work, topics: int) -> int:
    """Drop empty topics; returns the number of remaining ones."""
    kept = 0
    for k in range(topics):
        if work.held[k] >= LEAST:
            work.active[kept], work.at[kept] = work.active[k], work.at[k]
            work.before[kept], work.held[kept] = work.before[k], work.held[k]
            kept += 1
    return kept


@jit
def ahead(before: float, held: float, found: float) -> float:
    """The limit of the geometric sequence through three counts (Aitken)."""
    last, change, ratio = held - before, found - held, 0.0
    if last != 0.0:
        ratio = min(max(change / last, 0.0), STEADIEST)
    return max(found + change * ratio / (1.0 - ratio), KEPT * found)


@jit
def _extrapolate(before: np.ndarray, held: np.ndarray, found: np.ndarray, topics: int) -> None:
    """Replace `found` by the extrapolated counts of each topic, with the same total number of tokens."""
    tokens, sums = 0.0, 0.0
    for k in range(topics):
        tokens += found[k]
        found[k] = ahead(before[k], held[k], found[k])
        sums += found[k]
    for k in range(topics):
        found[k] *= tokens / sums


@jit
def _bound(prior: np.ndarray, counts: np.ndarray, work: Work, topics: int) -> float:
    """A document's bound without terms that do not depend on the start."""
    bound = 0.0
    for u in range(counts.shape[0]):
        bound += counts[u] * math.log(work.sums[u])
    for k in range(topics):
        if work.pull[k] > 0.0:
            bound -= work.found[k] * math.log(work.pull[k])
        own = prior[work.active[k]]
        bound += math.lgamma(own + work.found[k]) - math.lgamma(own)
    return bound


@jit
def iterate(
    prior: np.ndarray, counts: np.ndarray, work: Work, topics: int, reach: float, most: int, hurried: bool
) -> tuple[int, float, bool]:
    """Update a document from ``work.held`` until the sum over topics of |change of n_k| is at most `reach`.

    Parameters
    ----------
    prior : (K,) or more, float64
    counts : of its words, float64
    work : the document, with its weights gathered
    topics : number of active topics
    most : largest number of updates
    hurried : whether to extrapolate between updates; the bound may then decrease

    Returns
    -------
    tuple of int, float and bool
        Number of remaining topics; the document's bound without terms that do not depend on the start, NaN if it has no
        finite probabilities; and whether it converged. At the end ``work.held`` is n_k under the responsibilities that
        follow from ``work.pull``.
    """
    words, since, every, least = counts.shape[0], 0, EVERY, np.inf
    held, found, sums, ratios = work.held, work.found, work.sums[:words], work.ratios[:words]
    for step in range(most):
        _set_pulls(prior, work, topics)
        if not _expect_words(work.gathered, work.at, topics, work.pull, sums) > 0.0:
            break
        for u in range(words):
            ratios[u] = counts[u] / sums[u]
        _expect_topics(work.gathered, work.at, topics, work.pull, ratios, found)
        change = 0.0
        for k in range(topics):
            change += abs(found[k] - held[k])
        if change <= reach or step == most - 1:
            copy_row(found[:topics], held)
            return topics, _bound(prior, counts, work, topics), change <= reach
        since += 1
        if hurried and since >= every and step >= AFTER:
            if change >= least:
                every *= 2
            _extrapolate(work.before, held, found, topics)
            since, least = 0, change
        for k in range(topics):
            work.before[k], held[k] = held[k], found[k]
        topics = _narrow(work, topics)
    return topics, np.nan, False


@jit
def settle(counts: np.ndarray, work: Work, topics: int) -> None:
    """Compute ``work.lost`` after a document's last update; overwrites ``work.sums`` s_w by (c_w / s_w) log s_w."""
    words = counts.shape[0]
    sums, before = work.sums[:words], work.ratios[:words]
    for u in range(words):
        sums[u] = before[u] * math.log(sums[u])
    _expect_topics(work.gathered, work.at, topics, work.pull, sums, work.lost)
