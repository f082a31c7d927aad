"""Sequential passes for counts and binary rows in CSR, visiting only nonzero entries.

The predictive of counts consists of rising factorials Gamma(p + x) / Gamma(p), which are short products for small x.
"""

from __future__ import annotations

from math import lgamma
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit
from dpdist.kernels.rows import add_to_row, copy_row
from dpdist.kernels.sequential import compare_in_turn

#: Largest x for which Gamma(p + x) / Gamma(p) is computed as a product.
_SHORT = 16.0


class Sparse(NamedTuple):
    """Rows in CSR: values float64, columns, and the index at which each row begins."""

    values: np.ndarray
    columns: np.ndarray
    begins: np.ndarray


class Entries(NamedTuple):
    """Nonzero entries of one row, their columns, and their sum."""

    values: np.ndarray
    columns: np.ndarray
    total: float


@jit
def longest(rows: Sparse) -> int:
    """Number of entries of the longest row, at least one."""
    largest = 1
    for j in range(rows.begins.shape[0] - 1):
        largest = max(largest, rows.begins[j + 1] - rows.begins[j])
    return largest


@jit
def _entries(rows: Sparse, n: int) -> Entries:
    values = rows.values[rows.begins[n] : rows.begins[n + 1]]
    return Entries(values, rows.columns[rows.begins[n] : rows.begins[n + 1]], values.sum())


@jit
def log_rising(p: float, x: float) -> float:
    """log Gamma(p + x) - log Gamma(p), without cancellation for large p."""
    if x <= _SHORT and p < 1e15:
        product = 1.0
        for j in range(int(x)):
            product *= p + j
        return np.log(product)
    if p > 100.0:
        after = p + x
        series = (1 / after - 1 / p) / 12 - (1 / after**3 - 1 / p**3) / 360
        return (p - 0.5) * np.log1p(x / p) + x * np.log(after) - x + series
    return lgamma(p + x) - lgamma(p)


@jit
def _add_entries(target: np.ndarray, row: Entries, weight: float) -> None:
    for e in range(row.values.shape[0]):
        target[row.columns[e]] += weight * row.values[e]


class MultinomialPosteriors(NamedTuple):
    """Dirichlet posteriors of multinomial components; row ``count`` is the prior.

    ``parameter`` (C, D), its sum ``total`` (C,), and ``level`` (C,) the log weight.
    """

    parameter: np.ndarray
    total: np.ndarray
    level: np.ndarray

    def row(self, rows: Sparse, n: int, count: int) -> Entries:
        return _entries(rows, n)

    def compare(self, row: Entries, offered: int, likely: int, log_floor: float, scores: np.ndarray) -> None:
        compare_in_turn(self, row, offered, likely, log_floor, scores)

    def score(self, k: int, row: Entries, least: float) -> float:
        parameter = self.parameter[k]
        score = self.level[k] - log_rising(self.total[k], row.total)
        for e in range(row.values.shape[0]):
            score += log_rising(parameter[row.columns[e]], row.values[e])
        return score  # type: ignore[no-any-return]

    def open(self, count: int) -> None:
        copy_row(self.parameter[count], self.parameter[count + 1])
        self.total[count + 1], self.level[count + 1] = self.total[count], self.level[count]

    def absorb(self, k: int, row: Entries, gained: float, stats: np.ndarray) -> None:
        _add_entries(stats, row, gained)
        _add_entries(self.parameter[k], row, gained)
        stats[-1] += gained
        self.total[k] += gained * row.total
        self.level[k] = np.log(stats[-1])


