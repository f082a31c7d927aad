"""Change of the stick-breaking evidence when two components are merged, for all pairs at once.

The Gamma functions of adjacent sticks cancel. With counts in descending order and R_k = N_>=k,

    A(N) = K log gamma + sum_k [log Gamma(1 + N_k) - log(gamma + R_k)] + a function of the sum.

Counts a >= b at positions i < j become one count at position p <= i. Then R_k decreases by s = a + b from p to i and by
b between i and j, and one position is removed, so A changes by

    -log gamma - log [(1 + s) B(1 + a, 1 + b)] - log(gamma + R_p) + log(gamma + R_i) + log(gamma + R_j)
    - sum_{p <= k < i} log(1 - s / (gamma + R_k)) - sum_{i < k < j} log(1 - b / (gamma + R_k)).

The last sum grows by one term from i to i - 1. In the other sum, R_k increases by at least s / 2 per position going
back from i. So all but the last few terms are power series in s / (gamma + R_k), whose sums over k are shared by all
pairs.
"""

from __future__ import annotations

import math

import numpy as np

from dpdist.kernels.stick_merges import fill_merge_gains
from dpdist.models.allocations.base import counts_after


def stick_merge_gains(counts: np.ndarray, concentration: float) -> np.ndarray:
    """Change of A for every pair of `counts` (K,), the rest reordered: (K, K), symmetric, zero on the diagonal."""
    order = np.argsort(-counts, kind="stable")
    descending = counts[order].astype(np.float64)
    gains = np.zeros((len(counts), len(counts)))
    left = concentration + counts_after(descending)[0]
    fill_merge_gains(descending, left, order, math.log(concentration), gains)
    return gains
