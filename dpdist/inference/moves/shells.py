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
    found = _quantiles(depths, weights, below)
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
    return np.asarray(-np.abs(dense - _quantiles(dense, weights, np.full((1, columns), 0.5))))


def _quantiles(values: np.ndarray, weights: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Of the `values` (n, S) in order those at which `shares` (m, S) of the weight, at most 1, are reached, (m, S).

    Of values (n, 1) those of every column of shares.
    """
    order = np.argsort(values, axis=0, kind="stable")
    held = np.cumsum(weights[order], axis=0)
    places = (held < (shares * held[-1])[:, None]).sum(axis=1)
    return np.take_along_axis(values, np.take_along_axis(order, places, axis=0), axis=0)
