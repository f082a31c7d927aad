"""Operations on rows. Plain loops: an array assignment compiles its error message too, which takes seconds."""

from __future__ import annotations

import numpy as np

from dpdist.kernels.jit import jit, jit_reassociated


@jit
def copy_row(source: np.ndarray, target: np.ndarray) -> None:
    """``target[d] = source[d]`` for all of `source`."""
    for d in range(source.shape[0]):
        target[d] = source[d]


@jit
def add_to_row(value: float, target: np.ndarray) -> None:
    """``target[d] += value`` for all of `target`."""
    for d in range(target.shape[0]):
        target[d] += value


@jit
def take_columns(rows: np.ndarray, columns: np.ndarray, taken: np.ndarray) -> None:
    """``taken = rows[:, columns]``, which NumPy does one column at a time."""
    for n in range(rows.shape[0]):
        own, row = rows[n], taken[n]
        for c in range(columns.shape[0]):
            row[c] = own[columns[c]]


@jit
def add_held(resp: np.ndarray, weights: np.ndarray, owners: np.ndarray, held: np.ndarray) -> None:
    """``held[owners[n], k] += weights[n] * resp[n, k]``, visiting only nonzero responsibilities.

    Parameters
    ----------
    resp : (n, K)
    weights : (n,) float64
    owners : (n,) the component with the largest responsibility for each row
    held : (K, K) float64
    """
    for n in range(resp.shape[0]):
        target = held[owners[n]]
        for k in range(resp.shape[1]):
            if resp[n, k] > 0.0:
                target[k] += weights[n] * resp[n, k]


@jit_reassociated
def squared_distances(points: np.ndarray, seeds: np.ndarray, distances: np.ndarray) -> None:
    """Fill ``distances`` (n, S) with those of ``points`` (n, D) to ``seeds`` (S, D), as sums of squared differences.

    All sums have the same order, so a row has exactly equal distances to two seeds that are mirror images around it.
    """
    for n in range(points.shape[0]):
        row = points[n]
        for s in range(seeds.shape[0]):
            seed = seeds[s]
            total = 0.0
            for d in range(row.shape[0]):
                gap = row[d] - seed[d]
                total += gap * gap
            distances[n, s] = total
