"""Sequential pass for full-covariance Gaussians: Cholesky factors of the scatter follow each row by rank-one updates.

The predictive is Student's t; its quadratic form is a forward substitution that stops as soon as what was summed puts
the component's share below the floor. Factors are upper triangles U with U^T U = B, so that rows are contiguous.
"""

from __future__ import annotations

from math import lgamma
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit
from dpdist.kernels.rows import copy_row
from dpdist.kernels.sequential import Law, add_overlaps, share_row


class Ellipsoids(NamedTuple):
    """Posterior of each component; row ``count`` is the prior.

    Parameters
    ----------
    mean : (C, D); zeros where means are known to be zero
    precision : (C,) kappa; infinite where means are known to be zero
    degrees : (C,) nu
    factor : (C, D, D) upper triangles
    level : (C,) log weight with the constant of the predictive
    """

    mean: np.ndarray
    precision: np.ndarray
    degrees: np.ndarray
    factor: np.ndarray
    level: np.ndarray


@jit
def _shrink(precision: float) -> float:
    """kappa / (kappa + 1)."""
    return 1.0 / (1.0 + 1.0 / precision)


@jit
def set_level(cells: Ellipsoids, k: int, log_weight: float) -> None:
    """The part of a component's score that no row changes (Murphy 2007, eq. 258)."""
    dimension, degrees = cells.mean.shape[1], cells.degrees[k]
    half_determinant = 0.0
    for d in range(dimension):
        half_determinant += np.log(cells.factor[k, d, d])
    cells.level[k] = (
        log_weight
        + lgamma((degrees + 1) / 2)
        - lgamma((degrees + 1 - dimension) / 2)
        + 0.5 * dimension * np.log(_shrink(cells.precision[k]) / np.pi)
        - half_determinant
    )


@jit
def _distance(factor: np.ndarray, gap: np.ndarray, most: float) -> float:
    """|U^-T gap|^2, or something above `most` as soon as it exceeds that; `gap` is overwritten."""
    total = 0.0
    for j in range(gap.shape[0]):
        row = factor[j]
        z = gap[j] / row[j]
        total += z * z
        if total > most:
            break
        rest, onward = gap[j + 1 :], row[j + 1 :]
        for d in range(rest.shape[0]):
            rest[d] -= z * onward[d]
    return total


@jit
def _score(cells: Ellipsoids, k: int, row: np.ndarray, least: float, gap: np.ndarray) -> float:
    """log w_k + h_k, or minus infinity if it is below `least`."""
    shrink, power = _shrink(cells.precision[k]), 0.5 * (cells.degrees[k] + 1)
    room = (cells.level[k] - least) / power
    if room < 0.0:
        return -np.inf
    most = np.expm1(room) / shrink
    mean = cells.mean[k]
    for d in range(row.shape[0]):
        gap[d] = row[d] - mean[d]
    distance = _distance(cells.factor[k], gap, most)
    return -np.inf if distance > most else cells.level[k] - power * np.log1p(shrink * distance)


@jit
def _rank_one(factor: np.ndarray, vector: np.ndarray) -> None:
    """U^T U + v v^T by Givens rotations; `vector` is overwritten (Gill, Golub, Murray & Saunders 1974)."""
    for j in range(vector.shape[0]):
        row = factor[j]
        before, entry = row[j], vector[j]
        after = np.sqrt(before * before + entry * entry)
        cosine, sine = before / after, entry / after
        row[j] = after
        onward, rest = row[j + 1 :], vector[j + 1 :]
        for d in range(rest.shape[0]):
            old = onward[d]
            onward[d] = cosine * old + sine * rest[d]
            rest[d] = cosine * rest[d] - sine * old


@jit
def _absorb(cells: Ellipsoids, k: int, row: np.ndarray, weight: float, gap: np.ndarray) -> None:
    """Give a component `weight` of a row."""
    precision, mean = cells.precision[k], cells.mean[k]
    share = weight / (precision + weight) if np.isfinite(precision) else 0.0
    stretch = np.sqrt(weight * (1.0 - share))
    for d in range(row.shape[0]):
        gap[d] = row[d] - mean[d]
        mean[d] += share * gap[d]
        gap[d] *= stretch
    _rank_one(cells.factor[k], gap)
    cells.precision[k] += weight
    cells.degrees[k] += weight


@jit
def _copy_cell(cells: Ellipsoids, k: int, onto: int) -> None:
    copy_row(cells.mean[k], cells.mean[onto])
    for d in range(cells.mean.shape[1]):
        copy_row(cells.factor[k, d], cells.factor[onto, d])
    cells.precision[onto], cells.degrees[onto] = cells.precision[k], cells.degrees[k]
    cells.level[onto] = cells.level[k]


@jit
def _add_row(stats: np.ndarray, row: np.ndarray, weight: float) -> None:
    """Statistics gain the packed products, the row itself where the statistics hold it, and 1."""
    dimension = row.shape[0]
    start = 0
    for i in range(dimension):
        scale, right = weight * row[i], row[i:]
        target = stats[start : start + dimension - i]
        for j in range(dimension - i):
            target[j] += scale * right[j]
        start += dimension - i
    if stats.shape[0] > start + 1:
        linear = stats[start:-1]
        for d in range(dimension):
            linear[d] += weight * row[d]
    stats[-1] += weight


@jit
def advance_gaussian(
    rows: np.ndarray,
    weights: np.ndarray,
    count: int,
    law: Law,
    cells: Ellipsoids,
    stats: np.ndarray,
    overlap: np.ndarray,
) -> tuple[int, int]:
    """Pass over rows until they end or there is no room for another component.

    Parameters
    ----------
    rows : (n, D) float64
    weights : (n,) float64
    count : components so far
    cells : their posteriors, capacity C
    stats : (C, F) float64, row ``count`` and beyond zero
    overlap : (C, C) or (0, 0)

    Returns
    -------
    done, count
        Rows passed, or -1 if a score was not a number; components now.
    """
    capacity, dimension = cells.mean.shape
    scores, shares = np.empty(capacity), np.empty(capacity)
    active, gap = np.empty(capacity, np.int64), np.empty(dimension)
    likely = 0
    for n in range(rows.shape[0]):
        if count + 1 >= capacity:
            return n, count
        row, weight = rows[n], weights[n]
        if weight == 0.0:
            continue
        # The row before is the best guess of where to look first; it only saves time.
        scores[likely] = _score(cells, likely, row, -np.inf, gap)
        top = scores[likely]
        for k in range(count + (count < law.most)):
            if k != likely:
                scores[k] = _score(cells, k, row, top + law.log_floor, gap)
                top = max(top, scores[k])
        found, opens = share_row(scores, count, law, shares, active)
        if found < 0:
            return -1, count
        if opens:
            _copy_cell(cells, count, count + 1)
            count += 1
        best = 0.0
        for a in range(found):
            k, gained = active[a], weight * shares[a]
            _absorb(cells, k, row, gained, gap)
            _add_row(stats[k], row, gained)
            set_level(cells, k, np.log(stats[k, -1]))
            if shares[a] > best:
                best, likely = shares[a], k
        add_overlaps(overlap, shares, active, found, weight)
    return rows.shape[0], count
