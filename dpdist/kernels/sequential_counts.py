"""Sequential passes for counts and binary rows, visiting only entries above zero; rows are CSR.

The predictive of counts is made of rising factorials Gamma(p + x) / Gamma(p), which are short products for small x.
"""

from __future__ import annotations

from math import lgamma
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit
from dpdist.kernels.rows import add_to_row, copy_row
from dpdist.kernels.sequential import Law, add_overlaps, share_row

#: Largest x for which Gamma(p + x) / Gamma(p) is taken as a product.
_SHORT = 16.0


class Sparse(NamedTuple):
    """Rows in CSR: values float64, columns, and where each row begins."""

    values: np.ndarray
    columns: np.ndarray
    begins: np.ndarray


class Urns(NamedTuple):
    """Dirichlet posteriors of multinomial components; row ``count`` is the prior.

    ``parameter`` (C, D), its sum ``total`` (C,), and ``level`` (C,) the log weight.
    """

    parameter: np.ndarray
    total: np.ndarray
    level: np.ndarray


class Rates(NamedTuple):
    """Gamma posteriors of Poisson components; row ``count`` is the prior.

    ``shape`` and ``rate`` (C, D), ``slope`` (C, D) log(rate + 1), and ``level`` (C,) the log weight with the score of a
    row of zeros.
    """

    shape: np.ndarray
    rate: np.ndarray
    slope: np.ndarray
    level: np.ndarray


class Coins(NamedTuple):
    """Beta posteriors of Bernoulli components; row ``count`` is the prior.

    ``ones`` and ``zeros`` (C, D), ``odds`` (C, D) log(ones / zeros), and ``level`` (C,) the log weight with the
    score of a row of zeros.
    """

    ones: np.ndarray
    zeros: np.ndarray
    odds: np.ndarray
    level: np.ndarray


@jit
def log_rising(p: float, x: float) -> float:
    """log Gamma(p + x) - log Gamma(p), without the cancellation that large p brings."""
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
def _score_urn(cells: Urns, k: int, values: np.ndarray, columns: np.ndarray, size: float) -> float:
    parameter = cells.parameter[k]
    score = cells.level[k] - log_rising(cells.total[k], size)
    for e in range(values.shape[0]):
        score += log_rising(parameter[columns[e]], values[e])
    return score


@jit
def _score_rate(cells: Rates, k: int, values: np.ndarray, columns: np.ndarray) -> float:
    shape, slope, score = cells.shape[k], cells.slope[k], cells.level[k]
    for e in range(values.shape[0]):
        d = columns[e]
        score += log_rising(shape[d], values[e]) - values[e] * slope[d]
    return score


@jit
def _score_coin(cells: Coins, k: int, values: np.ndarray, columns: np.ndarray) -> float:
    odds, score = cells.odds[k], cells.level[k]
    for e in range(values.shape[0]):
        if values[e] != 0.0:
            score += odds[columns[e]]
    return score


@jit
def set_rate(cells: Rates, k: int, log_weight: float) -> None:
    """The slopes and the score of a row of zeros, from shapes and rates."""
    shape, rate, slope = cells.shape[k], cells.rate[k], cells.slope[k]
    level = log_weight
    for d in range(shape.shape[0]):
        slope[d] = np.log(rate[d] + 1)
        level -= shape[d] * np.log1p(1 / rate[d])
    cells.level[k] = level


@jit
def set_coin(cells: Coins, k: int, log_weight: float) -> None:
    """The log odds and the score of a row of zeros, from the counts of ones and zeros."""
    ones, zeros, odds = cells.ones[k], cells.zeros[k], cells.odds[k]
    level = log_weight
    for d in range(ones.shape[0]):
        odds[d] = np.log(ones[d] / zeros[d])
        level += np.log(zeros[d] / (ones[d] + zeros[d]))
    cells.level[k] = level


@jit
def _add_entries(target: np.ndarray, values: np.ndarray, columns: np.ndarray, weight: float) -> None:
    for e in range(values.shape[0]):
        target[columns[e]] += weight * values[e]


