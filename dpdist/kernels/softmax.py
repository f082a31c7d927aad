"""Responsibilities: a softmax per row, truncated at a floor, with the entropies it leaves."""

from __future__ import annotations

import numpy as np

from dpdist.kernels.jit import jit


@jit
def share_rows(
    logits: np.ndarray,
    mass: np.ndarray,
    weights: np.ndarray,
    floor: float,
    counts: np.ndarray,
    entropy: np.ndarray,
) -> int:
    """Share each row's mass among the columns, in place: ``logits[n] <- mass[n] * softmax(logits[n])``.

    Shares below `floor` become zero and the rest is renormalised, which is still a distribution.

    Parameters
    ----------
    logits : (n, K) float, overwritten by the responsibilities r_nk; they sum to ``mass[n]``
    mass : (n,) float64, what each row shares out, above zero (1 for whole rows)
    weights : (n,) float64 row weights c_n
    floor : float, smallest share kept, below 1/K
    counts : (K,) float64, gains sum_n c_n r_nk
    entropy : (K,) float64, gains -sum_n c_n r_nk log r_nk

    Returns
    -------
    int
        Number of responsibilities above zero; -1 if a row's largest logit is not finite or one is not a number.
    """
    rows, components = logits.shape
    threshold = np.log(floor) if floor > 0.0 else -745.0
    share = np.empty(components)
    gap = np.empty(components)
    active = np.empty(components, dtype=np.int64)
    kept_in_all = 0
    for n in range(rows):
        top = logits[n, 0]
        for k in range(1, components):
            if logits[n, k] > top:
                top = logits[n, k]
        if not np.isfinite(top):
            return -1
        found = 0
        total = 0.0
        for k in range(components):
            difference = np.float64(logits[n, k]) - np.float64(top)
            logits[n, k] = 0.0
            if difference >= threshold:
                share[found] = np.exp(difference)
                gap[found] = difference
                active[found] = k
                total += share[found]
                found += 1
            elif not difference < threshold:  # not a number
                return -1
        smallest = floor * total
        kept = 0.0
        for a in range(found):
            if share[a] >= smallest:
                kept += share[a]
        log_kept = np.log(kept)
        log_mass = np.log(mass[n])
        for a in range(found):
            if share[a] >= smallest:
                k = active[a]
                part = mass[n] * share[a] / kept
                logits[n, k] = part
                counts[k] += weights[n] * part
                entropy[k] -= weights[n] * part * (log_mass + gap[a] - log_kept)
                kept_in_all += 1
    return kept_in_all


@jit
def pair_entropy(
    resp: np.ndarray, weights: np.ndarray, first: np.ndarray, second: np.ndarray, entropy: np.ndarray
) -> None:
    """Change of the entropy when pairs of columns become one, added to ``entropy`` (P,).

    For the pair (a, b):  sum_n c_n [h(r_na + r_nb) - h(r_na) - h(r_nb)]  with  h(r) = -r log r; only rows
    where both are above zero contribute, and each contribution is at most zero.
    """
    for n in range(resp.shape[0]):
        for p in range(first.shape[0]):
            a = np.float64(resp[n, first[p]])
            if a > 0.0:
                b = np.float64(resp[n, second[p]])
                if b > 0.0:
                    entropy[p] -= weights[n] * (a * np.log1p(b / a) + b * np.log1p(a / b))


@jit
def accumulate_sparse(resp: np.ndarray, weights: np.ndarray, features: np.ndarray, stats: np.ndarray) -> None:
    """``stats += (weights * resp)^T @ features`` visiting only responsibilities above zero, four rows at a time."""
    rows, components = resp.shape
    width = features.shape[1]
    index = np.empty(rows + 4, dtype=np.int64)
    scale = np.empty(rows + 4)
    for k in range(components):
        found = 0
        for n in range(rows):
            if resp[n, k] != 0.0:
                index[found] = n
                scale[found] = weights[n] * resp[n, k]
                found += 1
        for extra in range(found, found + 3):
            index[extra] = index[0] if found > 0 else 0
            scale[extra] = 0.0
        target = stats[k]
        for start in range(0, found, 4):
            t0 = features[index[start]]
            t1 = features[index[start + 1]]
            t2 = features[index[start + 2]]
            t3 = features[index[start + 3]]
            s0, s1, s2, s3 = scale[start], scale[start + 1], scale[start + 2], scale[start + 3]
            for f in range(width):
                target[f] += s0 * t0[f] + s1 * t1[f] + s2 * t2[f] + s3 * t3[f]
