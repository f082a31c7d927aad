"""Change of the stick-breaking evidence for every pair of counts; the formula is derived in
:mod:`dpdist.models.allocations.stick_merges`."""

from __future__ import annotations

import math

import numpy as np

from dpdist.kernels.jit import jit
from dpdist.kernels.special import log_beta

#: A term is computed as a series if gamma + R_k is at least FAR times s; POWERS terms leave less than rounding error.
FAR, POWERS = 16.0, 14


@jit
def fill_merge_gains(
    counts: np.ndarray, left: np.ndarray, order: np.ndarray, log_concentration: float, gains: np.ndarray
) -> None:
    """Fill `gains` (K, K) but for its diagonal; symmetric.

    Parameters
    ----------
    counts : (K,) in descending order
    left : (K,) gamma + R_k
    order : (K,) places of the counts in `gains`
    log_concentration : log gamma
    """
    powers = _sums_of_powers(left)
    for j in range(1, len(counts)):
        place, near, between = j, j, 0.0
        for i in range(j - 1, -1, -1):
            both = counts[i] + counts[j]
            # Both grow with the larger count, so their positions only move forward.
            while place > 0 and counts[place - 1] < both:
                place -= 1
            while near > 0 and left[near - 1] < FAR * both:
                near -= 1
            begin = min(place, i)
            end = min(max(near, begin), i)
            moved, product = between, 1.0
            if end > begin:
                moved += _before(powers, left, begin, both) - _before(powers, left, end, both)
            for k in range(end, i):  # at most 2 FAR - 2 factors, none below 1/3: there R_k >= s + (i - k) s / 2
                product *= 1 - both / left[k]
            gain = math.log(left[i] / left[begin] * left[j]) - log_concentration
            gain -= math.log1p(both) + log_beta(1 + counts[i], 1 + counts[j])
            gain -= moved + math.log(product)
            gains[order[i], order[j]] = gains[order[j], order[i]] = gain
            between += math.log1p(-counts[j] / left[i])


@jit
def _before(powers: np.ndarray, left: np.ndarray, k: int, both: float) -> float:
    """The series of -sum_{l < k} log(1 - both / left_l); sums over far terms are differences of it."""
    share, series = both / left[k], 0.0
    for m in range(POWERS - 1, -1, -1):
        series = (series + powers[k, m]) * share
    return series


@jit
def _sums_of_powers(left: np.ndarray) -> np.ndarray:
    """sum_{l < k} (left_k / left_l)^m / m, (K, POWERS), m from 1 on; ratios avoid overflow and underflow."""
    sums = np.zeros((len(left), POWERS))
    for k in range(len(left) - 1):
        ratio, power = left[k + 1] / left[k], 1.0
        for m in range(POWERS):
            power *= ratio
            sums[k + 1, m] = (sums[k, m] + 1) * power
    for k in range(len(left)):
        for m in range(POWERS):
            sums[k, m] /= m + 1
    return sums
