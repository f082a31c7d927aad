"""k-means++ seeding (Arthur & Vassilvitskii 2007) on dense or CSR rows."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpdist.families.base import Rows


def nearest_seeds(points: Rows, seeds: int, rng: np.random.Generator) -> np.ndarray | None:
    """Draw `seeds` rows by k-means++ and give each row the index of its nearest one, (n,).

    Returns None when there are fewer distinct rows than seeds.
    """
    count = points.shape[0]
    if count < seeds:
        return None
    norms = _squared_norms(points)
    distances = np.empty((count, seeds))
    chosen = int(rng.integers(count))
    nearest = np.full(count, np.inf)
    for s in range(seeds):
        distances[:, s] = _squared_distances(points, norms, chosen)
        nearest = np.minimum(nearest, distances[:, s])
        if s + 1 < seeds:
            if not nearest.sum() > 0:
                return None
            chosen = int(np.searchsorted(np.cumsum(nearest), rng.random() * nearest.sum(), side="right"))
            chosen = min(chosen, count - 1)
    owners: np.ndarray = distances.argmin(axis=1)
    return owners


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
