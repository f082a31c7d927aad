"""Gaussian with unknown mean and full covariance: Normal-Wishart prior.

    precision ~ W(nu, B^-1),   mean | precision ~ N(m, (kappa precision)^-1)

The log evidence is that of Murphy (2007), "Conjugate Bayesian analysis of the Gaussian distribution", eq. 266.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from dpdist.kernels import wishart as compiled
from dpdist.kernels.jit import contiguous
from dpdist.kernels.packed import pack_quadratic, packed_diagonal, packed_width
from dpdist.models.families import wishart
from dpdist.models.families.base import Features, Moments, Rows, computable
from dpdist.models.families.empirical import FREEDOM, PRECISION, most_evident
from dpdist.models.families.wishart import Scale, WishartFamily
from dpdist.models.hyperparameters import Each, Lone, LoneCount, filled, with_free


class NormalWishart(NamedTuple):
    """Posterior of each component."""

    mean: np.ndarray  # (K, D)
    precision: np.ndarray  # (K,) kappa
    degrees: np.ndarray  # (K,) nu
    factor: np.ndarray  # (K, D, D) Cholesky factor of B


@dataclass(frozen=True, eq=False)
class Gaussian(WishartFamily[NormalWishart]):
    """Full-covariance Gaussian.

    Parameters
    ----------
    mean : float or (D,), optional
        Prior mean m. Default: the data's mean.
    mean_precision : float, optional
        kappa, the number of rows that the prior mean counts as. Default: 1e-4.
    degrees_of_freedom : float, optional
        nu > D - 1. Default: D + 2.
    scale : float, (D,) or (D, D), optional
        B; the prior's expected covariance is B / (nu - D - 1). Default: a tenth of the diagonal of the data's
        covariance, times (nu - D - 1).

    Notes
    -----
    Statistics: the products x_i x_j (i <= j, once each), x, 1; F = D(D+1)/2 + D + 1.
    """

    mean: Each = Each()
    mean_precision: Lone = Lone()
    degrees_of_freedom: LoneCount = LoneCount()
    scale: Scale = Scale()

    name = "gaussian"
    has_location = True

    def with_defaults(self, moments: Moments) -> Gaussian:
        centred = filled(self, moments.dimension, mean=moments.mean, mean_precision=1e-4)
        return wishart.with_scale(centred, 0.1 * moments.spread())

    def about(self, origin: np.ndarray) -> Gaussian:
        return replace(self, mean=self.mean - origin)

    def turned(self, axes: np.ndarray) -> Gaussian:
        return replace(self, mean=self.mean @ axes, scale=wishart.turned(self.scale, axes))

    def empirical(self, stats: np.ndarray, free: Collection[str]) -> Gaussian:
        """The scale from the covariance within components, kappa and nu by maximising the evidence."""
        dimension = self.dimension
        about_means = replace(self, mean_precision=1e-9).posterior(stats).factor
        within = wishart.within(self.scale, self.degrees_of_freedom, about_means, stats[:, -1].sum() - len(stats))

        def posed(freedom: float, precision: float) -> Gaussian:
            degrees = dimension + 1 + freedom if "degrees_of_freedom" in free else self.degrees_of_freedom
            scale = within * max(degrees - dimension - 1, 1.0)
            return with_free(self, free, degrees_of_freedom=degrees, scale=scale, mean_precision=precision)

        return most_evident(posed, (FREEDOM, PRECISION), stats)

    def features(self, rows: Rows, dtype: type = np.float64) -> np.ndarray:
        count, dimension = rows.shape
        features = np.empty((count, packed_width(dimension) + dimension + 1), dtype)
        pack_quadratic(computable(rows, dtype), features)
        features[:, -dimension - 1 : -1] = rows
        features[:, -1] = 1
        return features

    def gradients(self, post: NormalWishart) -> np.ndarray:
        dimension = self.dimension
        matrix = post.degrees[:, None] * wishart.packed_inverse(post.factor)
        linear = wishart.times(matrix, post.mean)
        log_determinant = wishart.log_determinant(post.factor)
        constant = 0.5 * (
            wishart.expected_log_determinant(post.degrees, log_determinant, dimension)
            - dimension * np.log(2 * np.pi)
            - dimension / post.precision
            - (linear * post.mean).sum(axis=1)
        )
        return np.concatenate([-0.5 * matrix, linear, constant[:, None]], axis=1)

    def log_predictive(self, features: Features, stats: np.ndarray) -> np.ndarray:
        """Student t (Murphy 2007, eq. 258), with the quadratic form as one matrix product."""
        dimension, post = self.dimension, self.posterior(stats)
        inverse = wishart.packed_inverse(post.factor)
        linear = wishart.times(inverse, post.mean)
        constant = (linear * post.mean).sum(axis=1)
        packed = np.concatenate([inverse, -2 * linear, constant[:, None]], axis=1)
        distance = np.maximum(features @ packed.T, 0.0)
        shrink = post.precision / (post.precision + 1)
        level = (
            gammaln((post.degrees + 1) / 2)
            - gammaln((post.degrees + 1 - dimension) / 2)
            + 0.5 * dimension * np.log(shrink / np.pi)
            - 0.5 * wishart.log_determinant(post.factor)
        )
        return np.asarray(level - 0.5 * (post.degrees + 1) * np.log1p(shrink * distance))

    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        post = self.posterior(stats)
        scatter = post.factor @ np.swapaxes(post.factor, 1, 2)
        freedom = np.maximum(post.degrees - self.dimension - 1, 1.0)
        return {
            "mean": (("component", "column"), post.mean),
            "covariance": (("component", "column", "column_2"), scatter / freedom[:, None, None]),
        }

    def sample(self, stats: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        drawn = rng.standard_normal((len(components), self.dimension))
        for some, post in self.posteriors(stats):
            for rows, k in wishart.rows_of(components, some):
                chi = rng.chisquare(post.degrees[k] - self.dimension + 1, len(rows))
                stretch = np.sqrt((post.precision[k] + 1) / (post.precision[k] * chi))
                drawn[rows] = post.mean[k] + stretch[:, None] * (drawn[rows] @ post.factor[k].T)
        return drawn

    @cached_property
    def compiled_prior(self) -> compiled.Prior:
        location = contiguous(self.mean), float(self.mean_precision), True
        return compiled.Prior(contiguous(self.scale), float(self.degrees_of_freedom), *location, wishart.ROUNDED)

    def log_normaliser(self, post: NormalWishart) -> np.ndarray:
        return np.asarray(
            wishart.log_gamma(post.degrees / 2, self.dimension)
            - 0.5 * post.degrees * wishart.log_determinant(post.factor)
            - 0.5 * self.dimension * np.log(post.precision)
        )

    def posterior(self, stats: np.ndarray, first: int = 0) -> NormalWishart:
        """Normal-Wishart update, with sums centred at the prior mean; messages number components from `first`."""
        dimension, counts = self.dimension, stats[:, -1]
        total = stats[:, -dimension - 1 : -1]
        precision = self.mean_precision + counts
        shift = total - counts[:, None] * self.mean
        scatter = wishart.posterior_scatter(self.scale, stats, total, counts, self.mean, precision)
        raw = stats[:, packed_diagonal(dimension)] + counts[:, None] * self.mean**2
        factor = wishart.cholesky(scatter, raw, counts, first)
        mean = self.mean + shift / precision[:, None]
        return NormalWishart(mean, precision, self.degrees_of_freedom + counts, factor)
