"""Posteriors of Gaussians with independent columns, one component after the other and without arrays in between.

A component's statistics are its sums of x^2, of x, and of 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit, jit_inlined
from dpdist.kernels.special import digamma


class Prior(NamedTuple):
    """Normal-Gamma prior of each column.

    Parameters
    ----------
    mean : (D,) m
    precision : kappa
    shape : a
    rate : (D,) b
    lost : second moments times this must not exceed what is left of them after sums cancel
    """

    mean: np.ndarray
    precision: float
    shape: float
    rate: np.ndarray
    lost: float


@jit
def evidences(prior: Prior, stats: np.ndarray, found: np.ndarray) -> int:
    """Fill `found` (K,) with the log evidence of components with `stats` (K, F).

    Return the first component that lost its precision, or -1.
    """
    dimension, before = len(prior.mean), 0.0
    for d in range(dimension):
        before += math.log(prior.rate[d])
    for k in range(len(stats)):
        count, logs = stats[k, 2 * dimension], 0.0
        shape = prior.shape + 0.5 * count
        for d in range(dimension):
            rate = _rate(prior, stats[k], d)
            if math.isnan(rate):
                return k
            logs += math.log(rate)
        each = math.lgamma(shape) - math.lgamma(prior.shape)
        each += 0.5 * math.log(prior.precision / (prior.precision + count)) - 0.5 * math.log(2 * math.pi) * count
        found[k] = dimension * each + prior.shape * before - shape * logs
    return -1


@jit
def gradients(prior: Prior, stats: np.ndarray, found: np.ndarray) -> int:
    """Fill `found` (K, F) with the expected natural parameters under the posteriors.

    Return the first component that lost its precision, or -1.
    """
    dimension = len(prior.mean)
    for k in range(len(stats)):
        count, constant = stats[k, 2 * dimension], 0.0
        precision, shape = prior.precision + count, prior.shape + 0.5 * count
        for d in range(dimension):
            rate = _rate(prior, stats[k], d)
            if math.isnan(rate):
                return k
            mean = prior.mean[d] + (stats[k, dimension + d] - count * prior.mean[d]) / precision
            expected = shape / rate
            found[k, d], found[k, dimension + d] = -0.5 * expected, expected * mean
            constant -= math.log(rate) + expected * mean * mean
        constant += dimension * (digamma(shape) - math.log(2 * math.pi) - 1 / precision)
        found[k, 2 * dimension] = 0.5 * constant
    return -1


@jit_inlined
def _rate(prior: Prior, stats: np.ndarray, d: int) -> float:
    """The rate of a column's posterior, from sums about the prior mean; NaN if rounding of them may matter."""
    dimension = len(prior.mean)
    squares, total, count, mean = stats[d], stats[dimension + d], stats[2 * dimension], prior.mean[d]
    shift = total - count * mean
    about_prior = squares - 2 * total * mean + count * mean**2
    rate = prior.rate[d] + 0.5 * (about_prior - shift**2 / (prior.precision + count))
    return rate if prior.lost * (abs(squares) + count * mean**2) <= rate and rate > 0.0 else math.nan
