"""A prior for sequential passes, from the clusters of a sample.

A component of one row may spread over everything before a second one opens, if the prior of its covariance is as wide
as the data. So a sample is clustered: k-means++ seeds, then steps that give each row to the component of largest
expected log density and find the prior most evident for what each got (classification EM). Of 1, 2, 4, ... components
those count whose joint probability with the sample,

    sum_k A(S_k) + log Gamma(N_k) - log Gamma(N),

is highest.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.inference.drawing import draw_rows
from dpdist.inference.mixture.local_step import block_rows
from dpdist.inference.moves.seeding import nearest_seeds
from dpdist.inference.transform import Preparation
from dpdist.models.families.base import Family, FamilyType, Rows

#: Rows drawn, components tried at most, steps with each number of them, and how often more may be worse.
SAMPLE, MOST_COMPONENTS, STEPS, FALLS = 10_000, 128, 5, 2


def empirical_family(
    asked: Family, filled: FamilyType, preparation: Preparation, source: Source, backend: Backend, seed: int
) -> FamilyType:
    """A family whose hyperparameters that nobody gave are those a sample of the data suggests.

    Parameters
    ----------
    asked : as a person gave it
    filled : the same, filled from the moments of all data
    """
    free = [name for name, value in asked.hyperparameters().items() if value is None]
    if not filled.spreads or not free:
        return filled
    drawn = draw_rows(preparation, seed, source, backend, SAMPLE)
    with one_thread():
        return suggested(filled, free, drawn.rows, drawn.weights, seed)


def suggested(filled: FamilyType, free: list[str], rows: np.ndarray, weights: np.ndarray, seed: int) -> FamilyType:
    """The prior that prepared rows (n, D) with weights (n,) suggest, of the hyperparameters that are `free`."""
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
    """Prior and statistics after some steps from the owners (n,) of rows."""
    stats = _sums(filled, rows, weights, owners)
    family = filled.empirical(stats, free)
    for _ in range(STEPS if len(stats) > 1 else 0):
        coefficients = family.coefficients(stats)
        coefficients[-1] += np.log(stats[:, -1])
        owners = np.concatenate([(family.features(block) @ coefficients).argmax(1) for block in _blocks(family, rows)])
        stats = _sums(filled, rows, weights, owners)
        family = filled.empirical(stats, free)
    return family, stats


def _sums(family: Family, rows: Rows, weights: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Statistics (K, F) of the owners that have any weight."""
    resp = np.zeros((len(owners), owners.max() + 1))
    resp[np.arange(len(owners)), owners] = weights
    shares = np.split(resp, np.cumsum([len(block) for block in _blocks(family, rows)])[:-1])
    blocks = zip(shares, _blocks(family, rows), strict=True)
    stats: np.ndarray = np.sum([share.T @ family.features(block) for share, block in blocks], axis=0)
    return np.ascontiguousarray(stats[stats[:, -1] > 0])


def _blocks(family: Family, rows: Rows) -> list[Rows]:
    step = block_rows(family.features(rows[:1]).shape[1])
    return [rows[start : start + step] for start in range(0, len(rows), step)]
