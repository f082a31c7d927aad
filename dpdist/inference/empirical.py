"""A prior for sequential passes, estimated from the clusters of a sample.

If the prior of a covariance is as wide as the data, the first component may cover all rows before a second opens. So a
sample is clustered: k-means++ seeds, followed by steps that assign each row to the component with the largest expected
log density and choose the hyperparameters that maximise the evidence of the result (classification EM). Among 1, 2, 4,
... components, the number is chosen that maximises the joint probability with the sample,

    sum_k A(S_k) + log Gamma(N_k) - log Gamma(N).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from scipy.special import gammaln

from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.inference.blocks import blocks
from dpdist.inference.drawing import draw_rows
from dpdist.inference.moves.seeding import nearest_seeds
from dpdist.inference.transform import Preparation
from dpdist.models.families.base import Family, FamilyType, Features, Rows

#: Rows drawn, largest number of components, steps for each number, and how many numbers in a row may be worse before
#: the search stops.
SAMPLE, MOST_COMPONENTS, STEPS, FALLS = 10_000, 128, 5, 2


def empirical_family(
    asked: Family, filled: FamilyType, preparation: Preparation, source: Source, backend: Backend, seed: int
) -> FamilyType:
    """The family with its unset hyperparameters estimated from a sample of the data; cached by the backend.

    Parameters
    ----------
    asked : the family as the user gave it
    filled : the same family, filled from the moments of all data
    """
    free = [name for name, value in asked.hyperparameters().items() if value is None]

    def suggest() -> FamilyType:
        if not filled.spreads or not free:
            return filled
        drawn = draw_rows(preparation, seed, source, backend, SAMPLE)
        with one_thread():
            return suggested(filled, free, drawn.rows, drawn.weights, seed)

    return backend.kept("prior of clusters", suggest)


def suggested(filled: FamilyType, free: list[str], rows: np.ndarray, weights: np.ndarray, seed: int) -> FamilyType:
    """The family with the hyperparameters named in `free` estimated from prepared rows (n, D) with weights (n,)."""
    best, found, falls, components = -np.inf, filled, 0, 1
    while components <= MOST_COMPONENTS and falls < FALLS:
        owners = nearest_seeds(rows, weights, components, generator(seed, "empirical prior", components))
        if owners is None:
            break
        family, stats = _clustered(filled, free, rows, weights, owners)
        level = float((family.log_evidence(stats) + gammaln(stats[:, -1])).sum())
        falls = 0 if level > best else falls + 1
        if level > best:
            best, found = level, family
        components *= 2
    return found


def _clustered(
    filled: FamilyType, free: list[str], rows: Rows, weights: np.ndarray, owners: np.ndarray
) -> tuple[FamilyType, np.ndarray]:
    """Prior and statistics after the steps that start from the owners (n,) of rows."""
    parts = _blocks(filled, rows)
    stats = _sums(int(owners.max()) + 1, ((owners[part], features, weights[part]) for part, features in parts))
    family = filled.empirical(stats, free)
    for _ in range(STEPS if len(stats) > 1 else 0):
        coefficients = family.coefficients(stats)
        coefficients[-1] += np.log(stats[:, -1])
        parts = _blocks(family, rows)
        shared = (((features @ coefficients).argmax(1), features, weights[part]) for part, features in parts)
        stats = _sums(len(stats), shared)
        family = filled.empirical(stats, free)
    return family, stats


def _sums(components: int, parts: Iterable[tuple[np.ndarray, Features, np.ndarray]]) -> np.ndarray:
    """Statistics (K, F) of the non-empty components, given owners, features and weights of parts of the rows."""
    stats: np.ndarray = np.zeros(())
    for owners, features, weights in parts:
        resp = np.zeros((len(owners), components))
        resp[np.arange(len(owners)), owners] = weights
        stats = stats + resp.T @ features
    return np.ascontiguousarray(stats[stats[:, -1] > 0])


def _blocks(family: Family, rows: Rows) -> Iterator[tuple[slice, Features]]:
    """Slices of rows (n, D), and the features of each."""
    for part in blocks(len(rows), family.features(rows[:1]).shape[1]):
        yield part, family.features(rows[part])
