"""Sequential pass for Gaussians with a diagonal covariance; the predictive is a product of Student's t.

Logarithms of a row's D factors are taken of products of eight. The score of a component is abandoned as soon as the
partial sum puts its share below the floor.
"""

from __future__ import annotations

from math import lgamma
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit, jit_reassociated
from dpdist.kernels.rows import copy_row
from dpdist.kernels.sequential import compare_in_turn

#: Number of factors multiplied before a logarithm is taken.
_TOGETHER = 8


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
def _add_row(stats: np.ndarray, row: np.ndarray, weight: float) -> None:
    dimension = row.shape[0]
    squares, linear = stats[:dimension], stats[dimension:-1]
    for d in range(dimension):
        squares[d] += weight * row[d] * row[d]
        linear[d] += weight * row[d]
    stats[-1] += weight


class DiagonalPosteriors(NamedTuple):
    """Posterior of each component; row ``count`` is the prior.

    Parameters
    ----------
    mean : (C, D)
    rate : (C, D)
    stretch : (C, D) kappa / (kappa + 1) / (2 rate)
    precision : (C,) kappa
    shape : (C,) a
    level : (C,) log weight plus the constant of the predictive
    """

    mean: np.ndarray
    rate: np.ndarray
    stretch: np.ndarray
    precision: np.ndarray
    shape: np.ndarray
    level: np.ndarray

    def row(self, rows: np.ndarray, n: int, count: int) -> np.ndarray:
        return rows[n]  # type: ignore[no-any-return]

    def compare(self, row: np.ndarray, offered: int, likely: int, log_floor: float, scores: np.ndarray) -> None:
        compare_in_turn(self, row, offered, likely, log_floor, scores)

    def score(self, k: int, row: np.ndarray, least: float) -> float:
        power = self.shape[k] + 0.5
        most = (self.level[k] - least) / power
        mean, stretch = self.mean[k], self.stretch[k]
        logs = 0.0
        for start in range(0, row.shape[0], _TOGETHER):
            stop = start + _TOGETHER
            logs += _log_factor(row[start:stop], mean[start:stop], stretch[start:stop])
            if logs > most:
                return -np.inf
        return self.level[k] - power * logs  # type: ignore[no-any-return]

    def open(self, count: int) -> None:
        copy_row(self.mean[count], self.mean[count + 1])
        copy_row(self.rate[count], self.rate[count + 1])
        copy_row(self.stretch[count], self.stretch[count + 1])
        self.precision[count + 1], self.shape[count + 1] = self.precision[count], self.shape[count]
        self.level[count + 1] = self.level[count]

    def absorb(self, k: int, row: np.ndarray, gained: float, stats: np.ndarray) -> None:
        mean, rate = self.mean[k], self.rate[k]
        share = gained / (self.precision[k] + gained)
        half = 0.5 * gained * (1.0 - share)
        for d in range(row.shape[0]):
            gap = row[d] - mean[d]
            mean[d] += share * gap
            rate[d] += half * gap * gap
        self.precision[k] += gained
        self.shape[k] += 0.5 * gained
        _add_row(stats, row, gained)
        self.set_level(k, np.log(stats[-1]))

    def set_level(self, k: int, log_weight: float) -> None:
        """Compute the part of a component's score that does not depend on the row, and the factors of its distances."""
        dimension, shape = self.mean.shape[1], self.shape[k]
        shrink = self.precision[k] / (self.precision[k] + 1)
        rate, stretch = self.rate[k], self.stretch[k]
        logs = 0.0
        for d in range(dimension):
            stretch[d] = shrink / (2 * rate[d])
            logs += np.log(rate[d])
        gammas = lgamma(shape + 0.5) - lgamma(shape)
        self.level[k] = log_weight + dimension * (gammas + 0.5 * np.log(shrink / (2 * np.pi))) - 0.5 * logs


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
