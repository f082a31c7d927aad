"""The bound of a hierarchical Dirichlet process as a function of its global sticks."""

from __future__ import annotations

import math

import numpy as np

from dpdist.kernels.jit import jit
from dpdist.kernels.special import digamma, trigamma


@jit
def stick_bound(
    first: np.ndarray,
    second: np.ndarray,
    ones: np.ndarray,
    zeros: np.ndarray,
    pull: np.ndarray,
    by_first: np.ndarray,
    by_second: np.ndarray,
) -> float:
    """``sum_k [(ones - a) E log u + (zeros - b) E log(1 - u) + log B(a, b)] + E[beta] . pull`` and its slopes.

    Parameters
    ----------
    first, second : (K,) float64, a and b of the sticks Beta(a_k, b_k)
    ones, zeros : (K,) float64
    pull : (K + 1,) float64
    by_first, by_second : (K,) float64, overwritten by the derivatives
    """
    topics = first.shape[0]
    left = np.empty(topics)  # E[1 - u_l] multiplied over the sticks before
    passed = 1.0
    for k in range(topics):
        left[k] = passed
        passed *= second[k] / (first[k] + second[k])
    tail, bound = pull[topics], 0.0  # tail: E[beta] . pull beyond stick k, given that it is left
    for k in range(topics - 1, -1, -1):
        a, b = first[k], second[k]
        both = digamma(a + b)
        bound += (ones[k] - a) * (digamma(a) - both) + (zeros[k] - b) * (digamma(b) - both)
        bound += math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
        shared = (ones[k] + zeros[k] - a - b) * trigamma(a + b)
        slope = left[k] * (pull[k] - tail) / (a + b) ** 2
        by_first[k] = (ones[k] - a) * trigamma(a) - shared + slope * b
        by_second[k] = (zeros[k] - b) * trigamma(b) - shared - slope * a
        tail += a / (a + b) * (pull[k] - tail)
    return float(bound + tail)
