"""Responsibilities: a softmax per row, truncated at a floor, and the resulting entropies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit, jit_inlined, jit_reassociated
from dpdist.kernels.scores import highest, reaching
from dpdist.kernels.vectorised import LEAST_EXPONENT, Bits, bits_of, exponentials

#: If more than _FEW plus one in _SPARSE components come close to a row's best one, all components are processed at
#: once; otherwise these are processed one after the other.
_FEW, _SPARSE = 12, 32


class Room(NamedTuple):
    """Buffers for one row with K components.

    ``share``, ``gap`` and ``active`` are (K,), for components processed one after the other; ``bits`` is for all at
    once.
    """

    share: np.ndarray
    gap: np.ndarray
    active: np.ndarray
    bits: Bits


class Sums(NamedTuple):
    """Sums over rows: counts sum_n c_n r_nk and entropies -sum_n c_n r_nk log r_nk, (K,) float64."""

    counts: np.ndarray
    entropy: np.ndarray


@jit
def share_rows(
    logits: np.ndarray,
    mass: np.ndarray,
    weights: np.ndarray,
    floor: float,
    counts: np.ndarray,
    entropy: np.ndarray,
) -> int:
    """Divide each row's mass among the columns, in place: ``logits[n] <- mass[n] * softmax(logits[n])``.

    Shares below `floor` relative to the row's largest become zero, then those below it relative to the sum of the
    remaining ones. The rest is renormalised, so it is still a distribution.

    Parameters
    ----------
    logits : (n, K) float, overwritten by the responsibilities r_nk; they sum to ``mass[n]``
    mass : (n,) float64, the total of each row, positive (1 for whole rows)
    weights : (n,) float64 row weights c_n
    floor : float, smallest share kept; with so many columns that all might be smaller, half of an equal share
    counts : (K,) float64, incremented by sum_n c_n r_nk
    entropy : (K,) float64, incremented by -sum_n c_n r_nk log r_nk

    Returns
    -------
    int
        Number of nonzero responsibilities; -1 if a row's largest logit is not finite or one is not a number.
    """
    rows, components = logits.shape
    floor = min(floor, 0.5 / components)
    lowest = np.log(floor) if floor > 0.0 else LEAST_EXPONENT
    room = Room(np.empty(components), np.empty(components), np.empty(components, np.int64), bits_of(components))
    sums, kept_in_all = Sums(counts, entropy), 0
    for n in range(rows):
        row = logits[n]
        top = highest(row, room.gap)
        if not np.isfinite(top):
            return -1
        least = row.dtype.type(top + lowest)
        if reaching(row, least) > _FEW + components // _SPARSE:
            kept = _share_among_all(row, top, lowest, floor, mass[n], weights[n], room, sums)
        else:
            kept = _share_among_few(row, top, least, floor, mass[n], weights[n], room, sums)
        if kept < 0:
            return -1
        kept_in_all += kept
    return kept_in_all


@jit_inlined
def _share_among_few(
    row: np.ndarray, top: float, least: float, floor: float, mass: float, weight: float, room: Room, sums: Sums
) -> int:
    """Responsibilities of a row with few logits not below `least`, which are processed one after the other."""
    share, gap, active = room.share, room.gap, room.active
    found, total = 0, 0.0
    for k in range(row.shape[0]):
        if not row[k] < least:  # NaN appears in the total
            gap[found] = np.float64(row[k]) - top
            share[found] = np.exp(gap[found])
            active[found] = k
            total += share[found]
            found += 1
        row[k] = 0.0
    if np.isnan(total):
        return -1
    kept, kept_in_all = 0.0, 0
    for a in range(found):
        if share[a] >= floor * total:
            kept += share[a]
    shift = np.log(mass) - np.log(kept)
    for a in range(found):
        if share[a] >= floor * total:
            k, part = active[a], mass * share[a] / kept
            row[k] = part
            sums.counts[k] += weight * part
            sums.entropy[k] -= weight * part * (shift + gap[a])
            kept_in_all += 1
    return kept_in_all


@jit_inlined
def _share_among_all(
    row: np.ndarray, top: float, lowest: float, floor: float, mass: float, weight: float, room: Room, sums: Sums
) -> int:
    """Responsibilities of a row whose logits are all processed at once."""
    share, gap = room.share, room.gap
    for k in range(row.shape[0]):
        gap[k] = np.float64(row[k]) - top
    total = exponentials(gap, lowest, room.bits, share)
    if np.isnan(total):
        return -1
    kept, kept_in_all = _drop(share, floor * total)
    scale, shift = mass / kept, np.log(mass) - np.log(kept)
    for k in range(row.shape[0]):
        part = scale * share[k]
        row[k] = part
        sums.counts[k] += weight * part
        sums.entropy[k] -= weight * part * (shift + gap[k])
    return kept_in_all


@jit_reassociated
def _drop(share: np.ndarray, smallest: float) -> tuple[float, int]:
    """Set values below `smallest` to zero; returns the sum of the rest and their number."""
    kept, found = 0.0, 0
    for k in range(share.shape[0]):
        value = share[k] if share[k] >= smallest else 0.0
        share[k] = value
        kept += value
        found += value > 0.0
    return kept, found


@jit
def pair_entropy(
    resp: np.ndarray, weights: np.ndarray, first: np.ndarray, second: np.ndarray, entropy: np.ndarray
) -> None:
    """Change of the entropy if pairs of columns are merged, added to ``entropy`` (P,).

    For the pair (a, b):  sum_n c_n [h(r_na + r_nb) - h(r_na) - h(r_nb)]  with  h(r) = -r log r; only rows where both
    are nonzero contribute, and each contribution is at most zero.
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
    """``stats += (weights * resp)^T @ features``, visiting only nonzero responsibilities, four rows at a time."""
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
