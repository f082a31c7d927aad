"""Squared distances of rows from a few others."""

from __future__ import annotations

import numpy as np

from dpdist.kernels.jit import jit_reassociated


@jit_reassociated
def squared_distances(points: np.ndarray, seeds: np.ndarray, distances: np.ndarray) -> None:
    """Fill ``distances`` (n, S) with those of ``points`` (n, D) from ``seeds`` (S, D), as sums of squared differences.

    All are summed up in the same order, so that a row lies exactly as far from two seeds that mirror each other there.
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
