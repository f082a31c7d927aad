"""Clusters of rows under a Dirichlet-process mixture of Gaussians, with means and weights integrated out.

    G ~ DP(concentration, N(0, s_p^2 I)),   mean_i ~ G,   x_i ~ N(mean_i, s_x^2 I)

Given a partition of the rows, a cluster is represented by its count and its sum. Variances and concentration are known.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit


class Model(NamedTuple):
    """What is known beforehand."""

    variance: float = 1.0  # s_x^2, of a row about its cluster's mean
    mean_variance: float = 1e4  # s_p^2, of a mean about the origin
    concentration: float = 1.0


class Statistics(NamedTuple):
    """Clusters that hold a row: ``counts`` (K,), ``sums`` (K, D) float64."""

    counts: np.ndarray
    sums: np.ndarray


class Partition(NamedTuple):
    """Which row is where, changed in place; the arrays have room for C clusters."""

    labels: np.ndarray  # (N,) int64, -1 where a row is nowhere
    counts: np.ndarray  # (C,) float64, exactly zero where a cluster is free
    sums: np.ndarray  # (C, D) float64
    order: np.ndarray  # (C,) int64, the clusters, those in use first
    size: np.ndarray  # (1,) int64, how many are in use


def empty_partition(rows: int, columns: int, given: Statistics | None = None) -> Partition:
    """No row is anywhere yet; clusters that are `given` are in use from the start and are never emptied."""
    size = 0 if given is None else len(given.counts)
    counts, sums = np.zeros(size + rows), np.zeros((size + rows, columns))
    if given is not None:
        counts[:size], sums[:size] = given
    return Partition(np.full(rows, -1), counts, sums, np.arange(size + rows), np.array([size]))


def statistics(partition: Partition) -> Statistics:
    """The clusters in use, copied."""
    used = partition.order[: partition.size[0]]
    return Statistics(partition.counts[used], partition.sums[used])


@jit
def take_out(partition: Partition, x: np.ndarray, i: int) -> None:
    """Take a row out of its cluster, if it is in any, and free a cluster that has become empty."""
    k = partition.labels[i]
    if k < 0:
        return
    partition.labels[i] = -1
    partition.counts[k] -= 1
    add_row(partition.sums, k, x, i, -1.0)
    if partition.counts[k] == 0:
        free(partition, k)


@jit
def put_in(partition: Partition, x: np.ndarray, i: int, k: int) -> None:
    """Put a row that is nowhere into cluster `k`, which may be the first free one."""
    if partition.counts[k] == 0:
        partition.size[0] += 1
    partition.labels[i] = k
    partition.counts[k] += 1
    add_row(partition.sums, k, x, i, 1.0)


@jit
def add_row(sums: np.ndarray, k: int, x: np.ndarray, i: int, times: float) -> None:
    """Add `times` row i of `x` to sum k."""
    for d in range(x.shape[1]):
        sums[k, d] += times * x[i, d]


@jit
def free(partition: Partition, k: int) -> None:
    """Mark a cluster in use as free."""
    last = partition.size[0] - 1
    place = 0
    while partition.order[place] != k:
        place += 1
    partition.order[place], partition.order[last] = partition.order[last], k
    partition.size[0] = last
    partition.counts[k] = 0
    partition.sums[k] = 0


@jit
def log_predictive(row: np.ndarray, count: float, total: np.ndarray, model: Model) -> float:
    """Log density of a row given a cluster's count and sum, without the constant -D/2 log 2 pi.

    N(x; m, (s_x^2 + s^2) I) with 1/s^2 = 1/s_p^2 + n/s_x^2 and m = s^2 sum/s_x^2.
    """
    spread = 1 / (1 / model.mean_variance + count / model.variance)
    variance = model.variance + spread
    square = 0.0
    for d in range(row.shape[0]):
        square += (row[d] - spread / model.variance * total[d]) ** 2
    return -0.5 * (square / variance + row.shape[0] * math.log(variance))


@jit
def log_evidence(count: float, total: np.ndarray, model: Model) -> float:
    """Log density of a cluster's rows together, without the terms that all partitions of the rows share.

    -D/2 log(s_p^2/s^2) + s^2 |sum/s_x^2|^2 / 2, with s^2 as in :func:`log_predictive`.
    """
    spread = 1 / (1 / model.mean_variance + count / model.variance)
    square = 0.0
    for d in range(total.shape[0]):
        square += (total[d] / model.variance) ** 2
    return 0.5 * (spread * square - total.shape[0] * math.log(model.mean_variance / spread))


@jit
def draw(log_weights: np.ndarray, rng: np.random.Generator) -> int:
    """An index drawn in proportion to exp(log_weights), which is overwritten."""
    top, total = log_weights.max(), 0.0
    for k in range(len(log_weights)):
        total += math.exp(log_weights[k] - top)
        log_weights[k] = total
    return min(np.searchsorted(log_weights, total * rng.random(), side="right"), len(log_weights) - 1)
