"""Documents or words that are far from each other, drawn like seeds of k-means++."""

from __future__ import annotations

import numpy as np

from dpdist.models.families.base import Rows, dense_rows


def spherical_kmeans_plusplus(unit: Rows, weights: np.ndarray, most: int, rng: np.random.Generator) -> list[int]:
    """Indices of at most `most` of the unit vectors (n, D), without repetition.

    Each is drawn in proportion to its weight (n,) and the square of its distance to those drawn before; the distance is
    1 minus the largest cosine.
    """
    nearest, chosen = np.zeros(len(weights)), list[int]()
    while len(chosen) < most:
        sampling_probabilities = weights * (1 - np.minimum(nearest, 1.0)) ** 2
        sampling_probabilities[chosen] = 0.0
        if not sampling_probabilities.sum() > 0:
            break
        chosen.append(int(rng.choice(len(weights), p=sampling_probabilities / sampling_probabilities.sum())))
        nearest = np.maximum(nearest, unit @ dense_rows(unit[[chosen[-1]]])[0])
    return chosen
