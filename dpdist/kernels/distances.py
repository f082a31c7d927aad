"""Squared distances between rows and a few other points."""

from __future__ import annotations

import numpy as np

from dpdist.kernels.jit import jit_reassociated


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
