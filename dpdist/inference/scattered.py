"""Components that represent scattered rows: which of a model's components are not clusters.

A mixture without a background gives scattered rows one or more components of their own. These are distinguished from
clusters by draws from all components. Together they hold few rows, and each of them

- is thin: most of its draws lie where the clusters together have almost no density, in the tail of their own densities
  that an outlier threshold for this share of scattered rows would cut off (:mod:`dpdist.inference.outliers`), and
- encloses others or is an accident. Either its region, which holds nine in ten of its draws, contains more rows of
  clusters than of its own. Or, with statistics S, its rows are no more likely as a cluster, by A(S), than under a
  background as broad as these rows and all others, shared by all scattered rows.

A cluster apart from the others fails the second test, and one among equally dense neighbours fails the first. Starting
from all components that may be scattered, those are removed one by one that are least thin relative to the rest.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from dpdist.core.randomness import generator
from dpdist.data import ArraySource
from dpdist.execution.base import Backend
from dpdist.inference.prediction import Predictor, ask_each

#: Share of the rows called outliers that may belong to clusters: the false discovery rate.
FALSE_SHARE = 0.05
#: Largest share of rows that components of scattered rows hold together.
LARGEST = 0.1
#: Share of a component's draws that lie in its region.
_REGION = 0.9
#: Draws in total, smallest and largest number per component, and number scored per task.
_DRAWS, _FEWEST, _MOST, TOGETHER = 20_000, 16, 256, 4096


def tail_share(scattered: float) -> float:
    """Share q of clusters' rows that may lie below a threshold, for a share `scattered` of scattered rows.

    It solves q (1 - scattered) / (q (1 - scattered) + scattered) = :data:`FALSE_SHARE`.
    """
    return FALSE_SHARE / (1 - FALSE_SHARE) * scattered / (1 - scattered)


def scattered_components(predictor: Predictor, backend: Backend, seed: int) -> np.ndarray:
    """Which components represent scattered rows, (K,) bool; never all.

    Parameters
    ----------
    predictor : the model, not a cut of it
    backend : scores the draws
    seed : key of the draws
    """
    shares = predictor.shares()
    if len(shares) == 1:
        return np.zeros(1, dtype=bool)
    gains = predictor.gains_as_clusters() / (predictor.rows * shares)
    return chosen_components(shares, gains, _densities_of_draws(predictor, backend, seed))


def chosen_components(shares: np.ndarray, gains: np.ndarray, log_density: np.ndarray) -> np.ndarray:
    """Which components represent scattered rows, from densities of draws of every component, (K,) bool; never all.

    Parameters
    ----------
    shares : (K,) weights of the components, which sum to 1
    gains : (K,) nats per row by which a component's rows are more likely as a cluster than under a background
    log_density : (K, M, K) log densities of M draws of each component under each component
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
    """Share of all rows that belong to one component and lie in the region of another, (K, K)."""
    own = log_density[np.arange(len(shares)), :, np.arange(len(shares))]
    region = np.quantile(own, 1 - _REGION, axis=1)
    return np.asarray(shares[:, None] * (log_density >= region).mean(axis=1))


def _thinnest(shares: np.ndarray, weighed: np.ndarray, eligible: np.ndarray) -> np.ndarray:
    """The eligible components with the lowest model density at their draws, up to :data:`LARGEST` in total, (K,)."""
    level = np.median(logsumexp(weighed, axis=2), axis=1)
    order = np.argsort(np.where(eligible, level, np.inf), kind="stable")
    chosen = np.zeros(len(shares), dtype=bool)
    chosen[order[np.cumsum(shares[order]) <= LARGEST]] = True
    return chosen & eligible


def _nearness(shares: np.ndarray, weighed: np.ndarray, scattered: np.ndarray) -> np.ndarray:
    """Nats by which scattered components (S,) fail to be thin: the others' density at their draws above its tail."""
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
    """Log densities (K, M, K) of M draws of each component under each component."""
    count = len(predictor.ids)
    each = int(np.clip(_DRAWS // count, _FEWEST, _MOST))
    drawn = predictor.draw(np.repeat(np.arange(count), each), generator(seed, "scattered"))
    found = scores_of(drawn, predictor, backend, "log_densities")
    return found.reshape(count, each, count)


def scores_of(rows: np.ndarray, predictor: object, backend: Backend, method: str, *arguments: object) -> np.ndarray:
    """Results of a predictor's method for drawn rows."""
    parts = ArraySource(rows, partition_rows=TOGETHER).partitions
    return np.concatenate(ask_each(backend, parts, predictor, method, *arguments))
