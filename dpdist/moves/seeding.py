"""k-means++ seeding (Arthur & Vassilvitskii 2007) on dense or CSR rows."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpdist.families.base import Rows


def nearest_seeds(
    points: Rows, seeds: int, rng: np.random.Generator, weights: np.ndarray | None = None
) -> np.ndarray | None:
    """Draw `seeds` rows by k-means++ and give each row the index of its nearest one, (n,).

    A row of weight w is drawn as often as w such rows would be. Draws go along the rows as a random direction orders
    them, so that the order in which they come does not matter, nor whether one is repeated or has a weight.

    Returns None when there are fewer distinct rows than seeds.
    """
    count = points.shape[0]
    own = np.ones(count) if weights is None else weights
    if count == 0:
        return None
    norms = _squared_norms(points)
    order = np.argsort(points @ rng.standard_normal(points.shape[1]), kind="stable")
    distances = np.empty((count, seeds))
    chosen, nearest = _drawn(own, order, rng), np.full(count, np.inf)
    for s in range(seeds):
        distances[:, s] = _squared_distances(points, norms, chosen)
        nearest = np.minimum(nearest, distances[:, s])
        if s + 1 < seeds:
            if not nearest.any():
                return None
            chosen = _drawn(own * nearest, order, rng)
    owners: np.ndarray = distances.argmin(axis=1)
    return owners


def _drawn(chances: np.ndarray, order: np.ndarray, rng: np.random.Generator) -> int:
    """A row drawn in proportion to `chances`."""
    ends = np.cumsum(chances[order])
    place = int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))
    return int(order[min(place, len(order) - 1)])


def _squared_norms(points: Rows) -> np.ndarray:
    squares = points.multiply(points) if sparse.issparse(points) else points * points
    return np.asarray(squares.sum(axis=1)).ravel()


def _squared_distances(points: Rows, norms: np.ndarray, chosen: int) -> np.ndarray:
    """Squared distances to one row; those lost to rounding count as zero."""
    if sparse.issparse(points):
        seed = points[[chosen]].toarray()[0]
        distances = norms - 2 * (points @ seed) + norms[chosen]
        distances[distances < 1e-12 * (norms + norms[chosen])] = 0.0
        return np.asarray(distances)
    gaps = points - points[chosen]
    return np.asarray(np.einsum("nd,nd->n", gaps, gaps))
