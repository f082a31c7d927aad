"""Posteriors of Gaussians with few columns, one component after the other: calls of LAPACK cost more than their
arithmetic there.

A component's statistics are its sums of x x^T packed as by :mod:`dpdist.kernels.packed`, of x if the mean is unknown,
and of 1. The posterior scatter B is factorised as R^T R with R upper triangular, by rows, so that inner loops are
contiguous.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit
from dpdist.kernels.special import digamma


class Prior(NamedTuple):
    """Normal-Wishart prior, or a Wishart prior if the mean is known to be zero.

    Parameters
    ----------
    scale : (D, D) B
    degrees : nu
    mean : (D,), zeros if the mean is known
    precision : kappa; not read if the mean is known
    located : whether the mean is unknown
    lost : second moments times this must not exceed what is left of them after sums cancel
    """

    scale: np.ndarray
    degrees: float
    mean: np.ndarray
    precision: float
    located: bool
    lost: float


@jit
def levels(prior: Prior, stats: np.ndarray, found: np.ndarray) -> int:
    """Fill `found` (K,) with the log normalisers of the posteriors, without constants common to all.

    Return the first component that lost its precision, or -1.
    """
    dimension, last = len(prior.mean), stats.shape[1] - 1
    upper, shift = np.empty((dimension, dimension)), np.empty(dimension)
    for k in range(len(stats)):
        log_determinant = _factorise(prior, stats[k], shift, upper)
        if math.isnan(log_determinant):
            return k
        degrees = prior.degrees + stats[k, last]
        level = -0.5 * degrees * log_determinant
        for i in range(dimension):
            level += math.lgamma(0.5 * (degrees - i))
        if prior.located:
            level -= 0.5 * dimension * math.log(prior.precision + stats[k, last])
        found[k] = level
    return -1


@jit
def gradients(prior: Prior, stats: np.ndarray, found: np.ndarray) -> int:
    """Fill `found` (K, F) with the expected natural parameters under the posteriors.

    Return the first component that lost its precision, or -1.
    """
    dimension, last = len(prior.mean), stats.shape[1] - 1
    upper, shift = np.empty((dimension, dimension)), np.empty(dimension)
    lower, inverse, mean = np.empty((dimension, dimension)), np.empty((dimension, dimension)), np.empty(dimension)
    for k in range(len(stats)):
        log_determinant = _factorise(prior, stats[k], shift, upper)
        if math.isnan(log_determinant):
            return k
        degrees = prior.degrees + stats[k, last]
        _invert(upper, lower, inverse)
        _fill_quadratic(inverse, degrees, found[k])
        constant = dimension * (math.log(2.0) - math.log(2 * math.pi)) - log_determinant
        for i in range(dimension):
            constant += digamma(0.5 * (degrees - i))
        if prior.located:
            precision = prior.precision + stats[k, last]
            for i in range(dimension):
                mean[i] = prior.mean[i] + shift[i] / precision
            constant -= dimension / precision + _fill_linear(inverse, degrees, mean, found[k])
        found[k, last] = 0.5 * constant
    return -1


@jit
def _factorise(prior: Prior, stats: np.ndarray, shift: np.ndarray, upper: np.ndarray) -> float:
    """Fill `shift` (D,) with the sums of x - m and the upper triangle (D, D) with R; return log |B|.

    The result is NaN if rounding of the second moments may matter for a pivot, which is what is left of a column given
    those before it, and so at most the diagonal of B.
    """
    dimension, count = len(shift), stats[-1]
    start, raw = 0, np.empty(dimension)
    first = len(stats) - dimension - 1
    for i in range(dimension):
        shift[i] = stats[first + i] - count * prior.mean[i] if prior.located else 0.0
    for i in range(dimension):
        by_mean, by_shift, by_total = shift[i], 0.0, prior.mean[i]
        if prior.located:
            by_shift = shift[i] / (prior.precision + count)
        target, source, scale = upper[i, i:], stats[start : start + dimension - i], prior.scale[i, i:]
        # Where the mean is known to be zero, there are no sums of x, and what is read in their place does not matter.
        means, shifts, totals = prior.mean[i:], shift[i:], stats[first + i : first + dimension]
        for j in range(dimension - i):
            about_mean = source[j] - by_mean * means[j] - by_total * totals[j]
            target[j] = scale[j] + about_mean - by_shift * shifts[j]
        raw[i] = max(abs(source[0] + count * prior.mean[i] ** 2 if prior.located else 0.0), target[0])
        start += dimension - i
    log_determinant = 0.0
    for i in range(dimension):
        pivot = upper[i, i]
        if not (pivot > 0.0 and prior.lost * raw[i] <= pivot):
            return math.nan
        log_determinant += math.log(pivot)
        root = math.sqrt(pivot)
        row = upper[i, i:]
        for j in range(dimension - i):
            row[j] /= root
        for below in range(i + 1, dimension):
            factor, target, source = upper[i, below], upper[below, below:], upper[i, below:]
            for j in range(dimension - below):
                target[j] -= factor * source[j]
    return log_determinant


@jit
def _invert(upper: np.ndarray, lower: np.ndarray, inverse: np.ndarray) -> None:
    """Fill the upper triangle of `inverse` (D, D) with B^-1 = L^T L, where L = R^-T fills the triangle of `lower`."""
    dimension = len(upper)
    for k in range(dimension):
        row = lower[k, : k + 1]
        row[:] = 0.0
        row[k] = 1.0
        for i in range(k):
            factor, source = upper[i, k], lower[i]
            for j in range(i + 1):
                row[j] -= factor * source[j]
        for j in range(k + 1):
            row[j] /= upper[k, k]
    inverse[:] = 0.0
    for k in range(dimension):
        for i in range(k + 1):
            factor, source, target = lower[k, i], lower[k, i : k + 1], inverse[i, i : k + 1]
            for j in range(k + 1 - i):
                target[j] += factor * source[j]


@jit
def _fill_quadratic(inverse: np.ndarray, degrees: float, found: np.ndarray) -> None:
    """Fill the coefficients of the products x_i x_j, i <= j: off-diagonals count twice."""
    place = 0
    for i in range(len(inverse)):
        found[place] = -0.5 * degrees * inverse[i, i]
        place += 1
        for j in range(i + 1, len(inverse)):
            found[place] = -degrees * inverse[i, j]
            place += 1


@jit
def _fill_linear(inverse: np.ndarray, degrees: float, mean: np.ndarray, found: np.ndarray) -> float:
    """Fill the coefficients of x, E[precision] times the mean; return the product of both with the mean."""
    dimension, first, product = len(mean), len(found) - len(mean) - 1, 0.0
    for i in range(dimension):
        value = 0.0
        for j in range(dimension):
            value += (inverse[i, j] if i <= j else inverse[j, i]) * mean[j]
        found[first + i] = degrees * value
        product += degrees * value * mean[i]
    return product
