"""k-means++ seeding (Arthur & Vassilvitskii 2007) on dense or CSR rows."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpdist.models.families.base import Rows, is_sparse

#: Share of the widest column's spread below which that of another is taken for rounding.
ROUNDING = 1e-12


def nearest_seeds(points: Rows, weights: np.ndarray, seeds: int, rng: np.random.Generator) -> np.ndarray | None:
    """Draw `seeds` rows by k-means++ and give each row the index of its nearest one, (n,).

    The first seed is drawn by `weights` (n,), a further one by these times the squared distance to the nearest seed so
    far: a row of weight w as often as w such rows. Draws go along the rows in the order of a random direction, so that
    it does not matter in which order they come. Returns None when there are fewer distinct rows than seeds.
    """
    count = points.shape[0]
    if not count:
        return None
    norms = _squared_norms(points)
    order = np.argsort(points @ rng.standard_normal(points.shape[1]), kind="stable")
    nearest, owners = np.full(count, np.inf), np.zeros(count, dtype=np.intp)
    chosen = _drawn(weights, order, rng)
    for s in range(seeds):
        distances = _squared_distances(points, norms, chosen)
        owners[distances < nearest] = s
        nearest = np.minimum(nearest, distances)
        if s + 1 < seeds:
            if not nearest.any():
                return None
            chosen = _drawn(weights * nearest, order, rng)
    return owners


def standardized(points: Rows, weights: np.ndarray) -> Rows:
    """Points whose columns are in units of their spread, (n, D); one that is the same in all rows says nothing."""
    total = weights.sum()
    means = np.asarray(weights @ points).ravel() / total
    if is_sparse(points):
        variances = np.asarray(weights @ points.multiply(points)).ravel() / total - means**2
    else:
        variances = weights @ (points - means) ** 2 / total
    scales = np.where(variances > ROUNDING**2 * variances.max(), variances, np.inf) ** -0.5
    return sparse.csr_array(points.multiply(scales)) if is_sparse(points) else (points - means) * scales


def _drawn(sampling_probabilities: np.ndarray, order: np.ndarray, rng: np.random.Generator) -> int:
    """A row drawn in proportion to `sampling probabilities`."""
    ends = np.cumsum(sampling_probabilities[order])
    place = int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))
    return int(order[min(place, len(order) - 1)])


def _squared_norms(points: Rows) -> np.ndarray:
    squares = points.multiply(points) if is_sparse(points) else points * points
    return np.asarray(squares.sum(axis=1)).ravel()


def _squared_distances(points: Rows, norms: np.ndarray, chosen: int) -> np.ndarray:
    """Squared distances to one row; those lost to rounding count as zero."""
    if is_sparse(points):
        seed = points[[chosen]].toarray()[0]
        distances = norms - 2 * (points @ seed) + norms[chosen]
        distances[distances < 1e-12 * (norms + norms[chosen])] = 0.0
        return np.asarray(distances)
    gaps = points - points[chosen]
    return np.asarray(np.einsum("nd,nd->n", gaps, gaps))
