"""Components that came about for scattered rows: which of a model's components are no clusters.

A mixture without a background gives scattered rows a component of their own, or some. They are told from clusters by
draws of all components: as a whole they hold few rows, and each

- is thin: most of its draws lie where the clusters together have next to nothing, in the tail of their own densities by
  which outliers of so large a share are told (:mod:`dpdist.inference.outliers`), and
- lies about others: in its region, that of nine in ten of its draws, more rows are of clusters than are its own; or it
  is a gathering by chance: with statistics S its rows are no likelier as a cluster, by A(S), than of a background as
  broad as they and all others, which all scattered rows belong to.

A cluster beside the others fails the second, one among neighbours as dense as it is the first. From all components that
may be of scattered rows those are taken away, one by one, that are least thin beside what is left.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from dpdist.core.randomness import generator
from dpdist.data import ArraySource
from dpdist.execution.base import Backend
from dpdist.inference.prediction import Predictor, ask_each

#: Of rows said to be outliers, the share that may be of clusters: the false discovery rate.
FALSE_SHARE = 0.05
#: The largest share of rows that components of scattered rows hold together.
LARGEST = 0.1
#: The share of its draws that lie in a component's region.
_REGION = 0.9
#: Draws of each component: so many in all, and bounds of one's; how many a task scores.
_DRAWS, _FEWEST, _MOST, TOGETHER = 20_000, 16, 256, 4096


def tail_share(scattered: float) -> float:
    """The share q of clusters' rows that may lie below a threshold that finds a share of scattered rows:
    q (1 - scattered) / (q (1 - scattered) + scattered) is :data:`FALSE_SHARE`."""
    return FALSE_SHARE / (1 - FALSE_SHARE) * scattered / (1 - scattered)


def scattered_components(predictor: Predictor, backend: Backend, seed: int) -> np.ndarray:
    """Which components are of scattered rows, (K,) bool; never all.

    Parameters
    ----------
    predictor : the model, not a cut of it
    backend : where draws are scored
    seed : key of the draws
    """
    shares = predictor.shares()
    if len(shares) == 1:
        return np.zeros(1, dtype=bool)
    gains = predictor.gains_as_clusters() / (predictor.rows * shares)
    return chosen_components(shares, gains, _densities_of_draws(predictor, backend, seed))


def chosen_components(shares: np.ndarray, gains: np.ndarray, log_density: np.ndarray) -> np.ndarray:
    """Which components are of scattered rows, by densities of draws of every component, (K,) bool; never all.

    Parameters
    ----------
    shares : (K,) of the components, which sum to 1
    gains : (K,) nats a row by which a component's rows are likelier as a cluster than of a background
    log_density : (K, M, K) of M draws of each component under each
    """
    within, weighed = _rows_within(shares, log_density), log_density + np.log(shares)

    def no_clusters(others: np.ndarray, held: float) -> np.ndarray:
        about = within[others].sum(axis=0) - np.diag(within) * others > shares
        return np.asarray(about | (gains <= np.log(held / shares)))

    scattered = _thinnest(shares, weighed, no_clusters(np.ones(len(shares), dtype=bool), LARGEST))
    while scattered.any():
        still = scattered & no_clusters(~scattered, shares[scattered].sum())
        if not still.all(where=scattered):
            scattered = still
            continue
        nearness = _nearness(shares, weighed, scattered)
        if nearness.max() < 0:
            break
        scattered[np.flatnonzero(scattered)[nearness.argmax()]] = False
    return scattered


def _rows_within(shares: np.ndarray, log_density: np.ndarray) -> np.ndarray:
    """Of all rows, the share of those of one component that lie in the region of another, (K, K)."""
    own = log_density[np.arange(len(shares)), :, np.arange(len(shares))]
    region = np.quantile(own, 1 - _REGION, axis=1)
    return np.asarray(shares[:, None] * (log_density >= region).mean(axis=1))


def _thinnest(shares: np.ndarray, weighed: np.ndarray, eligible: np.ndarray) -> np.ndarray:
    """The eligible components whose draws lie where the model is least dense, as many as hold :data:`LARGEST`, (K,)."""
    level = np.median(logsumexp(weighed, axis=2), axis=1)
    order = np.argsort(np.where(eligible, level, np.inf), kind="stable")
    chosen = np.zeros(len(shares), dtype=bool)
    chosen[order[np.cumsum(shares[order]) <= LARGEST]] = True
    return chosen & eligible


def _nearness(shares: np.ndarray, weighed: np.ndarray, scattered: np.ndarray) -> np.ndarray:
    """By how many nats components (S,) are not thin: the others' density at their draws above what outliers have."""
    beside = logsumexp(weighed[:, :, ~scattered], axis=2)
    edge = float(
        np.quantile(
            beside[~scattered].ravel(),
            tail_share(float(shares[scattered].sum())),
            weights=np.repeat(shares[~scattered], beside.shape[1]),
            method="inverted_cdf",
        )
    )
    return np.asarray(np.median(beside[scattered], axis=1) - edge)


def _densities_of_draws(predictor: Predictor, backend: Backend, seed: int) -> np.ndarray:
    """Log densities (K, M, K) of M draws of each component under each."""
    count = len(predictor.ids)
    each = int(np.clip(_DRAWS // count, _FEWEST, _MOST))
    drawn = predictor.draw(np.repeat(np.arange(count), each), generator(seed, "scattered"))
    found = scores_of(drawn, predictor, backend, "log_densities")
    return found.reshape(count, each, count)


def scores_of(rows: np.ndarray, predictor: object, backend: Backend, method: str, *arguments: object) -> np.ndarray:
    """What a method of a predictor says of rows that were drawn."""
    parts = ArraySource(rows, partition_rows=TOGETHER).partitions
    return np.concatenate(ask_each(backend, parts, predictor, method, *arguments))
