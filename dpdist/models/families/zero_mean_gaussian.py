"""Gaussian with mean zero and full covariance: Wishart prior on the precision, W(nu, B^-1)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from dpdist.kernels import wishart as compiled
from dpdist.kernels.jit import contiguous
from dpdist.kernels.packed import pack_quadratic, packed_width
from dpdist.models.families import wishart
from dpdist.models.families.base import Features, Moments, Rows, computable, fill_zeros
from dpdist.models.families.empirical import FREEDOM, most_evident
from dpdist.models.families.wishart import Scale, WishartFamily
from dpdist.models.hyperparameters import LoneCount, with_free


class Wishart(NamedTuple):
    """Posterior of each component."""

    degrees: np.ndarray  # (K,) nu
    factor: np.ndarray  # (K, D, D) Cholesky factor of B


@dataclass(frozen=True, eq=False)
class ZeroMeanGaussian(WishartFamily[Wishart]):
    """Zero-mean, full-covariance Gaussian, as used for centred image patches.

    Parameters
    ----------
    degrees_of_freedom : float, optional
        nu > D - 1. Default: D + 2.
    scale : float, (D,) or (D, D), optional
        B; the prior's expected covariance is B / (nu - D - 1). Default: a tenth of the data's mean squares,
        times (nu - D - 1).

    Notes
    -----
    Statistics: the products x_i x_j (i <= j, once each), 1; F = D(D+1)/2 + 1.
    """

    degrees_of_freedom: LoneCount = LoneCount()
    scale: Scale = Scale()

    name = "zero_mean_gaussian"

    def with_defaults(self, moments: Moments) -> ZeroMeanGaussian:
        return wishart.with_scale(self, 0.1 * fill_zeros(moments.variance + moments.mean**2))

    def turned(self, axes: np.ndarray) -> ZeroMeanGaussian:
        return replace(self, scale=wishart.turned(self.scale, axes))

    def empirical(self, stats: np.ndarray, free: Collection[str]) -> ZeroMeanGaussian:
        """The scale from the covariance within components, nu by maximising the evidence."""
        dimension = self.dimension
        within = wishart.within(self.scale, self.degrees_of_freedom, self.posterior(stats).factor, stats[:, -1].sum())

        def posed(freedom: float) -> ZeroMeanGaussian:
            degrees = dimension + 1 + freedom if "degrees_of_freedom" in free else self.degrees_of_freedom
            return with_free(self, free, degrees_of_freedom=degrees, scale=within * max(degrees - dimension - 1, 1.0))

        return most_evident(posed, (FREEDOM,), stats)

    def features(self, rows: Rows, dtype: type = np.float64) -> np.ndarray:
        features: np.ndarray = np.empty((rows.shape[0], packed_width(rows.shape[1]) + 1), dtype)
        pack_quadratic(computable(rows, dtype), features)
        features[:, -1] = 1
        return features

    def gradients(self, post: Wishart) -> np.ndarray:
        (degrees, factor), dimension = post, self.dimension
        matrix = degrees[:, None] * wishart.packed_inverse(factor)
        expected = wishart.expected_log_determinant(degrees, wishart.log_determinant(factor), dimension)
        constant = 0.5 * (expected - dimension * np.log(2 * np.pi))
        return np.concatenate([-0.5 * matrix, constant[:, None]], axis=1)

    def log_predictive(self, features: Features, stats: np.ndarray) -> np.ndarray:
        """Student t centred at zero, with the quadratic form as one matrix product."""
        dimension = self.dimension
        degrees, factor = self.posterior(stats)
        distance = np.maximum(features[:, :-1] @ wishart.packed_inverse(factor).T, 0.0)
        level = (
            gammaln((degrees + 1) / 2)
            - gammaln((degrees + 1 - dimension) / 2)
            - 0.5 * dimension * np.log(np.pi)
            - 0.5 * wishart.log_determinant(factor)
        )
        return np.asarray(level - 0.5 * (degrees + 1) * np.log1p(distance))

    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        degrees, factor = self.posterior(stats)
        freedom = np.maximum(degrees - self.dimension - 1, 1.0)
        scatter = factor @ np.swapaxes(factor, 1, 2)
        return {"covariance": (("component", "column", "column_2"), scatter / freedom[:, None, None])}

    def sample(self, stats: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        drawn = rng.standard_normal((len(components), self.dimension))
        for some, (degrees, factor) in self.posteriors(stats):
            for rows, k in wishart.rows_of(components, some):
                shrink = np.sqrt(rng.chisquare(degrees[k] - self.dimension + 1, len(rows)))
                drawn[rows] = drawn[rows] @ factor[k].T / shrink[:, None]
        return drawn

    @cached_property
    def compiled_prior(self) -> compiled.Prior:
        nowhere = np.zeros(self.dimension), 0.0, False
        return compiled.Prior(contiguous(self.scale), float(self.degrees_of_freedom), *nowhere, wishart.ROUNDED)

    def log_normaliser(self, post: Wishart) -> np.ndarray:
        determinant = wishart.log_determinant(post.factor)
        return np.asarray(wishart.log_gamma(post.degrees / 2, self.dimension) - 0.5 * post.degrees * determinant)

    def posterior(self, stats: np.ndarray, first: int = 0) -> Wishart:
        counts, none = stats[:, -1], np.zeros((len(stats), self.dimension))
        scatter = wishart.posterior_scatter(
            self.scale, stats, none, counts, np.zeros(self.dimension), np.ones(len(stats))
        )
        return Wishart(self.degrees_of_freedom + counts, wishart.cholesky(scatter, none, counts, first))
