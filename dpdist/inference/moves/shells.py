"""Seedings that cut rows into inner and outer ones, for clusters that enclose others or lie within them.

A cluster that encloses another, or that varies in columns in which the other is constant, is not found from a seed of
its own: its rows differ by their distance from the centre, in density or in a single column. A small cluster within a
large one is hardly ever separated by k-means++ seeds: its rows differ by being close to one of them.
"""

from __future__ import annotations

import numpy as np

from dpdist.models.families.base import Rows, dense_rows

#: Depths that differ by less than this share are equal: with whole numbers, many rows have the same distance from a
#: centre.
ROUNDING = 1e-9
#: Weight above the highest cut of :func:`small_shares`: a cluster of fewer rows hardly pays.
LEAST_WEIGHT = 4.0


def shells(depths: np.ndarray, weights: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Cut rows by their `depths` (n, S) and return the part of each row, (n, S); part 0 is the innermost.

    `below` (parts - 1, S) holds the share of the weight below each cut. Rows of equal depth stay together, regardless
    of rounding. Depths (n, 1) are cut S times.
    """
    found = _quantiles(depths, weights, below)
    return np.asarray((depths[:, None] < found - ROUNDING * np.abs(found)).sum(axis=1))


def even_shares(cuts: int, seedings: int, rng: np.random.Generator) -> np.ndarray:
    """Shares of the weight (cuts, S) in [0, 1], drawn as a Latin hypercube."""
    strata = rng.permuted(np.tile(np.arange(seedings), (cuts, 1)), axis=1)
    return np.asarray((strata + rng.random(strata.shape)) / seedings)


def small_shares(weights: np.ndarray, cuts: int, seedings: int, rng: np.random.Generator) -> np.ndarray:
    """Shares of the weight (cuts, S) for which half of all down to `LEAST_WEIGHT` lies above each cut.

    The logarithm of the weight above a cut is uniform, so clusters of every size are searched equally often.
    """
    least = min(0.5, LEAST_WEIGHT / float(weights.sum()))
    return 1.0 - 0.5 * (2.0 * least) ** even_shares(cuts, seedings, rng)


def column_depths(points: Rows, weights: np.ndarray, columns: int, rng: np.random.Generator) -> np.ndarray:
    """How close rows lie to the median of a column, (n, S), for S columns drawn in proportion to their fourth moments.

    Fourth moments of standardized `points` (n, D) are highest in columns where most rows are alike and a few are far
    away. Columns are drawn without replacement, until all of them were drawn.
    """
    squares = points * points
    moments = weights @ (squares * squares)
    with np.errstate(divide="ignore"):
        waits = rng.exponential(size=len(moments)) / moments
    drawn = points[:, np.resize(np.argsort(waits, kind="stable"), columns)]
    dense = dense_rows(drawn)
    return np.asarray(-np.abs(dense - _quantiles(dense, weights, np.full((1, columns), 0.5))))


def _quantiles(values: np.ndarray, weights: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The `values` (n, S) at which `shares` (m, S), at most 1, of the weight are reached in sorted order, (m, S).

    Values (n, 1) serve every column of shares.
    """
    order = np.argsort(values, axis=0, kind="stable")
    held = np.cumsum(weights[order], axis=0)
    places = (held < (shares * held[-1])[:, None]).sum(axis=1)
    return np.take_along_axis(values, np.take_along_axis(order, places, axis=0), axis=0)
