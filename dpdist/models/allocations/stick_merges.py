"""Change of the stick-breaking evidence when two components are merged, for all pairs at once.

The Gamma functions of adjacent sticks cancel. With counts in descending order and R_k = N_>=k,

    A(N) = K log gamma + sum_k [log Gamma(1 + N_k) - log(gamma + R_k)] + a function of the sum.

Counts a >= b at positions i < j become one count at position p <= i. Then R_k decreases by s = a + b from p to i and by
b between i and j, and one position is removed, so A changes by

    -log gamma - log [(1 + s) B(1 + a, 1 + b)] - log(gamma + R_p) + log(gamma + R_i) + log(gamma + R_j)
    - sum_{p <= k < i} log(1 - s / (gamma + R_k)) - sum_{i < k < j} log(1 - b / (gamma + R_k)).

The last sum is one of K sums over k for each b. In the other sum, R_k increases by at least s / 2 per position going
back from i. So all but the last few terms are power series in s / (gamma + R_k), whose sums over k are shared by all
pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln

from dpdist.models.allocations.base import counts_after

#: A term is computed as a series if gamma + R_k is at least _FAR times s; _POWERS terms leave less than rounding error.
_FAR, _POWERS = 16, 14
#: Largest number of positions before i that are not far: there R_k >= s + (i - k) s / 2.
_NEAR = 2 * _FAR - 2
#: Pairs processed at a time, so that their arrays fit in the cache.
_PAIRS = 8192


def stick_merge_gains(counts: np.ndarray, concentration: float) -> np.ndarray:
    """Change of A for every pair of `counts` (K,), the rest reordered: (K, K), symmetric, zero on the diagonal."""
    order = np.argsort(-counts, kind="stable")
    sticks = _Sticks.of(counts[order], concentration)
    first, second = np.triu_indices(len(counts), 1)
    gains = np.zeros((len(counts), len(counts)))
    for start in range(0, len(first), _PAIRS):
        i, j = first[start : start + _PAIRS], second[start : start + _PAIRS]
        gains[order[i], order[j]] = sticks.merged(i, j)
    return gains + gains.T


@dataclass(frozen=True, eq=False)
class _Sticks:
    """Counts in descending order, and sums over them that all pairs share.

    Parameters
    ----------
    counts : (K,), N_k
    left : (K,), gamma + R_k
    between : (K, K), sum_{i <= k < j} log(1 - N_j / left_k)
    powers : (_POWERS, K), sum_{l < k} (left_k / left_l)^m / m for m = 1, 2, ...
    constant : change of A for every pair from having one count fewer
    """

    counts: np.ndarray
    left: np.ndarray
    between: np.ndarray
    powers: np.ndarray
    constant: float

    @staticmethod
    def of(counts: np.ndarray, concentration: float) -> _Sticks:
        """Compute the sums for descending `counts` (K,)."""
        left = concentration + counts_after(counts)[0]
        shares = np.log1p(-np.triu(counts / left[:, None], 1))
        between = np.cumsum(shares[::-1], axis=0)[::-1]
        return _Sticks(counts, left, between, _sums_of_powers(left), -float(np.log(concentration)))

    def merged(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Change of A if the positions `i` < `j` are merged, (P,)."""
        larger, smaller = self.counts[i], self.counts[j]
        both = larger + smaller
        place = np.minimum(i, np.searchsorted(-self.counts, -both, side="right"))
        near = np.clip(np.searchsorted(-self.left, -_FAR * both, side="right"), place, i)
        far = self._before(place, both) - self._before(near, both)
        moved = far + self._near(near, i, both) + self.between[i + 1, j]
        gained: np.ndarray = self.constant - np.log1p(both) - betaln(1 + larger, 1 + smaller) - moved
        return np.asarray(gained + np.log(self.left[i] / self.left[place] * self.left[j]))

    def _before(self, k: np.ndarray, both: np.ndarray) -> np.ndarray:
        """The series of -sum_{l < k} log(1 - both / left_l), (P,); sums over far terms are differences of it."""
        share, series = both / self.left[k], np.zeros_like(both)
        for term in self.powers[::-1]:
            series = (series + term[k]) * share
        return series

    def _near(self, begin: np.ndarray, end: np.ndarray, both: np.ndarray) -> np.ndarray:
        """sum_{begin <= k < end} log(1 - both / left_k), (P,), from a product of _NEAR factors, none below 1/3."""
        k = np.maximum(end - np.arange(1, _NEAR + 1)[:, None], -1)
        factors = 1 - np.where(k >= begin, both / self.left[k], 0.0)
        return np.asarray(np.log(factors.prod(axis=0)))


def _sums_of_powers(left: np.ndarray) -> np.ndarray:
    """sum_{l < k} (left_k / left_l)^m / m, (_POWERS, K); ratios avoid overflow and underflow."""
    m = np.arange(1, _POWERS + 1)[:, None]
    steps, sums = (left[1:] / left[:-1]) ** m, np.zeros((_POWERS, len(left)))
    for k in range(len(left) - 1):
        sums[:, k + 1] = (sums[:, k] + 1) * steps[:, k]
    return sums / m