class PoissonPosteriors(NamedTuple):
    """Gamma posteriors of Poisson components; row ``count`` is the prior.

    ``shape`` and ``rate`` (C, D), ``slope`` (C, D) log(rate + 1), and ``level`` (C,) the log weight plus the score of a
    row of zeros.
    """

    shape: np.ndarray
    rate: np.ndarray
    slope: np.ndarray
    level: np.ndarray

    def row(self, rows: Sparse, n: int, count: int) -> Entries:
        return _entries(rows, n)

    def compare(self, row: Entries, offered: int, likely: int, log_floor: float, scores: np.ndarray) -> None:
        compare_in_turn(self, row, offered, likely, log_floor, scores)

    def score(self, k: int, row: Entries, least: float) -> float:
        shape, slope, score = self.shape[k], self.slope[k], self.level[k]
        for e in range(row.values.shape[0]):
            d = row.columns[e]
            score += log_rising(shape[d], row.values[e]) - row.values[e] * slope[d]
        return score  # type: ignore[no-any-return]

    def open(self, count: int) -> None:
        copy_row(self.shape[count], self.shape[count + 1])
        copy_row(self.rate[count], self.rate[count + 1])
        copy_row(self.slope[count], self.slope[count + 1])
        self.level[count + 1] = self.level[count]

    def absorb(self, k: int, row: Entries, gained: float, stats: np.ndarray) -> None:
        _add_entries(stats, row, gained)
        _add_entries(self.shape[k], row, gained)
        stats[-1] += gained
        add_to_row(gained, self.rate[k])
        self.set_level(k, np.log(stats[-1]))

    def set_level(self, k: int, log_weight: float) -> None:
        """Compute the slopes and the score of a row of zeros from shapes and rates."""
        shape, rate, slope = self.shape[k], self.rate[k], self.slope[k]
        level = log_weight
        for d in range(shape.shape[0]):
            slope[d] = np.log(rate[d] + 1)
            level -= shape[d] * np.log1p(1 / rate[d])
        self.level[k] = level


class BernoulliPosteriors(NamedTuple):
    """Beta posteriors of Bernoulli components; row ``count`` is the prior.

    ``ones`` and ``zeros`` (C, D), ``odds`` (C, D) log(ones / zeros), and ``level`` (C,) the log weight plus the score
    of a row of zeros.
    """

    ones: np.ndarray
    zeros: np.ndarray
    odds: np.ndarray
    level: np.ndarray

    def row(self, rows: Sparse, n: int, count: int) -> Entries:
        return _entries(rows, n)

    def compare(self, row: Entries, offered: int, likely: int, log_floor: float, scores: np.ndarray) -> None:
        compare_in_turn(self, row, offered, likely, log_floor, scores)

    def score(self, k: int, row: Entries, least: float) -> float:
        odds, score = self.odds[k], self.level[k]
        for e in range(row.values.shape[0]):
            if row.values[e] != 0.0:
                score += odds[row.columns[e]]
        return score  # type: ignore[no-any-return]

    def open(self, count: int) -> None:
        copy_row(self.ones[count], self.ones[count + 1])
        copy_row(self.zeros[count], self.zeros[count + 1])
        copy_row(self.odds[count], self.odds[count + 1])
        self.level[count + 1] = self.level[count]

    def absorb(self, k: int, row: Entries, gained: float, stats: np.ndarray) -> None:
        _add_entries(stats, row, gained)
        _add_entries(self.ones[k], row, gained)
        add_to_row(gained, self.zeros[k])
        _add_entries(self.zeros[k], row, -gained)
        stats[-1] += gained
        self.set_level(k, np.log(stats[-1]))

    def set_level(self, k: int, log_weight: float) -> None:
        """Compute the log odds and the score of a row of zeros from the counts of ones and zeros."""
        ones, zeros, odds = self.ones[k], self.zeros[k], self.odds[k]
        level = log_weight
        for d in range(ones.shape[0]):
            odds[d] = np.log(ones[d] / zeros[d])
            level += np.log(zeros[d] / (ones[d] + zeros[d]))
        self.level[k] = level


@jit
def rising_sums(rows: Sparse, parameter: np.ndarray, sums: np.ndarray) -> None:
    """``sums[n, k] = sum_d log Gamma(p_kd + x_nd) - log Gamma(p_kd)``, (n, K), over nonzero entries; p is (K, D)."""
    for n in range(sums.shape[0]):
        values = rows.values[rows.begins[n] : rows.begins[n + 1]]
        columns = rows.columns[rows.begins[n] : rows.begins[n + 1]]
        for k in range(sums.shape[1]):
            own, total = parameter[k], 0.0
            for e in range(values.shape[0]):
                total += log_rising(own[columns[e]], values[e])
            sums[n, k] = total
