"""The sequential pass over rows, common to all likelihoods (Lin 2013, algorithm 1).

    rho_i(k) ~ w_k exp h_i(k),     rho_i(new) ~ alpha exp h_i(new),     w_k += rho_i(k)

A likelihood defines its :class:`Components`: arrays with one row per component, and methods that score a data row, open
a component and let it absorb a share of the row. If these are NamedTuples of arrays, their methods are compiled; any
other object makes the same pass in Python, with :func:`take_rows`. Row ``count`` of the arrays holds the prior, from
which a new component starts, so the score of a new component is computed like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from dpdist.kernels.jit import jit, jit_methods
from dpdist.kernels.scores import LANES, highest, reaching

RowsType = TypeVar("RowsType")
RowsIn = TypeVar("RowsIn", contravariant=True)
RowType = TypeVar("RowType")
RowOf = TypeVar("RowOf", contravariant=True)


class Law(NamedTuple):
    """Constants of a pass, in the form that kernels take.

    Parameters
    ----------
    log_concentration : log alpha
    threshold : responsibility above which a row opens a component
    log_floor : log of the smallest share kept, relative to the row's largest
    most : largest number of components
    """

    log_concentration: float
    threshold: float
    log_floor: float
    most: int


class Components(Protocol[RowsIn, RowType]):
    """The components of a likelihood as a pass uses them, at most C - 1."""

    @property
    def level(self) -> np.ndarray:
        """(C,), in the dtype of the scores."""

    def row(self, rows: RowsIn, n: int, count: int) -> RowType:
        """Row n in the form that the other methods take; there are `count` components."""

    def compare(self, row: RowType, offered: int, likely: int, log_floor: float, scores: np.ndarray) -> None:
        """Write log w_k + h_k of the first `offered` components to `scores`; the one after the last is a new component.

        Scores that are `log_floor` or more below the largest may be minus infinity; component `likely` may be the best.
        """

    def open(self, count: int) -> None:
        """Make row `count`, the prior, a component; the next row then holds the prior."""

    def absorb(self, k: int, row: RowType, gained: float, stats: np.ndarray) -> None:
        """Add a row to component k, whose statistics (F,) are `stats`, with the weight `gained`."""


class LevelledArrays(Protocol):
    """NamedTuples of arrays, one of which holds the part of components' scores that does not depend on the row."""

    def __iter__(self) -> Iterator[np.ndarray]: ...

    def set_level(self, k: int, log_weight: float) -> None:
        """Compute that part from the other arrays."""


class ComparedInTurn(Protocol[RowOf]):
    """Components that are scored one after the other; a score is abandoned as soon as it falls behind."""

    def score(self, k: int, row: RowOf, least: float) -> float:
        """log w_k + h_k, or minus infinity if it is below `least`; row `count` is for a new component."""


jit_methods(Components, ComparedInTurn, LevelledArrays)


@jit
def compare_in_turn(
    components: ComparedInTurn[RowType], row: RowType, offered: int, likely: int, log_floor: float, scores: np.ndarray
) -> None:
    """:meth:`Components.compare` for components with a method ``score``; the likely component is first."""
    scores[likely] = components.score(likely, row, -np.inf)
    top = scores[likely]
    for k in range(offered):
        if k != likely:
            scores[k] = components.score(k, row, top + log_floor)
            top = max(top, scores[k])


@jit
def share_row(scores: np.ndarray, count: int, law: Law, shares: np.ndarray, active: np.ndarray) -> tuple[int, bool]:
    """Responsibilities of one row.

    Parameters
    ----------
    scores : (count + 1,) log w_k + h_k; the last is for a new component
    shares : (count + 1,) float64, overwritten by the shares kept, consecutively
    active : (count + 1,) int64, overwritten by their components

    Returns
    -------
    found, opens
        Number of shares kept, or -1 if the largest score is not finite or one is not a number; whether the last of them
        is a new component.
    """
    may_open = count < law.most
    top = highest(scores[: count + may_open], shares)
    if not np.isfinite(top):
        return -1, False
    found = 0
    total = 0.0
    least = scores.dtype.type(top + law.log_floor)
    for start in range(0, count, LANES * 2):
        stop = min(count, start + LANES * 2)
        if reaching(scores[start:stop], least) == 0:
            continue
        for k in range(start, stop):
            if not scores[k] < least:  # NaN appears in the total
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
    """Add weight * min(share_a, share_b) of a row's components to `overlap` (C, C); (0, 0) if not tracked."""
    if overlap.shape[0] == 0:
        return
    for a in range(found):
        for b in range(a):
            common = weight * min(shares[a], shares[b])
            overlap[active[a], active[b]] += common
            overlap[active[b], active[a]] += common


def take_rows(
    rows: RowsType,
    weights: np.ndarray,
    count: int,
    law: Law,
    components: Components[RowsType, RowType],
    stats: np.ndarray,
    overlap: np.ndarray,
) -> tuple[int, int]:
    """Process rows until they end or there is no room for another component.

    Parameters
    ----------
    weights : (n,) float64
    count : present number of components
    components : their arrays, of length C
    stats : (C, F) float64 statistics, row ``count`` and beyond zero
    overlap : (C, C) or (0, 0)

    Returns
    -------
    done, count
        Number of rows processed, or -1 if a score was not a number; new number of components.
    """
    capacity = components.level.shape[0]
    scores, shares, active = np.empty_like(components.level), np.empty(capacity), np.empty(capacity, np.int64)
    likely = 0  # the best component of the previous row
    for n in range(weights.shape[0]):
        if count + 1 >= capacity:
            return n, count
        weight = weights[n]
        if weight == 0.0:
            continue
        row = components.row(rows, n, count)
        components.compare(row, count + (count < law.most), likely, law.log_floor, scores)
        found, opens = share_row(scores, count, law, shares, active)
        if found < 0:
            return -1, count
        if opens:
            components.open(count)
            count += 1
        best = 0.0
        for a in range(found):
            k = active[a]
            components.absorb(k, row, weight * shares[a], stats[k])
            if shares[a] > best:
                best, likely = shares[a], k
        add_overlaps(overlap, shares, active, found, weight)
    return weights.shape[0], count


#: :func:`take_rows` for components that are NamedTuples of arrays.
advance = jit(take_rows)


@jit
def set_levels(components: LevelledArrays, log_weights: np.ndarray) -> None:
    """Compute the levels of all components from their log weights (K,)."""
    for k in range(log_weights.shape[0]):
        components.set_level(k, log_weights[k])
