"""Sequential pass for Gaussians of one known variance, which needs only inner products within a block of rows.

With P = X M^T and the Gram matrix G = X X^T of a block, the update  m <- m + g (x_i - m)  changes the products of later
rows j to  P_j + g (G_ij - P_j)  and  |m|^2  to  (1-g)^2 |m|^2 + 2 g (1-g) P_i + g^2 G_ii. Means are recomputed from the
statistics after each block. Products are computed for a few components at a time, so that BLAS need not copy its
operands. They are stored twice: contiguous by row, because all of a row's products are read at once, and by component,
because only a few components change.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit, jit_reassociated
from dpdist.kernels.rows import copy_row
from dpdist.kernels.sequential import Law, advance


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
def _narrow(row: np.ndarray, target: np.ndarray) -> float:
    """Copy a row to the dtype of the products; returns its square."""
    total = 0.0
    for d in range(row.shape[0]):
        total += row[d] * row[d]
        target[d] = row[d]
    return total


@jit
def _read(rows: np.ndarray, x: np.ndarray, own: np.ndarray, near: np.ndarray) -> float:
    """Copy rows to the dtype of the products, and compute their squares in both; returns the largest square."""
    furthest = 0.0
    for i in range(rows.shape[0]):
        own[i] = _narrow(rows[i], x[i])
        near[i] = own[i]
        furthest = max(furthest, own[i])
    return furthest


@jit_reassociated
def _score(
    products: np.ndarray, squares: np.ndarray, halves: np.ndarray, levels: np.ndarray, own: float, scores: np.ndarray
) -> None:
    """Scores of a row, from its products with the means."""
    for k in range(scores.shape[0]):
        scores[k] = levels[k] - halves[k] * (own - (products[k] + products[k]) + squares[k])


@jit
def _level(weight: float, log_weight: float, dimension: int, sphere: Sphere) -> tuple[float, float]:
    """A component's log weight plus the constant of its predictive, and half the inverse of its variance."""
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
def _place_mean(stats: np.ndarray, sphere: Sphere, mean: np.ndarray) -> None:
    """Posterior mean of a component, from its statistics."""
    weight, total, prior = stats[-1], stats[1:-1], sphere.mean
    scale = 1.0 / (sphere.variance * (sphere.precision + weight / sphere.variance))
    for d in range(mean.shape[0]):
        mean[d] = prior[d] + scale * (total[d] - weight * prior[d])


@jit
def _renew(
    stats: np.ndarray, sphere: Sphere, held: int, touched: np.ndarray, means: np.ndarray, squares: np.ndarray
) -> None:
    """Recompute the means of the first `held` components from their statistics, where rows changed them."""
    for k in range(held):
        if touched[k]:
            _place_mean(stats[k], sphere, means[k])
            squares[k] = _square(means[k])
            touched[k] = False


#: Rows transposed at once: a cache line of float32.
_LINE = 16
#: Components multiplied at once.
_TOGETHER = 64


@jit
def _turn(rows: np.ndarray, across: np.ndarray) -> None:
    """``across = rows.T``, one cache line at a time."""
    size, dimension = rows.shape
    whole = size - size % _LINE
    for first in range(0, whole, _LINE):
        for d in range(dimension):
            for i in range(_LINE):
                across[d, first + i] = rows[first + i, d]
    for i in range(whole, size):
        for d in range(dimension):
            across[d, i] = rows[i, d]


@jit
def _multiply(means: np.ndarray, across: np.ndarray, products: np.ndarray) -> None:
    """``products = means @ across``."""
    for start in range(0, means.shape[0], _TOGETHER):
        stop = min(start + _TOGETHER, means.shape[0])
        np.dot(means[start:stop], across, products[start:stop])


@jit
def _shift(products: np.ndarray, gram: np.ndarray, gain: float) -> None:
    """Update a mean's products with later rows after it moved towards a row; `gram` are this row's products."""
    for j in range(products.shape[0]):
        products[j] += gain * (gram[j] - products[j])


class Row(NamedTuple):
    """A row and its position in the block."""

    values: np.ndarray
    place: int


