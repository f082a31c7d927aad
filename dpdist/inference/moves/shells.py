"""Seedings that cut rows into inner and outer ones, for clusters around others or within them.

A cluster around another, or one whose columns vary where those of the other are constant, has no seed of its own: what
tells its rows is how far they lie from the middle, by their density or in a single column. A small cluster within a
large one is hardly ever drawn apart from it by seeds: what tells its rows is how near they lie to one of them.
"""

from __future__ import annotations

import numpy as np

from dpdist.models.families.base import Rows, dense_rows

#: Share of a depth by which others may differ that are the same: on whole numbers many rows are as far from a middle.
ALIKE = 1e-9
#: Weight that the smallest of :func:`small_shares` leaves above a cut: fewer rows hardly pay as a cluster.
LEAST_WEIGHT = 4.0


def shells(depths: np.ndarray, weights: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Cut rows by their `depths` (n, S) and say in which part each is, (n, S), the innermost 0.

    What shares of the weight lie below the cuts is in `below` (parts - 1, S). Rows of one depth stay together, however
    it was rounded. Depths (n, 1) are cut S times.
    """
    shares = np.split(below, below.shape[1], axis=1) if depths.shape[1] > 1 else [below]
    cuts = [_quantiles(depth, weights, share) for depth, share in zip(depths.T, shares, strict=True)]
    found = np.concatenate(cuts, axis=1)
    return np.asarray((depths[:, None] < found - ALIKE * np.abs(found)).sum(axis=1))


def even_shares(cuts: int, seedings: int, rng: np.random.Generator) -> np.ndarray:
    """Shares of the weight (cuts, S) from 0 to 1, drawn as a Latin hypercube."""
    strata = rng.permuted(np.tile(np.arange(seedings), (cuts, 1)), axis=1)
    return np.asarray((strata + rng.random(strata.shape)) / seedings)


def small_shares(weights: np.ndarray, cuts: int, seedings: int, rng: np.random.Generator) -> np.ndarray:
    """Shares of the weight (cuts, S) below cuts that leave little above, from half down to `LEAST_WEIGHT`.

    What they leave is even in its logarithm, so that clusters of every size are looked for as often.
    """
    least = min(0.5, LEAST_WEIGHT / float(weights.sum()))
    return 1.0 - 0.5 * (2.0 * least) ** even_shares(cuts, seedings, rng)


def column_depths(points: Rows, weights: np.ndarray, columns: int, rng: np.random.Generator) -> np.ndarray:
    """How near rows lie to the middle of a column, (n, S), of columns drawn by their fourth moments.

    The moments of standardized `points` (n, D) are highest where most rows are alike and a few are far away. Columns
    are drawn one after the other, none twice before all were.
    """
    squares = points * points
    moments = weights @ (squares * squares)
    with np.errstate(divide="ignore"):
        waits = rng.exponential(size=len(moments)) / moments
    drawn = points[:, np.resize(np.argsort(waits, kind="stable"), columns)]
    dense = dense_rows(drawn)
    middles = [_quantiles(column, weights, np.array([0.5]))[0] for column in dense.T]
    return np.asarray(-np.abs(dense - middles))


def _quantiles(values: np.ndarray, weights: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Of the `values` (n,) in order those at which `shares` of the weight, at most 1, are reached; shaped as these."""
    order = np.argsort(values, kind="stable")
    held = np.cumsum(weights[order])
    return np.asarray(values[order[np.searchsorted(held, shares * held[-1])]])
