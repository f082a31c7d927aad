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
from dpdist.kernels.packed import fill_one_product, fill_one_scatter, pack_one_gradient
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
        quadratic, linear = found[k, : last - dimension * prior.located], found[k, last - dimension : last]
        pack_one_gradient(inverse, quadratic)
        constant = dimension * (math.log(2.0) - math.log(2 * math.pi)) - log_determinant
        for i in range(dimension):
            constant += digamma(0.5 * (degrees - i))
        if prior.located:
            precision = prior.precision + stats[k, last]
            for i in range(dimension):
                mean[i] = prior.mean[i] + shift[i] / precision
            fill_one_product(quadratic, mean, linear)
            product = 0.0
            for i in range(dimension):
                linear[i] *= degrees
                product += linear[i] * mean[i]
            constant -= dimension / precision + product
        for f in range(len(quadratic)):
            quadratic[f] *= -0.5 * degrees
        found[k, last] = 0.5 * constant
    return -1


@jit
def _factorise(prior: Prior, stats: np.ndarray, shift: np.ndarray, upper: np.ndarray) -> float:
    """Fill `shift` (D,) with the sums of x - m and the upper triangle (D, D) with R; return log |B|.

    The result is NaN if rounding of the second moments may matter for a pivot, which is what is left of a column given
    those before it, and so at most the diagonal of B.
    """
    dimension, count = len(shift), stats[-1]
    total, precision = (stats[-dimension - 1 : -1], prior.precision + count) if prior.located else (prior.mean, 1.0)
    fill_one_scatter(prior.scale, stats, total, count, prior.mean, precision, shift, upper)
    raw, place = np.empty(dimension), 0
    for i in range(dimension):
        raw[i] = max(abs(stats[place] + count * prior.mean[i] ** 2 if prior.located else 0.0), upper[i, i])
        place += dimension - i
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
