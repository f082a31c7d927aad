"""Tasks that measure how components share rows: responsibilities of sampled rows, and entropies of sums of columns.

Responsibilities are those of the local step: those below a floor are zero. A row held by one component does not affect
merges, so only rows shared by several are processed further.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition
from dpdist.inference.blocks import blocks, finite_rows, weighing_rows
from dpdist.inference.prediction import Predictor
from dpdist.models.families.base import Family, Rows
from dpdist.models.mixture import Precision, share_out, weighted_product, without_background
from dpdist.models.sufficient_statistics import Summary

#: Smaller responsibilities are zero.
FLOOR = Precision().floor


@dataclass(frozen=True, eq=False)
class Shares:
    """Responsibilities of rows shared by several components; adds over rows.

    Parameters
    ----------
    resp : (m, K) CSR
    weights : (m,)
    """

    resp: sparse.csr_array
    weights: np.ndarray

    def __add__(self, other: Shares) -> Shares:
        resp = sparse.csr_array(sparse.vstack([self.resp, other.resp], format="csr"))
        return Shares(resp, np.concatenate([self.weights, other.weights]))

    @property
    def rows(self) -> np.ndarray:
        """(nonzeros,) row index of each stored responsibility."""
        return np.repeat(np.arange(len(self.weights)), np.diff(self.resp.indptr))


@dataclass(frozen=True, eq=False)
class Measured:
    """Measurements of components and of sums of components; adds over rows.

    Parameters
    ----------
    summary : of the components
    entropy : (C,) of sums of components
    overlap : (K, K) sums of products of two responsibilities
    """

    summary: Summary
    entropy: np.ndarray
    overlap: np.ndarray

    def __add__(self, other: Measured) -> Measured:
        return Measured(self.summary + other.summary, self.entropy + other.entropy, self.overlap + other.overlap)


def draw_shares(partition: Partition, shared: tuple[Predictor, float, int]) -> Shares:
    """Responsibilities of rows drawn with equal probability; a task. `shared` holds the model, the probability and the
    key of the draws."""
    predictor, chance, seed = shared
    rows, weights, places = weighing_rows(partition, finite_rows)
    chosen = np.flatnonzero(generator(seed, "tree", partition.index).random(rows.shape[0]) < chance)
    own = np.ones(len(chosen)) if weights is None else weights[chosen]
    found = Shares(sparse.csr_array((0, len(predictor.ids))), np.zeros(0))
    with one_thread():
        for step in _local_steps(predictor, rows[chosen], own, partition.start + places[chosen]):
            found += shared_only(step.resp, step.weights)
    return found


def measure(partition: Partition, shared: tuple[Predictor, Family, sparse.csr_array]) -> Measured:
    """Measurements of components and sums of components over a partition; a task. `shared` holds the model, its family
    and (K, C) indicators of the components of each sum."""
    predictor, family, sums = shared
    rows, weights, places = weighing_rows(partition, finite_rows)
    own = np.ones(rows.shape[0]) if weights is None else weights
    found = None
    with one_thread():
        log_volume = predictor.preparation.transform.log_volume
        for step in _local_steps(predictor, rows, own, partition.start + places):
            stats = weighted_product(step.resp, step.weights, family.features(step.rows))
            base = step.base + float(step.weights @ (family.log_base_measure(step.rows) + log_volume))
            shares = shared_only(step.resp, step.weights)
            overlap = shares.resp.T @ (shares.resp * shares.weights[:, None])
            alone = stats[:, -1] - shares.resp.T @ shares.weights
            summary = Summary(stats, step.entropy, base)
            part = Measured(summary, entropies(shares, sums), overlap.toarray() + np.diag(alone))
            found = part if found is None else found + part
    assert found is not None, "there is at least one block"
    return found


def entropies(shares: Shares, sums: sparse.csr_array) -> np.ndarray:
    """-sum_n c_n r_n log r_n of each sum of components: (C,)."""
    summed = Shares(sparse.csr_array(shares.resp @ sums), shares.weights)
    terms = -summed.resp.data * np.log(summed.resp.data)
    return np.bincount(summed.resp.indices, shares.weights[summed.rows] * terms, sums.shape[1])


def shared_only(resp: np.ndarray, weights: np.ndarray) -> Shares:
    """The rows of responsibilities (n, K) that are shared by several components."""
    several = np.flatnonzero(resp.max(axis=1) < 1.0)
    return Shares(sparse.csr_array(resp[several]), weights[several])


class _Step(NamedTuple):
    """A block of prepared rows: weights, responsibilities (n, K), entropies (K,), the background's contribution."""

    rows: Rows
    weights: np.ndarray
    resp: np.ndarray
    entropy: np.ndarray
    base: float


def _local_steps(predictor: Predictor, rows: Rows, weights: np.ndarray, places: np.ndarray) -> Iterator[_Step]:
    """Local steps of a model, block by block; `places` (n,) are the positions of the rows in the data."""
    score, outside = predictor.scorer(), predictor.background()
    for part in blocks(len(weights), predictor.columns):
        prepared, held = predictor.prepared(rows[part], places[part]), weights[part]
        logits = np.asarray(score(prepared), dtype=np.float64)
        if outside is None:
            yield _Step(prepared, held, *share_out(logits, held, FLOOR), 0.0)
            continue
        beyond = outside.score(prepared)
        shares, entropy = share_out(np.column_stack([logits, beyond]), held, FLOOR)
        resp, base = without_background(shares, beyond, entropy, held, outside.share)
        yield _Step(prepared, held, resp, entropy[:-1], base)
