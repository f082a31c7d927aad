"""Groups of words that occur together, as initial topics.

The leading singular vectors of a sample's square-root counts, with documents normalised to unit length, place words
that occur in the same documents close to each other. Spherical k-means, weighted by the words' counts, groups them; a
group with its words' counts initialises a topic.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds

from dpdist.models.families.base import Rows, dense_rows

#: Largest number of singular vectors, and of k-means steps.
_RANK, _STEPS = 100, 10
#: Number of words whose similarities to all centres are computed at once.
_BLOCK = 4096


def word_groups(counts: sparse.csr_array, groups: int, rng: np.random.Generator) -> np.ndarray:
    """The counts of all words, each in one of at most `groups` groups.

    Parameters
    ----------
    counts : (n, W) float64, of a sample of nonempty documents
    groups : largest number of groups
    rng : of the seeds

    Returns
    -------
    words : (W, B) total counts of words, zero outside the word's group; every group has a word
    """
    occurrences = np.asarray(counts.sum(axis=0)).ravel()
    seen = np.flatnonzero(occurrences)
    places = _places(sparse.csr_array(counts[:, seen]), rng)
    owners = _spherical_k_means(places, occurrences[seen], groups, rng)
    used, positions = np.unique(owners, return_inverse=True)
    words = np.zeros((counts.shape[1], len(used)))
    words[seen, positions] = occurrences[seen]
    return words


def _places(counts: sparse.csr_array, rng: np.random.Generator) -> np.ndarray:
    """Unit vectors (W, R) of words, close to each other if these occur in the same documents."""
    roots = sparse.csr_array((np.sqrt(counts.data), counts.indices, counts.indptr), shape=counts.shape)
    lengths = np.sqrt(np.asarray(counts.sum(axis=1)).ravel())
    unit = sparse.csr_array(sparse.diags_array(1 / np.maximum(lengths, 1e-300)) @ roots)
    least = min(unit.shape)
    if least > _RANK:
        _, sizes, vectors = svds(unit, k=_RANK, v0=rng.standard_normal(least))
    else:
        _, sizes, vectors = np.linalg.svd(unit.toarray(), full_matrices=False)
    places = vectors.T * sizes
    norms = np.linalg.norm(places, axis=1, keepdims=True)
    return np.ascontiguousarray(places / np.maximum(norms, 1e-300))


def _spherical_k_means(places: np.ndarray, weights: np.ndarray, groups: int, rng: np.random.Generator) -> np.ndarray:
    """The group (W,) of each unit vector (W, R), weighted by `weights`; seeded as in k-means++."""
    centres, owners = places[spherical_kmeans_plusplus(places, weights, groups, rng)], np.full(len(places), -1)
    for _ in range(_STEPS):
        before, owners = owners, np.concatenate(list(_nearest(places, centres)))
        if np.array_equal(before, owners):
            break
        centres = np.zeros_like(centres)
        np.add.at(centres, owners, weights[:, None] * places)
        centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-300)
    return owners


def _nearest(places: np.ndarray, centres: np.ndarray) -> Iterator[np.ndarray]:
    """The nearest centre of each word, one block of words at a time."""
    for start in range(0, len(places), _BLOCK):
        yield np.argmax(places[start : start + _BLOCK] @ centres.T, axis=1)


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
