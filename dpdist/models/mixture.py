"""A mixture model: a family and an allocation, with the global step, the local step and the bound.

The bound is a function of summaries alone,

    ELBO = A(S) + A_alloc(N) + sum_k H_k + sum_n c_n log h(x_n)

where A is the family's log evidence summed over components; it is exact if q was computed from the same statistics. If
q was computed from other statistics S', A(S) is replaced by its tangent at S', A(S') + <dA(S'), S - S'>, and likewise
for the allocation.

The local step is the softmax of the gradient of the evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
from scipy import sparse

from dpdist.core.checks import FLOOR, check_fields, one_of
from dpdist.core.errors import PrecisionError
from dpdist.core.stored import Stored
from dpdist.kernels.softmax import accumulate_sparse, share_rows
from dpdist.models.allocations import Allocation
from dpdist.models.families.base import Family, Features, Rows
from dpdist.models.sufficient_statistics import Summary

_TOO_FAR_OUT = (
    "the log probabilities of a row are not finite: the row lies too far from all components for the chosen "
    "precision. Standardise the columns (row_transform=TransformPlan(scale=True)) or choose compute_dtype='float64'."
)
#: If a smaller share of responsibilities is nonzero, the second matrix product visits only these.
SPARSE_SHARE = 0.12
#: Gradients of many components are transposed in chunks of about this many numbers.
_CHUNK = 2_000_000
#: Allowed values of ``compute_dtype``.
DTYPES: dict[str, type] = {"float64": np.float64, "float32": np.float32}


@dataclass(frozen=True, eq=False)
class Precision:
    """Precision of the local step.

    Parameters
    ----------
    dtype : type
        float64, or float32 for the two matrix products only; sums are always float64.
    floor : float
        Responsibilities below it are set to zero and the row renormalised.
    """

    dtype: type = np.float64
    floor: float = 1e-8

    def __post_init__(self) -> None:
        check_fields(self, floor=FLOOR)


def dtype_of(name: str) -> type:
    """The NumPy type of a ``compute_dtype``; raises :class:`InputError` for another name."""
    return DTYPES[one_of(*DTYPES).take("compute_dtype", name)]


@dataclass(frozen=True, eq=False)
class Background:
    """The source of rows that belong to no cluster: as broad as all data, known in advance and never updated.

    With a share w_0 of the rows and E[eta] of the family given rows with statistics B, a row adds to the bound

        r_0 [t(x) . E[eta] + log w_0] + (1 - r_0) log(1 - w_0) - r_0 log r_0

    in addition to the clusters' contribution, so changes of clusters do not affect it.

    Parameters
    ----------
    share : w_0, the expected share of rows that belong to no cluster
    stats : (F,) B
    """

    share: float
    stats: Annotated[np.ndarray, Stored(("feature",), "statistics of the rows that set the spread of the background")]

    def coefficients(self, family: Family) -> np.ndarray:
        """(F,) coefficients of its log probabilities, relative to log(1 - w_0) as those of clusters are."""
        coefficients = family.coefficients(self.stats[None])[:, 0].copy()
        coefficients[-1] += np.log(self.share) - np.log1p(-self.share)
        return np.asarray(coefficients)


@dataclass(frozen=True, eq=False)
class Posterior:
    """What workers need of q to compute responsibilities: E_q[log p(x, k)] = t(x) @ coefficients.

    ``coefficients`` is (F, K), with E_q[log w] added to its last row, in the dtype of the products. ``outside`` (F,)
    holds those of the background, if there is one, and ``share`` its share.
    """

    family: Family
    coefficients: np.ndarray
    precision: Precision
    outside: np.ndarray | None = None
    share: float = 0.0

    def logits(self, features: Features) -> np.ndarray:
        """E_q[log p(x_n, k)] without the base measure, (n, K)."""
        return np.ascontiguousarray(features @ self.coefficients)

    def among(self, components: np.ndarray | None) -> Posterior:
        """The posterior of the given components only; None for all."""
        return self if components is None else replace(self, coefficients=self._by_component[components].T)

    @cached_property
    def _by_component(self) -> np.ndarray:
        """The coefficients as (K, F), from which rows can be selected quickly."""
        return np.ascontiguousarray(self.coefficients.T)


@dataclass(frozen=True, eq=False)
class Block:
    """Rows after their local step: the data that moves may use.

    ``rows`` (n, D), ``features`` (n, F), ``weights`` (n,) float64, ``resp`` (n, K), and the posterior.
    """

    rows: Rows
    features: Features
    weights: np.ndarray
    resp: np.ndarray
    posterior: Posterior


@dataclass(frozen=True, eq=False)
class Model:
    """A family with all hyperparameters filled, an allocation, and optionally a background for rows of no cluster."""

    family: Family
    allocation: Allocation
    background: Background | None = None

    def log_evidence(self, summary: Summary) -> float:
        """A(S) + A_alloc(N), in nats."""
        family = self.family.log_evidence(summary.stats).sum()
        return float(family + self.allocation.log_evidence(summary.counts))

    def elbo(self, summary: Summary, source: Summary | None = None) -> float:
        """The bound on all rows of `summary`, in nats, including all constants.

        Parameters
        ----------
        summary : statistics and entropies of q(z)
        source : the statistics from which the posterior q(theta) was computed; default: `summary` itself

        Raises
        ------
        PrecisionError
            If it is not finite.
        """
        bound = self.log_evidence(summary if source is None else source) + float(summary.entropy.sum()) + summary.base
        if source is not None:
            bound += float((self.gradient(source.stats) * (summary.stats - source.stats)).sum())
        if not math.isfinite(bound):
            raise PrecisionError(
                f"the ELBO is {bound}: the log evidence of a component under {type(self.family).__name__} exceeds the "
                "range of float64, or the family returned NaN. Standardise the columns, or correct the family."
            )
        return bound

    def gradient(self, stats: np.ndarray) -> np.ndarray:
        """Gradient of A + A_alloc at `stats`, both (..., K, F); each entry of the leading axes is a mixture."""
        gradient: np.ndarray = self.family.coefficients(stats.reshape(-1, stats.shape[-1])).T.reshape(stats.shape)
        gradient[..., -1] += self.allocation.log_weights(stats[..., -1])
        return gradient

    def gradients(self, stats: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Like :meth:`gradient`, for consecutive mixtures in `stats` (C, F); `ends` (J,) are their end indices."""
        gradients, step = np.empty(stats.shape), max(1, _CHUNK // stats.shape[1])
        for begin in range(0, len(stats), step):
            gradients[begin : begin + step] = self.family.coefficients(stats[begin : begin + step]).T
        counts, held = side_by_side(stats[:, -1], ends)
        gradients[:, -1] += self.allocation.log_weights(counts)[held]
        return gradients

    def posterior(self, summary: Summary, precision: Precision) -> Posterior:
        """The global step: q(theta) from statistics, in the form that workers use."""
        coefficients: np.ndarray = np.ascontiguousarray(self.gradient(summary.stats).T, dtype=precision.dtype)
        if self.background is None:
            return Posterior(self.family, coefficients, precision)
        outside: np.ndarray = self.background.coefficients(self.family).astype(precision.dtype)
        return Posterior(self.family, coefficients, precision, outside, self.background.share)


def side_by_side(counts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts (C,) of consecutive mixtures with end indices `ends` (J,), as rows (J, K) padded with zeros.

    Empty components at the end do not change the evidence. The second array marks the entries that are not padding.
    """
    sizes = ends - np.append(0, ends[:-1])
    held = np.arange(sizes.max(initial=0)) < sizes[:, None]
    rows = np.zeros(held.shape)
    rows[held] = counts
    return rows, held


def local_step(posterior: Posterior, features: Features, weights: np.ndarray) -> tuple[np.ndarray, Summary]:
    """The local step on one block: responsibilities (n, K) and their summary, without the base measure.

    With a background, each row of responsibilities sums to 1 minus the background's responsibility, and the
    background's contribution to the bound is the summary's base.
    """
    logits, mass = posterior.logits(features), np.ones(features.shape[0])
    if posterior.outside is None:
        return summarise(logits, mass, features, weights, posterior)
    outside, floor = np.asarray(features @ posterior.outside), posterior.precision.floor
    shares = np.column_stack([logits, outside])
    _, counts, entropy = _share_out(shares, mass, weights, floor)
    resp, base = without_background(shares, outside, entropy, weights, posterior.share)
    stats = weighted_product(resp, weights, features)
    stats[:, -1] = counts[:-1]
    return resp, Summary(stats, entropy[:-1], base)


def share_out(logits: np.ndarray, weights: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """The softmax (n, K) of `logits`, in place, with values below a floor set to zero, and its entropies (K,); raises
    :class:`PrecisionError` if the log probabilities of a row are not finite."""
    resp = np.ascontiguousarray(logits)
    return resp, _share_out(resp, np.ones(len(resp)), weights, floor)[2]


def without_background(
    shares: np.ndarray, outside: np.ndarray, entropy: np.ndarray, weights: np.ndarray, share: float
) -> tuple[np.ndarray, float]:
    """Responsibilities of the clusters, (n, K), and the background's contribution to the bound.

    Parameters
    ----------
    shares : (n, K + 1) responsibilities, the background's last
    outside : (n,) log probabilities under the background
    entropy : (K + 1,) of `shares`
    weights : (n,) of the rows
    share : of the background
    """
    linear = float(weights @ (shares[:, -1].astype(np.float64) * outside))
    base = linear + float(entropy[-1]) + float(weights.sum()) * float(np.log1p(-share))
    return np.ascontiguousarray(shares[:, :-1]), base


def summarise(
    logits: np.ndarray, mass: np.ndarray, features: Features, weights: np.ndarray, posterior: Posterior
) -> tuple[np.ndarray, Summary]:
    """Divide the `mass` (n,) of each row by the softmax of `logits` (n, K), in place, and compute the summary."""
    active, counts, entropy = _share_out(logits, mass, weights, posterior.precision.floor)
    stats = weighted_product(logits, weights, features, active)
    stats[:, -1] = counts
    return logits, Summary(stats, entropy)


def _share_out(
    logits: np.ndarray, mass: np.ndarray, weights: np.ndarray, floor: float
) -> tuple[int, np.ndarray, np.ndarray]:
    """Put responsibilities in place of `logits` (n, K): how many are not zero, their counts (K,) and entropies (K,)."""
    counts, entropy = np.zeros(logits.shape[1]), np.zeros(logits.shape[1])
    active = share_rows(logits, mass, weights, floor, counts, entropy)
    if active < 0:
        raise PrecisionError(_TOO_FAR_OUT)
    return active, counts, entropy


def weighted_product(
    resp: np.ndarray, weights: np.ndarray, features: Features, active: int | None = None
) -> np.ndarray:
    """S = (c * r)^T t(x), (K, F) float64, by a matrix product or, if few of `resp` are nonzero, over these only.

    `active` is the number of `resp` that are not zero, if known.
    """
    active = int(np.count_nonzero(resp)) if active is None else active
    if sparse.issparse(features):
        return np.ascontiguousarray((features.T @ (weights[:, None] * resp)).T, dtype=np.float64)
    if active < SPARSE_SHARE * resp.size or resp.shape[1] <= 2:
        stats = np.zeros((resp.shape[1], features.shape[1]))
        accumulate_sparse(resp, weights, features, stats)
        return stats
    weighted = (weights[:, None] * resp).astype(resp.dtype, copy=False)
    return np.asarray(weighted.T @ features, dtype=np.float64)