class Block(NamedTuple):
    """Components and their products with the rows of a block.

    Parameters
    ----------
    sphere : constants of the family
    squares, halves, level : (C,) |m|^2, half the inverse of the predictive variance, log weight plus constant
    touched : (C,) whether the mean has changed since it was computed
    products : (K, n) m^T x, for the largest possible number of components at the end of the block
    by_row : (n, K) the same
    gram : (n, n) x^T x
    own, near : (n,) |x|^2 in float64 and in the dtype of the products
    """

    sphere: Sphere
    squares: np.ndarray
    halves: np.ndarray
    level: np.ndarray
    touched: np.ndarray
    products: np.ndarray
    by_row: np.ndarray
    gram: np.ndarray
    own: np.ndarray
    near: np.ndarray

    def row(self, rows: np.ndarray, n: int, count: int) -> Row:
        return Row(rows[n], n)

    def compare(self, row: Row, offered: int, likely: int, log_floor: float, scores: np.ndarray) -> None:
        i, squares, halves, level = row.place, self.squares, self.halves, self.level
        _score(self.by_row[i], squares, halves, level, self.near[i], scores[:offered])

    def open(self, count: int) -> None:
        self.squares[count + 1], self.level[count + 1] = self.squares[count], self.level[count]
        self.halves[count + 1] = self.halves[count]
        copy_row(self.products[count], self.products[count + 1])
        copy_row(self.products[count], self.by_row[:, count + 1])
        self.touched[count + 1] = True

    def absorb(self, k: int, row: Row, gained: float, stats: np.ndarray) -> None:
        i, sphere, squares, products = row.place, self.sphere, self.squares, self.products[k]
        gain = gained / (sphere.variance * sphere.precision + stats[-1] + gained)
        squares[k] = (1 - gain) ** 2 * squares[k] + 2 * gain * (1 - gain) * products[i] + gain**2 * self.own[i]
        _shift(products[i + 1 :], self.gram[i, i + 1 :], self.level.dtype.type(gain))
        copy_row(products[i + 1 :], self.by_row[i + 1 :, k])
        _add_row(stats, row.values, self.own[i], gained)
        self.level[k], self.halves[k] = _level(stats[-1], np.log(stats[-1]), row.values.shape[0], sphere)
        self.touched[k] = True


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
    """Process rows until they end or there is no room for the components of another block.

    Parameters
    ----------
    rows : (n, D) float64
    weights : (n,) float64
    count : present number of components
    stats : (C, F) float64, row ``count`` and beyond zero
    means : (C, D) float32 or float64, buffer for the means; its dtype is that of the products
    overlap : (C, C) or (0, 0)
    block : number of rows processed at once

    Returns
    -------
    done, count
        Number of rows processed, -1 if a score was not a number, -2 if float32 cannot resolve a row's distances; new
        number of components.
    """
    length, dimension = rows.shape
    capacity, dtype = len(stats), means.dtype
    squares, halves, level = np.empty(capacity, dtype), np.empty(capacity, dtype), np.empty(capacity, dtype)
    touched = np.ones(capacity, np.bool_)
    x, turned = np.empty((block, dimension), dtype), np.empty(dimension * block, dtype)
    inner, outer = np.empty(capacity * block, dtype), np.empty(capacity * block, dtype)
    own, near = np.empty(block), np.empty(block, dtype)
    furthest = 0.1 * sphere.variance / (8.0 * np.finfo(dtype).eps)
    for k in range(count):
        level[k], halves[k] = _level(stats[k, -1], np.log(stats[k, -1]), dimension, sphere)
    level[count], halves[count] = _level(0.0, law.log_concentration, dimension, sphere)
    begin = 0
    while begin < length and count + block < capacity:
        size = min(block, length - begin)
        _renew(stats, sphere, count + 1, touched, means, squares)
        if _read(rows[begin : begin + size], x, own, near) > furthest:
            return -2, count
        across = turned[: dimension * size].reshape((dimension, size))
        _turn(x[:size], across)
        held = count + 1
        products = inner[: (held + size) * size].reshape((held + size, size))
        _multiply(means[:held], across, products)
        by_row = outer[: (held + size) * size].reshape((size, held + size))
        _turn(products[:held], by_row)
        gram = np.dot(x[:size], across)
        cells = Block(sphere, squares, halves, level, touched, products, by_row, gram, own, near)
        stop = begin + size
        done, count = advance(rows[begin:stop], weights[begin:stop], count, law, cells, stats, overlap)
        if done < 0:
            return -1, count
        begin = stop
    return begin, count
