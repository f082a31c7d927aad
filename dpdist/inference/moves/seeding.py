"""k-means++ seeding (Arthur & Vassilvitskii 2007) on dense or CSR rows."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpdist.kernels.distances import squared_distances
from dpdist.models.families.base import Rows, dense_rows, is_sparse

#: Share of the widest column's spread below which that of another is taken for rounding; and of a column's mean square
#: the share below which a variance is, that is a difference from it; and of a distance that by which others are alike.
ROUNDING = 1e-12
#: Rows and columns at most in which values are looked for that recur, and the share of these rows that have to be like
#: others in a column.
LOOKED_AT, RECURRING = (128, 64), 0.1


def nearest_seeds(points: Rows, weights: np.ndarray, seeds: int, rng: np.random.Generator) -> np.ndarray | None:
    """Draw `seeds` rows by k-means++ and give each row the index of its nearest one, (n,).

    As one of :func:`many_nearest_seeds`.
    """
    owners = many_nearest_seeds(points, weights, seeds, 1, rng)
    return None if owners is None else owners[:, 0]


def many_nearest_seeds(
    points: Rows, weights: np.ndarray, seeds: int, seedings: int, rng: np.random.Generator
) -> np.ndarray | None:
    """Draw `seeds` rows by k-means++, several times over, and give each row the index of its nearest one, (n, S).

    The first seed is drawn by `weights` (n,), a further one by these times the squared distance to the nearest seed so
    far: a row of weight w as often as w such rows. Draws go along the rows in the order of a random direction, so that
    it does not matter in which order they come. Returns None when there are fewer distinct rows than seeds.
    """
    count = points.shape[0]
    if not count:
        return None
    norms, order = _squared_norms(points), _random_order(points, rng)
    nearest = np.full((count, seedings), np.inf)
    owners = np.zeros((count, seedings), dtype=np.intp)
    chosen = _drawn(np.broadcast_to(weights[:, None], nearest.shape), order, rng)
    for s in range(seeds):
        distances = _squared_distances(points, norms, chosen)
        owners[distances < nearest * (1 - ROUNDING)] = s  # a row as far from two goes to the first, also by rounding
        nearest = np.minimum(nearest, distances)
        if s + 1 < seeds:
            if not nearest.any(axis=0).all():
                return None
            chosen = _drawn(weights[:, None] * nearest, order, rng)
    return owners


def distances_from_drawn(points: Rows, weights: np.ndarray, seedings: int, rng: np.random.Generator) -> np.ndarray:
    """Squared distances (n, S) from rows drawn by weight, the same in whatever order the rows come."""
    order = _random_order(points, rng)
    chosen = _drawn(np.broadcast_to(weights[:, None], (len(order), seedings)), order, rng)
    return _squared_distances(points, _squared_norms(points), chosen)


def alike_in_a_column(
    points: Rows, weights: np.ndarray, cuts: int, seedings: int, rng: np.random.Generator
) -> np.ndarray | None:
    """Part rows by values of a column: where a row's own is among `cuts` values drawn by weight, else `cuts`, (n, S).

    Where columns hold whole numbers, codes or zeros, a cluster may be the rows of one value, which lie between others.
    Columns are drawn by how often values recur; None where they recur in no column, or it holds one value only.
    """
    (rows, width), order = LOOKED_AT, _random_order(points, rng)
    evenly = (np.arange(rows) + 0.5) / rows * weights.sum()
    asked = np.unique(order[np.minimum(np.searchsorted(np.cumsum(weights[order]), evenly), len(order) - 1)])
    among = rng.permutation(points.shape[1])[:width]
    some = np.unique(dense_rows(points[asked][:, among]), axis=0)  # a row that is there twice says nothing
    recurring = (np.diff(np.sort(some, axis=0), axis=0) == 0.0).sum(axis=0) / len(some)
    odds = np.where((recurring >= RECURRING) & (recurring < 1.0 - 1.0 / len(some)), recurring, 0.0)
    if not odds.any():
        return None
    drawn = rng.choice(among, seedings, p=odds / odds.sum())
    columns, by_weight = dense_rows(points[:, drawn]), np.broadcast_to(weights[:, None], (len(weights), seedings))
    values = np.stack([columns[_drawn(by_weight, order, rng), np.arange(seedings)] for _ in range(cuts)])
    alike = columns[:, None] == values
    return np.where(alike.any(axis=1), alike.argmax(axis=1), cuts)


def standardized(points: Rows, weights: np.ndarray) -> Rows:
    """Points whose columns are in units of their spread, (n, D); one that is the same in all rows says nothing."""
    total = weights.sum()
    means = np.asarray(weights @ points).ravel() / total
    if is_sparse(points):
        squares = np.asarray(weights @ points.multiply(points)).ravel() / total
        variances, lost = squares - means**2, ROUNDING * squares  # what is left of a constant column is rounding
    else:
        variances, lost = weights @ (points - means) ** 2 / total, np.zeros(len(means))
    scales = np.where(variances > np.maximum(lost, ROUNDING**2 * variances.max()), variances, np.inf) ** -0.5
    return sparse.csr_array(points.multiply(scales)) if is_sparse(points) else (points - means) * scales


def _random_order(points: Rows, rng: np.random.Generator) -> np.ndarray:
    """Rows (n,) along a random direction."""
    return np.argsort(points @ rng.standard_normal(points.shape[1]), kind="stable")


def _drawn(sampling_probabilities: np.ndarray, order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows (S,), each drawn in proportion to a column of `sampling_probabilities` (n, S)."""
    ends = np.cumsum(sampling_probabilities[order], axis=0)
    drawn = rng.random(ends.shape[1]) * ends[-1]
    places = (ends <= drawn).sum(axis=0)
    return np.asarray(order[np.minimum(places, len(order) - 1)])


def _squared_norms(points: Rows) -> np.ndarray:
    squares = points.multiply(points) if is_sparse(points) else points * points
    return np.asarray(squares.sum(axis=1)).ravel()


def _squared_distances(points: Rows, norms: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Squared distances (n, S) to some rows; those lost to rounding count as zero."""
    if is_sparse(points):
        both = norms[:, None] + norms[chosen]
        distances = both - 2 * (points @ points[chosen].toarray().T)
        distances[distances < 1e-12 * both] = 0.0
        return np.asarray(distances)
    distances = np.empty((len(points), len(chosen)))  # exact, so that rows as far from two seeds go to the first
    squared_distances(points, points[chosen], distances)
    return distances
