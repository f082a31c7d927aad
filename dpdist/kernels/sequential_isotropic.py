"""Sequential pass for Gaussians of one known variance: within a block of rows, inner products are all it needs.

With P = X M^T and the Gram matrix G = X X^T of a block, the update  m <- m + g (x_i - m)  changes the products of
later rows j to  P_j + g (G_ij - P_j)  and  |m|^2  to  (1-g)^2 |m|^2 + 2 g (1-g) P_i + g^2 G_ii. Means are made anew
from the statistics after each block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit, jit_reassociated
from dpdist.kernels.sequential import Law, add_overlaps, share_row


class Sphere(NamedTuple):
    """Constants of the family: the known variance, the prior precision of means, the prior mean (D,) float64."""

    variance: float
    precision: float
    mean: np.ndarray


@jit_reassociated
def _square(row: np.ndarray) -> float:
    total = 0.0
    for d in range(row.shape[0]):
        total += row[d] * row[d]
    return total


@jit_reassociated
def _score(
    products: np.ndarray, squares: np.ndarray, halves: np.ndarray, levels: np.ndarray, own: float, scores: np.ndarray
) -> None:
    for k in range(scores.shape[0]):
        scores[k] = levels[k] - halves[k] * (own - 2 * products[k] + squares[k])


@jit
def _level(weight: float, log_weight: float, dimension: int, sphere: Sphere) -> tuple[float, float]:
    """A component's log weight with the constant of its predictive, and half the inverse of its variance."""
    spread = sphere.variance + 1.0 / (sphere.precision + weight / sphere.variance)
    return log_weight - 0.5 * dimension * np.log(2 * np.pi * spread), 0.5 / spread


@jit
def _add_row(stats: np.ndarray, row: np.ndarray, square: float, weight: float) -> None:
    stats[0] += weight * square
    inner = stats[1:-1]
    for d in range(row.shape[0]):
        inner[d] += weight * row[d]
    stats[-1] += weight


@jit
def place_means(stats: np.ndarray, first: int, stop: int, sphere: Sphere, means: np.ndarray) -> None:
    """Posterior means of components `first` to `stop`, from their statistics."""
    for k in range(first, stop):
        weight = stats[k, -1]
        scale = 1.0 / (sphere.variance * (sphere.precision + weight / sphere.variance))
        total, target = stats[k, 1:-1], means[k]
        for d in range(target.shape[0]):
            target[d] = sphere.mean[d] + scale * (total[d] - weight * sphere.mean[d])


@jit
def advance_isotropic(
    rows: np.ndarray,
    weights: np.ndarray,
    count: int,
    law: Law,
    sphere: Sphere,
    stats: np.ndarray,
    means: np.ndarray,
    overlap: np.ndarray,
    block: int,
) -> tuple[int, int]:
    """Pass over rows until they end or there is no room for the components of another block.

    Parameters
    ----------
    rows : (n, D) float64
    weights : (n,) float64
    count : components so far
    stats : (C, F) float64, row ``count`` and beyond zero
    means : (C, D) float32 or float64, of which row ``count`` is the prior's; its dtype is that of the products
    overlap : (C, C) or (0, 0)
    block : rows taken at once

    Returns
    -------
    done, count
        Rows passed, -1 if a score was not a number, -2 if float32 cannot resolve a row's distances; components now.
    """
    length, dimension = rows.shape
    capacity = stats.shape[0]
    scores = np.empty(capacity, means.dtype)
    squares, halves = np.empty(capacity, means.dtype), np.empty(capacity, means.dtype)
    levels = np.empty(capacity, means.dtype)
    shares, active = np.empty(capacity), np.empty(capacity, np.int64)
    products = np.empty((block, capacity), means.dtype)
    x = np.empty((block, dimension), means.dtype)
    own = np.empty(block)
    touched = np.zeros(capacity, np.bool_)
    coarse = 8.0 * np.finfo(means.dtype).eps
    for k in range(count):
        squares[k] = _square(means[k])
        levels[k], halves[k] = _level(stats[k, -1], np.log(stats[k, -1]), dimension, sphere)
    squares[count] = _square(sphere.mean)
    levels[count], halves[count] = _level(0.0, law.log_concentration, dimension, sphere)
    begin = 0
    while begin < length and count + block < capacity:
        size = min(block, length - begin)
        for i in range(size):
            own[i] = _square(rows[begin + i])
            if coarse * own[i] > 0.1 * sphere.variance:
                return -2, count
            x[i] = rows[begin + i]
        part = x[:size]
        products[:size, : count + 1] = np.dot(part, means[: count + 1].T)
        gram = np.dot(part, part.T)
        for i in range(size):
            weight = weights[begin + i]
            if weight == 0.0:
                continue
            _score(
                products[i, : count + 1],
                squares[: count + 1],
                halves[: count + 1],
                levels[: count + 1],
                own[i],
                scores[: count + 1],
            )
            found, opens = share_row(scores, count, law, shares, active)
            if found < 0:
                return -1, count
            if opens:
                count += 1
                squares[count], levels[count], halves[count] = squares[count - 1], levels[count - 1], halves[count - 1]
                products[i:size, count] = products[i:size, count - 1]
                means[count] = means[count - 1]
            for a in range(found):
                k, gained = active[a], weight * shares[a]
                gain = gained / (sphere.variance * sphere.precision + stats[k, -1] + gained)
                for j in range(i + 1, size):
                    products[j, k] += gain * (gram[i, j] - products[j, k])
                squares[k] = (1 - gain) ** 2 * squares[k] + 2 * gain * (1 - gain) * products[i, k] + gain**2 * own[i]
                _add_row(stats[k], rows[begin + i], own[i], gained)
                levels[k], halves[k] = _level(stats[k, -1], np.log(stats[k, -1]), dimension, sphere)
                touched[k] = True
            add_overlaps(overlap, shares, active, found, weight)
        for k in range(count):
            if touched[k]:
                place_means(stats, k, k + 1, sphere, means)
                squares[k] = _square(means[k])
                touched[k] = False
        begin += size
    return begin, count
