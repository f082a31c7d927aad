"""Sequential pass for Gaussians with a diagonal covariance: a product of Student's t, row by row.

The logarithms of a row's D factors are taken of products of eight; a component is left as soon as what was summed puts
its share below the floor.
"""

from __future__ import annotations

from math import lgamma
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit, jit_reassociated
from dpdist.kernels.rows import copy_row
from dpdist.kernels.sequential import Law, add_overlaps, share_row

#: Factors multiplied before a logarithm is taken.
_TOGETHER = 8


class Boxes(NamedTuple):
    """Posterior of each component; row ``count`` is the prior.

    Parameters
    ----------
    mean : (C, D)
    rate : (C, D)
    stretch : (C, D) kappa / (kappa + 1) / (2 rate)
    precision : (C,) kappa
    shape : (C,) a
    level : (C,) log weight with the constant of the predictive
    """

    mean: np.ndarray
    rate: np.ndarray
    stretch: np.ndarray
    precision: np.ndarray
    shape: np.ndarray
    level: np.ndarray


@jit
def set_level(cells: Boxes, k: int, log_weight: float) -> None:
    """The part of a component's score that no row changes, and the factors of its distances."""
    dimension, shape = cells.mean.shape[1], cells.shape[k]
    shrink = cells.precision[k] / (cells.precision[k] + 1)
    rate, stretch = cells.rate[k], cells.stretch[k]
    logs = 0.0
    for d in range(dimension):
        stretch[d] = shrink / (2 * rate[d])
        logs += np.log(rate[d])
    cells.level[k] = (
        log_weight + dimension * (lgamma(shape + 0.5) - lgamma(shape) + 0.5 * np.log(shrink / (2 * np.pi))) - 0.5 * logs
    )


@jit_reassociated
def _factor(row: np.ndarray, mean: np.ndarray, stretch: np.ndarray) -> float:
    product = 1.0
    for d in range(row.shape[0]):
        gap = row[d] - mean[d]
        product *= 1.0 + stretch[d] * gap * gap
    return product


@jit
def _log_factor(row: np.ndarray, mean: np.ndarray, stretch: np.ndarray) -> float:
    """log of the product of the factors."""
    product = _factor(row, mean, stretch)
    if product < 1e300:
        return np.log(product)
    logs = 0.0
    for d in range(row.shape[0]):
        logs += np.log1p(stretch[d] * (row[d] - mean[d]) ** 2)
    return logs


@jit
def _score(cells: Boxes, k: int, row: np.ndarray, least: float) -> float:
    """log w_k + h_k, or minus infinity if it is below `least`."""
    power = cells.shape[k] + 0.5
    most = (cells.level[k] - least) / power
    mean, stretch = cells.mean[k], cells.stretch[k]
    logs = 0.0
    for start in range(0, row.shape[0], _TOGETHER):
        stop = start + _TOGETHER
        logs += _log_factor(row[start:stop], mean[start:stop], stretch[start:stop])
        if logs > most:
            return -np.inf
    return cells.level[k] - power * logs


@jit
def _absorb(cells: Boxes, k: int, row: np.ndarray, weight: float) -> None:
    """Give a component `weight` of a row."""
    mean, rate = cells.mean[k], cells.rate[k]
    share = weight / (cells.precision[k] + weight)
    half = 0.5 * weight * (1.0 - share)
    for d in range(row.shape[0]):
        gap = row[d] - mean[d]
        mean[d] += share * gap
        rate[d] += half * gap * gap
    cells.precision[k] += weight
    cells.shape[k] += 0.5 * weight


@jit
def _copy_cell(cells: Boxes, k: int, onto: int) -> None:
    copy_row(cells.mean[k], cells.mean[onto])
    copy_row(cells.rate[k], cells.rate[onto])
    copy_row(cells.stretch[k], cells.stretch[onto])
    cells.precision[onto], cells.shape[onto], cells.level[onto] = cells.precision[k], cells.shape[k], cells.level[k]


@jit
def _add_row(stats: np.ndarray, row: np.ndarray, weight: float) -> None:
    dimension = row.shape[0]
    squares, linear = stats[:dimension], stats[dimension:-1]
    for d in range(dimension):
        squares[d] += weight * row[d] * row[d]
        linear[d] += weight * row[d]
    stats[-1] += weight


@jit
def advance_diagonal(
    rows: np.ndarray,
    weights: np.ndarray,
    count: int,
    law: Law,
    cells: Boxes,
    stats: np.ndarray,
    overlap: np.ndarray,
) -> tuple[int, int]:
    """Pass over rows; parameters and results as for ``advance_gaussian``."""
    capacity = cells.mean.shape[0]
    scores, shares, active = np.empty(capacity), np.empty(capacity), np.empty(capacity, np.int64)
    likely = 0
    for n in range(rows.shape[0]):
        if count + 1 >= capacity:
            return n, count
        row, weight = rows[n], weights[n]
        if weight == 0.0:
            continue
        scores[likely] = _score(cells, likely, row, -np.inf)
        top = scores[likely]
        for k in range(count + (count < law.most)):
            if k != likely:
                scores[k] = _score(cells, k, row, top + law.log_floor)
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
            _absorb(cells, k, row, gained)
            _add_row(stats[k], row, gained)
            set_level(cells, k, np.log(stats[k, -1]))
            if shares[a] > best:
                best, likely = shares[a], k
        add_overlaps(overlap, shares, active, found, weight)
    return rows.shape[0], count


@jit
def log_factor_sums(rows: np.ndarray, mean: np.ndarray, stretch: np.ndarray, sums: np.ndarray) -> None:
    """``sums[n, k] = sum_d log(1 + stretch_kd (x_nd - mean_kd)^2)``, (n, K)."""
    for n in range(sums.shape[0]):
        row = rows[n]
        for k in range(sums.shape[1]):
            total = 0.0
            for start in range(0, row.shape[0], _TOGETHER):
                stop = start + _TOGETHER
                total += _log_factor(row[start:stop], mean[k, start:stop], stretch[k, start:stop])
            sums[n, k] = total
