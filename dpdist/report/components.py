"""Descriptions of clusters of rows: differences from the whole data, pictures, nearest rows, and distances.

The distance of two clusters is the root of the expected log odds for telling rows of one from rows of the other, summed
over both directions: sqrt(E_k[l_k - l_m] + E_m[l_m - l_k]). For Gaussians with equal covariances it is the Mahalanobis
distance times a constant. The overlap is the mean responsibility of one cluster for rows drawn from the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from dpdist.core.errors import InputError
from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.inference.blocks import blocks
from dpdist.inference.prediction import Predictor
from dpdist.models.families.base import Rows, fill_zeros
from dpdist.report.rows import SomeRows

#: Largest number of clusters with measured distances, and of rows drawn from each.
MEASURED, DRAWS = 120, 64
#: Approximate largest number of multiplications for measuring distances.
PRODUCTS = 2e10
#: Described arrays that are in the units of columns.
CENTRES = ("mean", "probability", "rate")


@dataclass(frozen=True, eq=False)
class Profiles:
    """Clusters compared with the whole data.

    Parameters
    ----------
    centre : (K, D) centre of each cluster, raw columns; for families without one, the direction of largest variance
    whole, spread : (D,) mean and standard deviation of rows
    standard : (K, D) differences of centres from the whole, in units of spread
    directions : whether `centre` contains directions
    """

    centre: np.ndarray
    whole: np.ndarray
    spread: np.ndarray
    standard: np.ndarray
    directions: bool


def profiles_of(predictor: Predictor, some: SomeRows) -> Profiles | None:
    """Differences of clusters from the whole data by column; None if the family describes no column.

    If rows are counts and the family describes proportions, rows are converted to proportions.
    """
    described, rows = predictor.described(), np.asarray(some.rows, dtype=np.float64)
    name = next((name for name in CENTRES if name in described), None)
    if name is None and "covariance" not in described:
        return None
    if name is None:
        centre, directions = _directions(described["covariance"][1]), True
    else:
        centre, directions = np.asarray(described[name][1]), False
        if name == "probability" and np.allclose(centre.sum(axis=1), 1.0):
            rows = rows / fill_zeros(rows.sum(axis=1, keepdims=True))
    whole = np.average(rows, axis=0, weights=some.weights)
    spread = np.sqrt(np.average((rows - whole) ** 2, axis=0, weights=some.weights))
    spread = fill_zeros(np.where(rows.max(axis=0) > rows.min(axis=0), spread, 0.0))
    standard = centre / spread if directions else (centre - whole) / spread
    return Profiles(centre, whole, spread, standard, directions)


def _directions(covariance: np.ndarray) -> np.ndarray:
    """The leading axis of each covariance (K, D, D), scaled by its standard deviation; its sum is positive."""
    values, vectors = np.linalg.eigh(covariance)
    axes = vectors[:, :, -1] * np.sqrt(np.maximum(values[:, -1:], 0.0))
    return np.asarray(axes * np.where(axes.sum(axis=1, keepdims=True) < 0, -1.0, 1.0))


class Apart(NamedTuple):
    """Distances between clusters.

    Parameters
    ----------
    distances : (M, M) symmetric
    overlaps : (M, M) mean responsibility of the second cluster for rows of the first; rows sum to at most 1
    """

    distances: np.ndarray
    overlaps: np.ndarray


def apart(predictor: Predictor, places: np.ndarray) -> Apart:
    """Distances and overlaps of the clusters at `places` (M,) of the model, estimated from rows drawn from each."""
    count, columns = len(places), predictor.columns
    draws = int(np.clip(PRODUCTS / (columns * count * len(predictor.ids)), 8, DRAWS))
    rng, score = generator(0, "overlaps of a report"), predictor.scorer()
    with one_thread():
        rows = predictor.sample(np.repeat(places, draws), rng)
        logits = np.concatenate([score(rows[block]) for block in blocks(len(rows), columns)])
    shares = softmax(logits, axis=1)[:, places].reshape(count, draws, count).mean(axis=1)
    logits = logits[:, places].reshape(count, draws, count).mean(axis=1)
    odds = np.diag(logits)[:, None] - logits
    return Apart(np.sqrt(np.maximum(odds + odds.T, 0.0)), shares)


def nearest_rows(predictor: Predictor, some: SomeRows, places: np.ndarray, count: int) -> dict[int, np.ndarray]:
    """For some clusters, the rows with this label that have the highest log density under the cluster, at most `count`.

    For families whose density is of counts given their sum, which is highest for short rows, the log density per count
    is used.

    Returns
    -------
    rows : position of a cluster -> positions in `some` rows, the nearest first
    """
    score, apply, family = predictor.scorer(), predictor.preparation.apply, predictor.family
    with one_thread():
        parts = blocks(some.rows.shape[0], predictor.columns)
        labels = np.concatenate([score(apply(some.rows[block])).argmax(axis=1) for block in parts])
        found = {}
        for k in places.tolist():
            own = np.flatnonzero(labels == k)
            rows, density = apply(some.rows[own]), predictor.densities(np.array([k]))
            near = np.concatenate([density(rows[block])[:, 0] for block in blocks(len(own), predictor.columns)])
            if family is not None and not family.whole_rows:
                near = _per_count(near, rows)
            found[k] = own[np.argsort(-near, kind="stable")[:count]]
    return found


def _per_count(densities: np.ndarray, rows: Rows) -> np.ndarray:
    """Log densities (n,) of rows of counts, divided by the sum of each row; -inf for rows without counts."""
    sums = np.asarray(rows.sum(axis=1), dtype=np.float64).ravel()
    return np.where(sums > 0, densities / fill_zeros(sums), -np.inf)


def picture_shape(shape: str, columns: int) -> tuple[int, ...]:
    """Height, width and optional channels of rows that are pictures; raises :class:`InputError` if they do not fit."""
    try:
        sizes = tuple(int(size) for size in shape.lower().split("x"))
    except ValueError:
        sizes = ()
    if len(sizes) not in (2, 3) or min(sizes) < 1 or (len(sizes) == 3 and sizes[2] not in (1, 3)):
        raise InputError(f"the image shape should be like 28x28, or 32x32x3 with colours; got {shape}.")
    if int(np.prod(sizes)) != columns:
        raise InputError(f"images of {shape} need rows of {np.prod(sizes)} columns; these rows have {columns}.")
    return sizes
