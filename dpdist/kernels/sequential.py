"""What every sequential pass does with a row's scores: share the row out, open a component, track overlaps.

Source: Lin (2013), algorithm 1. Components are rows of arrays; row ``count`` always holds the prior, which is what a
new component starts from, so that its score is computed like any other's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit


class Law(NamedTuple):
    """Constants of a pass, in the form kernels take.

    Parameters
    ----------
    log_concentration : log alpha
    threshold : share above which a row opens a component
    log_floor : log of the smallest share kept, relative to the row's largest
    most : largest number of components
    """

    log_concentration: float
    threshold: float
    log_floor: float
    most: int


@jit
def highest(scores: np.ndarray) -> float:
    """The largest score, whatever are not numbers apart; minus infinity if there is none.

    Four running maxima, because one would wait for itself at every score.
    """
    if scores.shape[0] == 0:
        return -np.inf
    a = b = c = d = scores[0]
    whole = scores.shape[0] - scores.shape[0] % 4
    for k in range(0, whole, 4):
        a = scores[k] if scores[k] > a else a
        b = scores[k + 1] if scores[k + 1] > b else b
        c = scores[k + 2] if scores[k + 2] > c else c
        d = scores[k + 3] if scores[k + 3] > d else d
    for k in range(whole, scores.shape[0]):
        a = scores[k] if scores[k] > a else a
    return np.float64(max(max(a, b), max(c, d)))


@jit
def share_row(scores: np.ndarray, count: int, law: Law, shares: np.ndarray, active: np.ndarray) -> tuple[int, bool]:
    """Responsibilities of one row.

    Parameters
    ----------
    scores : (count + 1,) log w_k + h_k; the last is a new component's
    shares : (count + 1,) float64, gains the shares kept, one after the other
    active : (count + 1,) int64, gains the components they belong to

    Returns
    -------
    found, opens
        How many shares are kept, or -1 if the largest score is not finite or one is not a number; whether the last
        of them is a new component.
    """
    may_open = count < law.most
    top = highest(scores[: count + may_open])
    if not np.isfinite(top):
        return -1, False
    found = 0
    total = 0.0
    least = scores.dtype.type(top + law.log_floor)
    for k in range(count):
        if not scores[k] < least:  # what is not a number shows in the total
            shares[found] = np.exp(np.float64(scores[k]) - top)
            active[found] = k
            total += shares[found]
            found += 1
    if np.isnan(total):
        return -1, False
    new = np.exp(scores[count] - top) if may_open else 0.0
    opens = new > law.threshold * (total + new)
    if opens:
        shares[found] = new
        active[found] = count
        total += new
        found += 1
    for a in range(found):
        shares[a] /= total
    return found, opens


@jit
def add_overlaps(overlap: np.ndarray, shares: np.ndarray, active: np.ndarray, found: int, weight: float) -> None:
    """Add weight * min(share_a, share_b) of a row's components to `overlap` (C, C); (0, 0) where none is tracked."""
    if overlap.shape[0] == 0:
        return
    for a in range(found):
        for b in range(a):
            common = weight * min(shares[a], shares[b])
            overlap[active[a], active[b]] += common
            overlap[active[b], active[a]] += common
