"""Truncation-free stochastic variational inference for clusters that are Dirichlets about a mean, without a conjugate
prior.

    x | theta_k ~ Dirichlet(gamma theta_k),     log theta_k has a density in proportion to prod_d theta_kd^eta

The statistics of a cluster are its expected number of rows and the sum of their logs, both scaled to all rows; its mean
is a point estimate, the maximum a posteriori given them. A row of a mini-batch joins cluster k with probability
proportional to

    (n_k + rows of the batch in k) p(x | theta_k)

and a new one in proportion to the concentration times the integral of p(x | theta) over the prior. Clusters opened in
the batch are updated with each row that joins or leaves them; older clusters are updated between batches. Gibbs sweeps
over the batch draw from this distribution. The mean statistics of several draws, scaled to all rows, update the global
ones by a natural-gradient step of size (delay + t)^-decay. A cluster that no row joins decays; it is dropped when it
expects fewer than `FADED` rows.

Source: Wang & Blei (2012), Truncation-free Online Variational Inference for Bayesian Nonparametric Models. There a
cluster is integrated out, which needs a conjugate prior; here a point estimate is used instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lgamma
from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit
from dpdist.kernels.special import digamma, trigamma

#: Expected rows below which a cluster is dropped.
FADED = 0.01
#: Newton's steps towards a mean: the longest in any log, when they end, how many at most.
LONGEST, SHORT, MOST = 2.0, 1e-6, 60


class Model(NamedTuple):
    """What is known beforehand."""

    precision: float
    eta: float
    concentration: float


class Statistics(NamedTuple):
    """Clusters: expected rows (K,), sums of the logs of these (K, D), and log means (K, D)."""

    counts: np.ndarray
    sums: np.ndarray
    logits: np.ndarray


class Rows(NamedTuple):
    """Rows of a batch: their logs (n, D), and the log evidence of each under a new cluster (n,)."""

    logs: np.ndarray
    evidence: np.ndarray


class Settings(NamedTuple):
    """How the steps are taken."""

    batch: int = 100
    draws: int = 10
    discarded: int = 2  # sweeps over a batch before the first draw, the one that places its rows included
    delay: float = 1.0
    decay: float = 0.6


class Places(NamedTuple):
    """Which row of a batch is where, changed in place; clusters known before come first, then room for one a row."""

    labels: np.ndarray  # (n,) int64, -1 where a row is nowhere
    counts: np.ndarray  # (C,) expected rows and those of the batch; exactly zero where there is no cluster
    sums: np.ndarray  # (C, D) of the batch's rows
    scale: np.ndarray  # (C, D) gamma theta
    level: np.ndarray  # (C,) the part of the log density that no row changes
    known: int


def truncation_free(rows: Rows, model: Model, seed: int, settings: Settings | None = None) -> Iterator[Statistics]:
    """Clusters after each mini-batch of N rows, without end."""
    how, rng = settings or Settings(), np.random.default_rng(seed)
    columns = rows.logs.shape[1]
    found = Statistics(np.empty(0), np.empty((0, columns)), np.empty((0, columns)))
    for t, chosen in enumerate(batches(len(rows.logs), how.batch, rng)):
        batch = Rows(rows.logs[chosen], rows.evidence[chosen])
        seen = local_statistics(batch, found, model, how, rng)
        rate = (how.delay + t) ** -how.decay
        found = step(found, seen, len(rows.logs) / len(chosen) * rate, 1 - rate, model)
        yield found


def batches(rows: int, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Indices of rows in random order, pass after pass."""
    while True:
        order = rng.permutation(rows)
        for start in range(0, rows, size):
            yield order[start : start + size]