@jit
def advance_multinomial(
    rows: Sparse, weights: np.ndarray, count: int, law: Law, cells: Urns, stats: np.ndarray, overlap: np.ndarray
) -> tuple[int, int]:
    """Pass over rows; parameters and results as for ``advance_gaussian``."""
    capacity = cells.total.shape[0]
    scores, shares, active = np.empty(capacity), np.empty(capacity), np.empty(capacity, np.int64)
    for n in range(weights.shape[0]):
        if count + 1 >= capacity:
            return n, count
        values = rows.values[rows.begins[n] : rows.begins[n + 1]]
        columns = rows.columns[rows.begins[n] : rows.begins[n + 1]]
        weight, size = weights[n], values.sum()
        if weight == 0.0:
            continue
        for k in range(count + 1):
            scores[k] = _score_urn(cells, k, values, columns, size)
        found, opens = share_row(scores, count, law, shares, active)
        if found < 0:
            return -1, count
        if opens:
            copy_row(cells.parameter[count], cells.parameter[count + 1])
            cells.total[count + 1], cells.level[count + 1] = cells.total[count], cells.level[count]
            count += 1
        for a in range(found):
            k, gained = active[a], weight * shares[a]
            _add_entries(stats[k], values, columns, gained)
            _add_entries(cells.parameter[k], values, columns, gained)
            stats[k, -1] += gained
            cells.total[k] += gained * size
            cells.level[k] = np.log(stats[k, -1])
        add_overlaps(overlap, shares, active, found, weight)
    return weights.shape[0], count


@jit
def advance_poisson(
    rows: Sparse, weights: np.ndarray, count: int, law: Law, cells: Rates, stats: np.ndarray, overlap: np.ndarray
) -> tuple[int, int]:
    """Pass over rows; parameters and results as for ``advance_gaussian``."""
    capacity = cells.level.shape[0]
    scores, shares, active = np.empty(capacity), np.empty(capacity), np.empty(capacity, np.int64)
    for n in range(weights.shape[0]):
        if count + 1 >= capacity:
            return n, count
        values = rows.values[rows.begins[n] : rows.begins[n + 1]]
        columns = rows.columns[rows.begins[n] : rows.begins[n + 1]]
        weight = weights[n]
        if weight == 0.0:
            continue
        for k in range(count + 1):
            scores[k] = _score_rate(cells, k, values, columns)
        found, opens = share_row(scores, count, law, shares, active)
        if found < 0:
            return -1, count
        if opens:
            copy_row(cells.shape[count], cells.shape[count + 1])
            copy_row(cells.rate[count], cells.rate[count + 1])
            copy_row(cells.slope[count], cells.slope[count + 1])
            cells.level[count + 1] = cells.level[count]
            count += 1
        for a in range(found):
            k, gained = active[a], weight * shares[a]
            _add_entries(stats[k], values, columns, gained)
            _add_entries(cells.shape[k], values, columns, gained)
            stats[k, -1] += gained
            add_to_row(gained, cells.rate[k])
            set_rate(cells, k, np.log(stats[k, -1]))
        add_overlaps(overlap, shares, active, found, weight)
    return weights.shape[0], count


@jit
def advance_bernoulli(
    rows: Sparse, weights: np.ndarray, count: int, law: Law, cells: Coins, stats: np.ndarray, overlap: np.ndarray
) -> tuple[int, int]:
    """Pass over rows; parameters and results as for ``advance_gaussian``."""
    capacity = cells.level.shape[0]
    scores, shares, active = np.empty(capacity), np.empty(capacity), np.empty(capacity, np.int64)
    for n in range(weights.shape[0]):
        if count + 1 >= capacity:
            return n, count
        values = rows.values[rows.begins[n] : rows.begins[n + 1]]
        columns = rows.columns[rows.begins[n] : rows.begins[n + 1]]
        weight = weights[n]
        if weight == 0.0:
            continue
        for k in range(count + 1):
            scores[k] = _score_coin(cells, k, values, columns)
        found, opens = share_row(scores, count, law, shares, active)
        if found < 0:
            return -1, count
        if opens:
            copy_row(cells.ones[count], cells.ones[count + 1])
            copy_row(cells.zeros[count], cells.zeros[count + 1])
            copy_row(cells.odds[count], cells.odds[count + 1])
            cells.level[count + 1] = cells.level[count]
            count += 1
        for a in range(found):
            k, gained = active[a], weight * shares[a]
            _add_entries(stats[k], values, columns, gained)
            _add_entries(cells.ones[k], values, columns, gained)
            add_to_row(gained, cells.zeros[k])
            _add_entries(cells.zeros[k], values, columns, -gained)
            stats[k, -1] += gained
            set_coin(cells, k, np.log(stats[k, -1]))
        add_overlaps(overlap, shares, active, found, weight)
    return weights.shape[0], count


@jit
def rising_sums(rows: Sparse, parameter: np.ndarray, sums: np.ndarray) -> None:
    """``sums[n, k] = sum_d log Gamma(p_kd + x_nd) - log Gamma(p_kd)``, (n, K), over entries above zero; p is (K, D)."""
    for n in range(sums.shape[0]):
        values = rows.values[rows.begins[n] : rows.begins[n + 1]]
        columns = rows.columns[rows.begins[n] : rows.begins[n + 1]]
        for k in range(sums.shape[1]):
            own, total = parameter[k], 0.0
            for e in range(values.shape[0]):
                total += log_rising(own[columns[e]], values[e])
            sums[n, k] = total
