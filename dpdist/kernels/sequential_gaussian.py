"""Sequential pass for full-covariance Gaussians: rows update Cholesky factors of the scatter by rank-one updates.

The predictive is Student's t. Its quadratic form is a forward substitution, abandoned as soon as the partial sum puts
the component's share below the floor. Factors are upper triangles U with U^T U = B, so that rows are contiguous.
"""

from __future__ import annotations

from math import lgamma
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit
from dpdist.kernels.rows import copy_row
from dpdist.kernels.sequential import compare_in_turn


@jit
def _shrink(precision: float) -> float:
    """kappa / (kappa + 1)."""
    return 1.0 / (1.0 + 1.0 / precision)


@jit
def _distance(factor: np.ndarray, gap: np.ndarray, most: float) -> float:
    """|U^-T gap|^2, or a partial sum as soon as it exceeds `most`; `gap` is overwritten."""
    total = 0.0
    for j in range(gap.shape[0]):
        row = factor[j]
        z = gap[j] / row[j]
        total += z * z
        if total > most:
            break
        rest, onward = gap[j + 1 :], row[j + 1 :]
        for d in range(rest.shape[0]):
            rest[d] -= z * onward[d]
    return total


@jit
def _rank_one(factor: np.ndarray, vector: np.ndarray) -> None:
    """U^T U + v v^T by Givens rotations; `vector` is overwritten (Gill, Golub, Murray & Saunders 1974)."""
    for j in range(vector.shape[0]):
        row = factor[j]
        before, entry = row[j], vector[j]
        after = np.sqrt(before * before + entry * entry)
        cosine, sine = before / after, entry / after
        row[j] = after
        onward, rest = row[j + 1 :], vector[j + 1 :]
        for d in range(rest.shape[0]):
            old = onward[d]
            onward[d] = cosine * old + sine * rest[d]
            rest[d] = cosine * rest[d] - sine * old


@jit
def _add_row(stats: np.ndarray, row: np.ndarray, weight: float) -> None:
    """Add the weighted statistics of a row: packed products, the row itself if the statistics include it, and 1."""
    dimension = row.shape[0]
    start = 0
    for i in range(dimension):
        scale, right = weight * row[i], row[i:]
        target = stats[start : start + dimension - i]
        for j in range(dimension - i):
            target[j] += scale * right[j]
        start += dimension - i
    if stats.shape[0] > start + 1:
        linear = stats[start:-1]
        for d in range(dimension):
            linear[d] += weight * row[d]
    stats[-1] += weight


class Row(NamedTuple):
    """A row (D,), and a work array of the same size."""

    values: np.ndarray
    gap: np.ndarray


class GaussianPosteriors(NamedTuple):
    """Posterior of each component; row ``count`` is the prior.

    Parameters
    ----------
    mean : (C, D); zeros if means are known to be zero
    precision : (C,) kappa; infinite if means are known to be zero
    degrees : (C,) nu
    factor : (C, D, D) upper triangles
    level : (C,) log weight plus the constant of the predictive
    """

    mean: np.ndarray
    precision: np.ndarray
    degrees: np.ndarray
    factor: np.ndarray
    level: np.ndarray

    def row(self, rows: np.ndarray, n: int, count: int) -> Row:
        return Row(rows[n], np.empty(rows.shape[1]))

    def compare(self, row: Row, offered: int, likely: int, log_floor: float, scores: np.ndarray) -> None:
        compare_in_turn(self, row, offered, likely, log_floor, scores)

    def score(self, k: int, row: Row, least: float) -> float:
        shrink, power = _shrink(self.precision[k]), 0.5 * (self.degrees[k] + 1)
        room = (self.level[k] - least) / power
        if room < 0.0:
            return -np.inf
        most = np.expm1(room) / shrink
        mean, gap, values = self.mean[k], row.gap, row.values
        for d in range(values.shape[0]):
            gap[d] = values[d] - mean[d]
        distance = _distance(self.factor[k], gap, most)
        return -np.inf if distance > most else self.level[k] - power * np.log1p(shrink * distance)

    def open(self, count: int) -> None:
        copy_row(self.mean[count], self.mean[count + 1])
        for d in range(self.mean.shape[1]):
            copy_row(self.factor[count, d], self.factor[count + 1, d])
        self.precision[count + 1], self.degrees[count + 1] = self.precision[count], self.degrees[count]
        self.level[count + 1] = self.level[count]

    def absorb(self, k: int, row: Row, gained: float, stats: np.ndarray) -> None:
        precision, mean, gap, values = self.precision[k], self.mean[k], row.gap, row.values
        share = gained / (precision + gained) if np.isfinite(precision) else 0.0
        stretch = np.sqrt(gained * (1.0 - share))
        for d in range(values.shape[0]):
            gap[d] = values[d] - mean[d]
            mean[d] += share * gap[d]
            gap[d] *= stretch
        _rank_one(self.factor[k], gap)
        self.precision[k] += gained
        self.degrees[k] += gained
        _add_row(stats, values, gained)
        self.set_level(k, np.log(stats[-1]))

    def set_level(self, k: int, log_weight: float) -> None:
        """Compute the part of a component's score that does not depend on the row (Murphy 2007, eq. 258)."""
        dimension, degrees = self.mean.shape[1], self.degrees[k]
        half_determinant = 0.0
        for d in range(dimension):
            half_determinant += np.log(self.factor[k, d, d])
        self.level[k] = (
            log_weight
            + lgamma((degrees + 1) / 2)
            - lgamma((degrees + 1 - dimension) / 2)
            + 0.5 * dimension * np.log(_shrink(self.precision[k]) / np.pi)
            - half_determinant
        )
