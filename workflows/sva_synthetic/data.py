"""Rows of nine overlapping Gaussian clusters, and the score for comparing methods.

After section 6.1 of Lin (2013), Online learning of nonparametric mixture models via sequential variational
approximation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from clusters import Model, Statistics
from scipy.special import logsumexp

#: Clusters along a side of the grid of means, and how far a mean may lie off it in either direction.
SIDE, JITTER = 3, 0.4
CLUSTERS = SIDE * SIDE
#: Of the Dirichlet distribution of the true weights.
WEIGHT_CONCENTRATION = 10.0


class Data(NamedTuple):
    """``x`` (N, 2) and ``holdout`` (H, 2) of one distribution, with its ``weights`` (9,) and ``means`` (9, 2)."""

    x: np.ndarray
    holdout: np.ndarray
    weights: np.ndarray
    means: np.ndarray


class Snapshot(NamedTuple):
    """Where a method stands: seconds so far, mean log density of held-out rows in nats, the clusters."""

    seconds: float
    score: float
    counts: np.ndarray
    means: np.ndarray


def draw_data(seed: int, rows: int, holdout: int, spacing: float) -> Data:
    """Rows in random order from Gaussians of unit variance and unequal weights, means on a 3 x 3 grid, about."""
    rng = np.random.default_rng(seed)
    ticks = spacing * (np.arange(SIDE) - (SIDE - 1) / 2)
    grid = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(CLUSTERS, 2)
    means = grid + rng.uniform(-JITTER, JITTER, grid.shape)
    weights = rng.dirichlet(np.full(CLUSTERS, WEIGHT_CONCENTRATION))
    x = means[rng.choice(CLUSTERS, rows + holdout, p=weights)] + rng.standard_normal((rows + holdout, 2))
    return Data(x[:rows], x[rows:], weights, means)


def posterior_means(found: Statistics, model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Posterior mean (K, D) and variance (K,) of each cluster's mean."""
    variances = 1 / (1 / model.mean_variance + found.counts / model.variance)
    return variances[:, None] / model.variance * found.sums, variances


def mixture_score(x: np.ndarray, weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> float:
    """Mean log density of rows (N, D) under a mixture of isotropic Gaussians, in nats."""
    squares = (x**2).sum(axis=1)[:, None] - 2 * x @ means.T + (means**2).sum(axis=1)
    log_density = -0.5 * (squares / variances + x.shape[1] * np.log(2 * np.pi * variances))
    return float(logsumexp(log_density, axis=1, b=weights).mean())


def score(x: np.ndarray, found: Statistics, model: Model) -> float:
    """Mean log predictive density of rows (N, D), in nats: each is in a known cluster or in a new one.

    sum_k n_k/(a + n) N(x; m_k, (s_x^2 + s_k^2) I) + a/(a + n) N(x; 0, (s_x^2 + s_p^2) I), a the concentration
    """
    means, variances = posterior_means(found, model)
    weights = np.append(found.counts, model.concentration)
    means = np.append(means, np.zeros((1, x.shape[1])), axis=0)
    variances = model.variance + np.append(variances, model.mean_variance)
    return mixture_score(x, weights / weights.sum(), means, variances)


def true_score(data: Data, model: Model) -> float:
    """Mean log density of the held-out rows under the mixture they come from, in nats."""
    return mixture_score(data.holdout, data.weights, data.means, np.full(CLUSTERS, model.variance))


def follow(clusters: Iterator[Statistics], holdout: np.ndarray, model: Model) -> Iterator[Snapshot]:
    """A sampler's clusters with their scores and its own seconds of a processor, at times some 2 percent apart."""
    seconds = following = 0.0
    while True:
        began = time.process_time()
        found = next(clusters)
        seconds += time.process_time() - began
        if seconds >= following:
            following = 1.02 * seconds
            yield Snapshot(seconds, score(holdout, found, model), found.counts, posterior_means(found, model)[0])
