"""Positions in a plane with given pairwise distances.

Classical scaling gives initial positions; then the weighted stress

    sum_{i<j} (|z_i - z_j| - d_ij)^2 / d_ij^2

is minimised by majorisation, which preserves small distances best. Sources: Torgerson (1952); de Leeuw (1977).
"""

from __future__ import annotations

import numpy as np

#: Iterations of majorisation.
ROUNDS = 200


def plane(distances: np.ndarray) -> np.ndarray:
    """Positions (K, 2), centred; the first axis has the largest variance, and the largest entry of each axis is
    positive.

    Parameters
    ----------
    distances : (K, K) symmetric, zero on the diagonal
    """
    size = len(distances)
    if size < 3:
        return np.stack([np.arange(size) * distances.max(initial=0.0), np.zeros(size)], axis=1)
    places = _classical(distances)
    wanted = _apart(distances)
    weights = wanted**-2
    np.fill_diagonal(weights, 0.0)
    laplacian = np.diag(weights.sum(axis=1)) - weights
    inverse = np.linalg.pinv(laplacian)
    for _ in range(ROUNDS):
        apart = np.linalg.norm(places[:, None] - places[None], axis=2)
        pull = weights * wanted / np.maximum(apart, 1e-12)
        np.fill_diagonal(pull, 0.0)
        places = inverse @ ((np.diag(pull.sum(axis=1)) - pull) @ places)
    _, _, axes = np.linalg.svd(places - places.mean(axis=0), full_matrices=False)
    turned = (places - places.mean(axis=0)) @ axes.T
    largest = np.take_along_axis(turned, np.abs(turned).argmax(axis=0)[None], axis=0)
    return np.asarray(turned * np.where(largest < 0, -1.0, 1.0))


def stress(distances: np.ndarray, places: np.ndarray) -> float:
    """Root mean square of the relative errors over all pairs."""
    first, second = np.triu_indices(len(distances), 1)
    apart, wanted = np.linalg.norm(places[first] - places[second], axis=1), _apart(distances)[first, second]
    return float(np.sqrt(np.mean((apart / wanted - 1) ** 2)))


def _apart(distances: np.ndarray) -> np.ndarray:
    """Distances with a positive lower bound, so that relative errors are defined for identical items."""
    return np.asarray(np.maximum(distances, 1e-3 * distances.max() or 1.0))


def _classical(distances: np.ndarray) -> np.ndarray:
    centred = distances**2 - (distances**2).mean(axis=0)
    values, vectors = np.linalg.eigh(-0.5 * (centred - centred.mean(axis=1, keepdims=True)))
    return np.asarray(vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 1e-12 * max(values[-1], 1e-300))))
