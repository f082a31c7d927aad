"""Truncation-free stochastic variational inference of a Dirichlet-process mixture.

The global distribution q(mean_k, weights) is given by the expected counts and sums of clusters, scaled to all rows. The
local distribution of a mini-batch is collapsed over it, q(z) = E_q[p(x, z given means and weights)], so that a row may
open a cluster that is not in q. It joins cluster k with probability proportional to

    (n_k + rows of the batch in k) p(x given q and the rows of the batch in k)

and a new one in proportion to concentration p(x). Gibbs sweeps over the batch draw from this distribution. The mean
statistics of several draws, scaled to all rows, update the global ones by a natural-gradient step of size
(delay + t)^-decay.

Source: Wang & Blei (2012), Truncation-free Online Variational Inference for Bayesian Nonparametric Models.

The counts of a cluster that no row joins decay geometrically; it is dropped when it expects fewer than `FADED` rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from clusters import Model, Statistics, empty_partition
from gibbs import sweep

#: Expected rows below which a cluster is dropped.
FADED = 0.01


class Settings(NamedTuple):
    """How the steps are taken."""

    batch: int = 100
    draws: int = 10
    discarded: int = 2  # sweeps over a batch before the first draw, the one that places its rows included
    delay: float = 1.0
    decay: float = 0.6


def truncation_free(x: np.ndarray, model: Model, seed: int, settings: Settings | None = None) -> Iterator[Statistics]:
    """Clusters after each mini-batch of `x`, (N, D), without end."""
    how, rng = settings or Settings(), np.random.default_rng(seed)
    found = Statistics(np.empty(0), np.empty((0, x.shape[1])))
    for t, batch in enumerate(batches(x, how.batch, rng)):
        seen = local_statistics(batch, found, model, how, rng)
        found = step(found, seen, len(x) / len(batch), (how.delay + t) ** -how.decay)
        yield found


def batches(x: np.ndarray, rows: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Rows in random order, pass after pass."""
    while True:
        order = rng.permutation(len(x))
        for start in range(0, len(x), rows):
            yield x[order[start : start + rows]]


def local_statistics(
    batch: np.ndarray, found: Statistics, model: Model, how: Settings, rng: np.random.Generator
) -> Statistics:
    """Mean statistics of a batch's rows over the draws of q(z): known clusters first, then room for new ones."""
    partition = empty_partition(*batch.shape, found)
    counts, sums = np.zeros_like(partition.counts), np.zeros_like(partition.sums)
    for n in range(how.discarded + how.draws):
        sweep(batch, partition, model, rng)
        if n >= how.discarded:
            np.add.at(counts, partition.labels, 1 / how.draws)
            np.add.at(sums, partition.labels, batch / how.draws)
    return Statistics(counts, sums)


def step(found: Statistics, seen: Statistics, scale: float, rate: float) -> Statistics:
    """Global statistics after a natural-gradient step towards `scale` times those of a batch."""
    counts, sums = scale * rate * seen.counts, scale * rate * seen.sums
    counts[: len(found.counts)] += (1 - rate) * found.counts
    sums[: len(found.counts)] += (1 - rate) * found.sums
    kept = counts >= FADED
    return Statistics(counts[kept], sums[kept])