def local_statistics(
    batch: Rows, found: Statistics, model: Model, how: Settings, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Mean counts (C,) and sums (C, D) of a batch's rows over the draws of q(z): known clusters, then new ones."""
    places = empty_places(batch, found, model)
    counts, sums = np.zeros_like(places.counts), np.zeros_like(places.sums)
    for n in range(how.discarded + how.draws):
        sweep(batch, places, model, rng)
        if n >= how.discarded:
            np.add.at(counts, places.labels, 1 / how.draws)
            np.add.at(sums, places.labels, batch.logs / how.draws)
    return counts, sums


def empty_places(batch: Rows, found: Statistics, model: Model) -> Places:
    """No row of the batch is anywhere yet."""
    (rows, columns), known = batch.logs.shape, len(found.counts)
    counts, scale, level = np.zeros(known + rows), np.zeros((known + rows, columns)), np.zeros(known + rows)
    counts[:known] = found.counts
    for k in range(known):
        scale[k] = model.precision * np.exp(found.logits[k])
        level[k] = log_normaliser(scale[k])
    return Places(np.full(rows, -1), counts, np.zeros((known + rows, columns)), scale, level, known)


def step(found: Statistics, seen: tuple[np.ndarray, np.ndarray], gain: float, kept: float, model: Model) -> Statistics:
    """Global statistics: `gain` times those of a batch and what is `kept` of those before; means of their own."""
    (known, columns), counts, sums = found.sums.shape, gain * seen[0], gain * seen[1]
    counts[:known] += kept * found.counts
    sums[:known] += kept * found.sums
    alive = counts >= FADED
    counts, sums = counts[alive], sums[alive]
    logits = np.array([log_mean(n, total, model) for n, total in zip(counts, sums, strict=True)])
    return Statistics(counts, sums, logits.reshape(-1, columns))


@jit
def log_normaliser(scale: np.ndarray) -> float:
    """log Gamma(sum) - sum log Gamma of a Dirichlet's parameters (D,)."""
    level = lgamma(scale.sum())
    for d in range(len(scale)):
        level -= lgamma(scale[d])
    return level


@jit
def normalise(logits: np.ndarray) -> None:
    """Logs (D,) of numbers made those of probabilities."""
    top = logits.max()
    logits -= top + np.log(np.exp(logits - top).sum())


@jit
def log_mean(count: float, total: np.ndarray, model: Model) -> np.ndarray:
    """Log of the mean (D,) that is most probable given rows and the sum of their logs (D,).

    Newton's method in log theta, with the expected curvature, which at the maximum is the true one: on the simplex
    J (count gamma^2 psi'(gamma theta) + eta D / theta) J, with J = diag(theta) - theta theta^T.
    """
    columns = len(total)
    logits = np.maximum(total / count, -6.0)
    normalise(logits)
    slope, curve = np.empty(columns), np.empty(columns)
    for _ in range(MOST):
        theta, mean = np.exp(logits), 0.0
        for d in range(columns):
            parameter = model.precision * theta[d]
            slope[d] = model.precision * (total[d] - count * digamma(parameter))
            curve[d] = count * parameter * parameter * trigamma(parameter) + model.eta * columns * theta[d]
            mean += theta[d] * slope[d]
        slope = theta * (slope - mean) + model.eta * (1 - columns * theta)
        move = (slope - theta * ((theta * slope / curve).sum() / (theta * theta / curve).sum())) / curve
        move = np.minimum(np.maximum(move, -LONGEST), LONGEST)
        logits += move
        normalise(logits)
        if np.abs(move).max() < SHORT:
            break
    return logits


@jit
def sweep(batch: Rows, places: Places, model: Model, rng: np.random.Generator) -> None:
    """Draw the cluster of each row given all others."""
    log_weights = np.empty(len(places.counts))
    for i in range(len(batch.logs)):
        if places.labels[i] >= 0:
            move_row(places, batch.logs[i], places.labels[i], -1.0, model)
        k = draw_cluster(batch, i, places, model, log_weights, rng)
        places.labels[i] = k
        move_row(places, batch.logs[i], k, 1.0, model)


@jit
def move_row(places: Places, logs: np.ndarray, k: int, times: float, model: Model) -> None:
    """Put a row into cluster `k`, or take it out by -1 `times`; a cluster that the batch opened moves with it."""
    places.counts[k] += times
    if k < places.known:
        return
    for d in range(len(logs)):
        places.sums[k, d] += times * logs[d]
    if places.counts[k] < 0.5:
        places.counts[k] = 0.0
        places.sums[k] = 0.0
        return
    places.scale[k] = model.precision * np.exp(log_mean(places.counts[k], places.sums[k], model))
    places.level[k] = log_normaliser(places.scale[k])


@jit
def draw_cluster(
    batch: Rows, i: int, places: Places, model: Model, log_weights: np.ndarray, rng: np.random.Generator
) -> int:
    """A cluster for row `i`, which is nowhere; a new one takes the first free place. `log_weights` is scratch."""
    log_weights[:] = -np.inf
    free, room = -1, 0
    for k in range(len(places.counts)):
        if places.counts[k] > 0:
            log_density = places.level[k]
            for d in range(batch.logs.shape[1]):
                log_density += (places.scale[k, d] - 1) * batch.logs[i, d]
            log_weights[k] = np.log(places.counts[k]) + log_density
            room = k + 1
        elif k >= places.known and free < 0:
            free = k
            log_weights[k] = np.log(model.concentration) + batch.evidence[i]
            room = k + 1
    top, total = log_weights[:room].max(), 0.0
    for k in range(room):
        total += np.exp(log_weights[k] - top)
        log_weights[k] = total
    return min(np.searchsorted(log_weights[:room], total * rng.random(), side="right"), room - 1)
