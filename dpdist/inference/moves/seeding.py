"""k-means++ seeding (Arthur & Vassilvitskii 2007) on dense or CSR rows."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpdist.kernels.rows import squared_distances
from dpdist.models.families.base import Rows, dense_rows, is_sparse

#: Relative tolerances for rounding: a column with a spread below this share of the widest column's is constant; a
#: variance computed as a difference and below this share of the column's mean square is zero; distances that differ by
#: less than this share are equal.
ROUNDING = 1e-12
#: Largest number of rows and columns examined for recurring values, and the share of these rows whose value must recur
#: in a column.
LOOKED_AT, RECURRING = (128, 64), 0.1


def nearest_seeds(points: Rows, weights: np.ndarray, seeds: int, rng: np.random.Generator) -> np.ndarray | None:
    """Draw `seeds` rows by k-means++ and give each row the index of its nearest seed, (n,).

    A single seeding of :func:`many_nearest_seeds`.
    """
    owners = many_nearest_seeds(points, weights, seeds, 1, rng)
    return None if owners is None else owners[:, 0]


def many_nearest_seeds(
    points: Rows, weights: np.ndarray, seeds: int, seedings: int, rng: np.random.Generator
) -> np.ndarray | None:
    """Draw `seeds` rows by k-means++ in each of `seedings` seedings; return each row's nearest seed, (n, S).

    The first seed is drawn in proportion to `weights` (n,). Further seeds are drawn in proportion to weight times
    squared distance to the nearest seed so far, so a row of weight w counts as w equal rows. Rows are sorted along a
    random direction before each draw, so the result does not depend on their order. Returns None if there are fewer
    distinct rows than seeds.
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
        owners[distances < nearest * (1 - ROUNDING)] = s  # ties go to the first seed, also with rounding
        nearest = np.minimum(nearest, distances)
        if s + 1 < seeds:
            if not nearest.any(axis=0).all():
                return None
            chosen = _drawn(weights[:, None] * nearest, order, rng)
    return owners


def distances_from_drawn(points: Rows, weights: np.ndarray, seedings: int, rng: np.random.Generator) -> np.ndarray:
    """Squared distances (n, S) from S rows drawn by weight; the draw does not depend on the order of rows."""
    order = _random_order(points, rng)
    chosen = _drawn(np.broadcast_to(weights[:, None], (len(order), seedings)), order, rng)
    return _squared_distances(points, _squared_norms(points), chosen)


def alike_in_a_column(
    points: Rows, weights: np.ndarray, cuts: int, seedings: int, rng: np.random.Generator
) -> np.ndarray | None:
    """Divide rows by their value in a random column: its index among `cuts` drawn values, else `cuts`, (n, S).

    Where columns hold whole numbers, codes or zeros, a cluster may consist of the rows with one value, which lies
    between other values. Columns are drawn in proportion to how often values recur. Returns None if values recur in no
    column, or only in constant ones.
    """
    order = _random_order(points, rng)
    among, odds = _recurrence(points, weights, order, rng)
    if not odds.any():
        return None
    drawn = rng.choice(among, seedings, p=odds / odds.sum())
    columns, by_weight = dense_rows(points[:, drawn]), np.broadcast_to(weights[:, None], (len(weights), seedings))
    values = np.stack([columns[_drawn(by_weight, order, rng), np.arange(seedings)] for _ in range(cuts)])
    alike = columns[:, None] == values
    return np.where(alike.any(axis=1), alike.argmax(axis=1), cuts)


def by_value(
    points: Rows, weights: np.ndarray, columns: int, values: int, least: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """Divide rows by their value in a column: its rank among the most frequent values, (n,) of whole numbers from 0.

    One result for each of up to `columns` columns, drawn as in :func:`alike_in_a_column` but without replacement. At
    most `values` values are distinguished, each with more than the share `least` of the weight; rows with other values
    come last, together.
    """
    among, odds = _recurrence(points, weights, _random_order(points, rng), rng)
    if not odds.any():
        return []
    chosen = rng.choice(among, min(columns, int(np.count_nonzero(odds))), replace=False, p=odds / odds.sum())
    found = []
    for column in dense_rows(points[:, chosen]).T:
        distinct, which = np.unique(column, return_inverse=True)
        shares = np.bincount(which, weights) / weights.sum()
        frequent = [k for k in np.argsort(-shares, kind="stable")[:values].tolist() if shares[k] > least]
        ranks = np.full(len(distinct), len(frequent))
        ranks[frequent] = np.arange(len(frequent))
        found.append(ranks[which])
    return found


def _recurrence(
    points: Rows, weights: np.ndarray, order: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Random columns, and how often the values in each of them recur; zero if they do so too rarely or are all equal.

    Rows are examined evenly along `order`.
    """
    rows, width = LOOKED_AT
    evenly = (np.arange(rows) + 0.5) / rows * weights.sum()
    asked = np.unique(order[np.minimum(np.searchsorted(np.cumsum(weights[order]), evenly), len(order) - 1)])
    among = rng.permutation(points.shape[1])[:width]
    some = np.unique(dense_rows(points[asked][:, among]), axis=0)  # drop duplicate rows
    repeats = (np.diff(np.sort(some, axis=0), axis=0) == 0.0).sum(axis=0)
    recurring = repeats / len(some)
    return among, np.where((recurring >= RECURRING) & (repeats < len(some) - 1), recurring, 0.0)


def standardized(points: Rows, weights: np.ndarray) -> Rows:
    """Points with each column in units of its standard deviation, (n, D); constant columns become zero."""
    total = weights.sum()
    means = np.asarray(weights @ points).ravel() / total
    if is_sparse(points):
        squares = np.asarray(weights @ points.multiply(points)).ravel() / total
        variances, lost = squares - means**2, ROUNDING * squares  # a constant column leaves only rounding
    else:
        variances, lost = weights @ (points - means) ** 2 / total, np.zeros(len(means))
    scales = np.where(variances > np.maximum(lost, ROUNDING**2 * variances.max()), variances, np.inf) ** -0.5
    return sparse.csr_array(points.multiply(scales)) if is_sparse(points) else (points - means) * scales


def _random_order(points: Rows, rng: np.random.Generator) -> np.ndarray:
    """Row indices (n,) sorted along a random direction."""
    return np.argsort(points @ rng.standard_normal(points.shape[1]), kind="stable")


def _drawn(sampling_probabilities: np.ndarray, order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Row indices (S,), each drawn in proportion to a column of `sampling_probabilities` (n, S)."""
    ends = np.cumsum(sampling_probabilities[order], axis=0)
    drawn = rng.random(ends.shape[1]) * ends[-1]
    places = (ends <= drawn).sum(axis=0)
    return np.asarray(order[np.minimum(places, len(order) - 1)])


def _squared_norms(points: Rows) -> np.ndarray:
    squares = points.multiply(points) if is_sparse(points) else points * points
    return np.asarray(squares.sum(axis=1)).ravel()


def _squared_distances(points: Rows, norms: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Squared distances (n, S) to the `chosen` rows; distances within rounding of zero are zero."""
    if is_sparse(points):
        both = norms[:, None] + norms[chosen]
        distances = both - 2 * (points @ points[chosen].toarray().T)
        distances[distances < 1e-12 * both] = 0.0
        return np.asarray(distances)
    distances = np.empty((len(points), len(chosen)))  # exact, so that ties go to the first seed
    squared_distances(points, points[chosen], distances)
    return distances
