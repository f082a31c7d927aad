"""Sequential pass for Dirichlet observations, and the evidence of a row under a new component.

    h_k = log Gamma(gamma) - sum_d log Gamma(gamma theta_kd) + sum_d (gamma theta_kd - 1) log x_d

Components are stored as log theta_k. The gradient of h_k in these coordinates is J g with g_d = gamma (log x_d -
psi(gamma theta_d)) and J = diag(theta) - theta theta^T. The information is J A J with A = gamma^2 diag(psi'(gamma
theta)); its inverse on the simplex has a closed form.
"""

from __future__ import annotations

from math import lgamma
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit, jit_reassociated
from dpdist.kernels.rows import add_to_row, copy_row
from dpdist.kernels.sequential import Law, advance, compare_in_turn
from dpdist.kernels.special import digamma, trigamma

#: Smallest log of a probability, relative to the largest.
LEAST = -600.0


class Curve(NamedTuple):
    """A tabulated function of t with its derivatives, at equal steps of z = log(origin - t), z >= 0.

    ``values`` (T, 5): kappa, log kappa', log kappa'', kappa''', kappa''''; ``log_scale`` is added to the evidence.
    """

    origin: float
    step: float
    values: np.ndarray
    log_scale: float


class Steps(NamedTuple):
    """Step sizes of a component's updates.

    Parameters
    ----------
    exponent : kappa
    seen : weight of the earlier rows
    rows : n, the number of rows of which the prior counts as one; 0 for a stream, where the rows so far replace it
    own : whether the clock is the component's weight; else it is the weight of all rows so far
    """

    exponent: float
    seen: float
    rows: float
    own: bool


class Simplex(NamedTuple):
    """Constants of the likelihood: gamma, eta, and whether gradients are divided by the information."""

    precision: float
    eta: float
    natural: bool


@jit
def step_of(steps: Steps, seen: float, weight: float, gained: float) -> tuple[float, float]:
    """Factor of a row's gradient, and of the prior's gradient relative to it.

    The prior's gradient is distributed over a component's rows, so that in total it has the same effect as, on average,
    a step for every row.

    Parameters
    ----------
    seen, weight : weight of all rows and of the component, both including this row
    gained : weight that the component gained from this row
    """
    clock = max(weight if steps.own else seen, 1.0)
    part = seen / steps.rows if seen < steps.rows else 1.0
    return min(gained * clock**-steps.exponent, 1.0), part / weight


@jit_reassociated
def _dot(a: np.ndarray, b: np.ndarray) -> float:
    total = 0.0
    for d in range(a.shape[0]):
        total += a[d] * b[d]
    return total


@jit
def _read(curve: Curve, t: float, out: np.ndarray, columns: int) -> None:
    """The first columns of the table at t, by four-point interpolation."""
    values = curve.values
    place = np.log(max(curve.origin - t, 1.0)) / curve.step
    j = min(max(int(place), 1), values.shape[0] - 3)
    f = place - j
    a, b = -f * (f - 1) * (f - 2) / 6, (f + 1) * (f - 1) * (f - 2) / 2
    c, d = -(f + 1) * f * (f - 2) / 2, (f + 1) * f * (f - 1) / 6
    for m in range(columns):
        out[m] = a * values[j - 1, m] + b * values[j, m] + c * values[j + 1, m] + d * values[j + 2, m]


@jit
def _solve(logs: np.ndarray, precision: float, curve: Curve, cell: np.ndarray) -> float:
    """The tilt s for which the means of the columns, at t_d = log x_d + s, sum to the precision."""
    low = curve.origin - np.exp((curve.values.shape[0] - 1) * curve.step) - logs.min()
    high = curve.origin - 1.0 - logs.max()
    s = min(max(np.log(precision), low), high)
    for _ in range(100):
        mean = 0.0
        variance = 0.0
        for d in range(logs.shape[0]):
            _read(curve, logs[d] + s, cell, 3)
            mean += np.exp(cell[1])
            variance += np.exp(cell[2])
        move = np.log(precision / mean) * mean / variance
        if move > 0:
            low = s
        else:
            high = s
        s = s + move if low < s + move < high else 0.5 * (low + high)
        if abs(move) < 1e-5:
            break
    return s


@jit
def evidence_rows(logs: np.ndarray, precision: float, curve: Curve, evidence: np.ndarray, start: np.ndarray) -> None:
    """log of the integral of F(x_n | theta) over the prior, and the log of theta's posterior mean.

    Parameters
    ----------
    logs : (n, D) log x, of rows on the simplex
    precision : gamma
    curve : of kappa
    evidence, start : (n,) and (n, D), overwritten
    """
    cell = np.empty(5)
    for n in range(logs.shape[0]):
        s = _solve(logs[n], precision, curve, cell)
        log_density, total, variance, third, fourth = -s * precision, 0.0, 0.0, 0.0, 0.0
        for d in range(logs.shape[1]):
            _read(curve, logs[n, d] + s, cell, 5)
            log_density += cell[0] - logs[n, d]
            start[n, d] = cell[1]
            total += np.exp(cell[1])
            variance += np.exp(cell[2])
            third += cell[3]
            fourth += cell[4]
        correction = fourth / (8 * variance**2) - 5 * third**2 / (24 * variance**3)
        evidence[n] = curve.log_scale + log_density - 0.5 * np.log(variance) + np.log1p(max(correction, -0.5))
        add_to_row(-np.log(total), start[n])


@jit
def _set_cell(logits: np.ndarray, precision: float, parameter: np.ndarray) -> float:
    """Write gamma theta of a component to `parameter` (D,); returns its log likelihood's part that no row changes."""
    level = lgamma(precision)
    for d in range(logits.shape[0]):
        parameter[d] = precision * np.exp(logits[d])
        level -= lgamma(parameter[d])
    return level


@jit
def _normalise(logits: np.ndarray) -> None:
    top = logits.max()
    total = 0.0
    for d in range(logits.shape[0]):
        logits[d] = max(logits[d] - top, LEAST)
        total += np.exp(logits[d])
    logits -= np.log(total)


@jit
def _divide_by_information(slope: np.ndarray, theta: np.ndarray, info: np.ndarray) -> None:
    """slope <- (J A J)^+ slope, up to a constant; `info` is A theta^2."""
    top = 0.0
    bottom = 0.0
    for d in range(slope.shape[0]):
        top += theta[d] * slope[d] / info[d]
        bottom += theta[d] * theta[d] / info[d]
    for d in range(slope.shape[0]):
        slope[d] = (slope[d] - theta[d] * top / bottom) / info[d]


@jit
def _move(logits: np.ndarray, row: np.ndarray, gain: float, pull: float, simplex: Simplex, work: np.ndarray) -> None:
    """logits += gain * direction of (log likelihood of the row + pull * log prior)."""
    theta, slope, info = work[0], work[1], work[2]
    mean = 0.0
    for d in range(row.shape[0]):
        theta[d] = np.exp(logits[d])
        parameter = simplex.precision * theta[d]
        slope[d] = simplex.precision * (row[d] - digamma(parameter))
        info[d] = parameter * parameter * trigamma(parameter)
        mean += theta[d] * slope[d]
    for d in range(row.shape[0]):
        slope[d] = theta[d] * (slope[d] - mean) + pull * simplex.eta * (1 - row.shape[0] * theta[d])
    if simplex.natural:
        _divide_by_information(slope, theta, info)
    for d in range(row.shape[0]):
        logits[d] += gain * slope[d]
    _normalise(logits)


class Observed(NamedTuple):
    """Rows in the form that the pass takes.

    Parameters
    ----------
    logs : (n, D) log x
    evidence, start : (n,) and (n, D), of each row under a new component
    seen : (n,) weight of all rows up to and including each
    """

    logs: np.ndarray
    evidence: np.ndarray
    start: np.ndarray
    seen: np.ndarray


class Point(NamedTuple):
    """One of the rows, with the sum of its logs and the number of components before it."""

    logs: np.ndarray
    total: float
    evidence: float
    start: np.ndarray
    seen: float
    known: int


class DirichletComponents(NamedTuple):
    """Quantities of components in addition to their table.

    Parameters
    ----------
    simplex, steps, log_concentration : constants of the likelihood and of the pass
    parameter : (C, D) gamma theta
    level : (C,) log weight plus the part of the log likelihood that does not depend on the row
    work : (3, D) work array
    """

    simplex: Simplex
    steps: Steps
    log_concentration: float
    parameter: np.ndarray
    level: np.ndarray
    work: np.ndarray

    def row(self, rows: Observed, n: int, count: int) -> Point:
        return Point(rows.logs[n], rows.logs[n].sum(), rows.evidence[n], rows.start[n], rows.seen[n], count)

    def compare(self, row: Point, offered: int, likely: int, log_floor: float, scores: np.ndarray) -> None:
        compare_in_turn(self, row, offered, likely, log_floor, scores)

    def score(self, k: int, row: Point, least: float) -> float:
        if k == row.known:
            return self.log_concentration + row.evidence
        return self.level[k] + _dot(self.parameter[k], row.logs) - row.total  # type: ignore[no-any-return]

    def open(self, count: int) -> None:
        """Nothing: a component is initialised by the first row that it absorbs."""

    def absorb(self, k: int, row: Point, gained: float, stats: np.ndarray) -> None:
        """Start a component without weight at the row's posterior mean; update any other by a gradient step."""
        logits, fresh = stats[:-1], stats[-1] == 0.0
        stats[-1] += gained
        if fresh:
            copy_row(row.start, logits)
        else:
            gain, pull = step_of(self.steps, row.seen, stats[-1], gained)
            _move(logits, row.logs, gain, pull, self.simplex, self.work)
        self.level[k] = np.log(stats[-1]) + _set_cell(logits, self.simplex.precision, self.parameter[k])


@jit
def advance_dirichlet(
    rows: Observed,
    weights: np.ndarray,
    count: int,
    law: Law,
    steps: Steps,
    simplex: Simplex,
    table: np.ndarray,
    overlap: np.ndarray,
) -> tuple[int, int]:
    """Process rows; results as in :func:`~dpdist.kernels.sequential.take_rows`.

    Parameters
    ----------
    weights : (n,) float64
    count : present number of components
    table : (C, D + 1) float64, log theta_k and w_k, row ``count`` and beyond zero; C > count + n
    overlap : (C, C) or (0, 0)
    """
    capacity, dimension = table.shape[0], table.shape[1] - 1
    parameter, work = np.empty((capacity, dimension)), np.empty((3, dimension))
    cells = DirichletComponents(simplex, steps, law.log_concentration, parameter, np.empty(capacity), work)
    for k in range(count):
        cells.level[k] = np.log(table[k, -1]) + _set_cell(table[k, :-1], simplex.precision, cells.parameter[k])
    return advance(rows, weights, count, law, cells, table, overlap)
