"""Gaussian with mean zero and full covariance: Wishart prior on the precision, W(nu, B^-1)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import gammaln

from dpdist.kernels.packed import pack_quadratic, packed_width
from dpdist.models.families import wishart
from dpdist.models.families.base import Family, Features, Moments, Rows, fill_zeros
from dpdist.models.families.empirical import FREEDOM, most_evident
from dpdist.models.families.wishart import Scale
from dpdist.models.hyperparameters import Lone, with_free


@dataclass(frozen=True, eq=False)
class ZeroMeanGaussian(Family):
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

    degrees_of_freedom: Lone = Lone()
    scale: Scale = Scale()

    name = "zero_mean_gaussian"
    spreads = True
    turns = True

    def with_defaults(self, moments: Moments) -> ZeroMeanGaussian:
        return wishart.with_scale(self, 0.1 * fill_zeros(moments.variance + moments.mean**2))

    def turned(self, axes: np.ndarray) -> ZeroMeanGaussian:
        return replace(self, scale=wishart.turned(self.scale, axes))

    def empirical(self, stats: np.ndarray, free: Collection[str]) -> ZeroMeanGaussian:
        """The scale from the covariance within components, nu from the evidence."""
        dimension = self._dimension
        within = wishart.within(self.scale, self.degrees_of_freedom, self.posterior(stats)[1], stats[:, -1].sum())

        def posed(freedom: float) -> ZeroMeanGaussian:
            degrees = dimension + 1 + freedom if "degrees_of_freedom" in free else self.degrees_of_freedom
            return with_free(self, free, degrees_of_freedom=degrees, scale=within * max(degrees - dimension - 1, 1.0))

        return most_evident(posed, (FREEDOM,), stats)

    def features(self, rows: Rows, dtype: type = np.float64) -> np.ndarray:
        features: np.ndarray = np.empty((rows.shape[0], packed_width(rows.shape[1]) + 1), dtype)
        pack_quadratic(rows, features)
        features[:, -1] = 1
        return features

    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        constant = 0.5 * self._dimension * np.log(np.pi)
        level = np.concatenate([self._level(*post) for _, *post in self._posteriors(stats)])
        return np.asarray(level - self._prior_level - constant * stats[:, -1])

    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        found = np.empty(stats.shape[::-1])
        for some, *post in self._posteriors(stats):
            found[:, some] = self._coefficients(*post).T
        return found

    def _coefficients(self, degrees: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """The same by component, (K, F)."""
        dimension = self._dimension
        matrix = degrees[:, None] * wishart.packed_inverse(factor)
        expected = wishart.expected_log_determinant(degrees, wishart.log_determinant(factor), dimension)
        constant = 0.5 * (expected - dimension * np.log(2 * np.pi))
        return np.concatenate([-0.5 * matrix, constant[:, None]], axis=1)

    def log_predictive(self, features: Features, stats: np.ndarray) -> np.ndarray:
        """Student t centred at zero, its quadratic form taken as one matrix product."""
        dimension = self._dimension
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
        freedom = np.maximum(degrees - self._dimension - 1, 1.0)
        scatter = factor @ np.swapaxes(factor, 1, 2)
        return {"covariance": (("component", "column", "column_2"), scatter / freedom[:, None, None])}

    def sample(self, stats: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        drawn = rng.standard_normal((len(components), self._dimension))
        for some, degrees, factor in self._posteriors(stats):
            for rows, k in wishart.rows_of(components, some):
                shrink = np.sqrt(rng.chisquare(degrees[k] - self._dimension + 1, len(rows)))
                drawn[rows] = drawn[rows] @ factor[k].T / shrink[:, None]
        return drawn

    @property
    def _dimension(self) -> int:
        return int(self.scale.shape[0])

    def _level(self, degrees: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """Log normaliser (K,) of Wishart densities, what all have alike apart."""
        determinant = wishart.log_determinant(factor)
        return np.asarray(wishart.log_gamma(degrees / 2, self._dimension) - 0.5 * degrees * determinant)

    @cached_property
    def _prior_level(self) -> float:
        return float(self._level(*self.posterior(np.zeros((1, packed_width(self._dimension) + 1))))[0])

    def _posteriors(self, stats: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Those of some components at a time."""
        for some in wishart.blocks(len(stats), self._dimension):
            yield some, *self.posterior(stats[some], some.start)

    def posterior(self, stats: np.ndarray, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Degrees of freedom (K,) and Cholesky factors (K, D, D) of the posterior scatter.

        Refusals count components from `first` on.
        """
        counts, none = stats[:, -1], np.zeros((len(stats), self._dimension))
        scatter = wishart.posterior_scatter(
            self.scale, stats, none, counts, np.zeros(self._dimension), np.ones(len(stats))
        )
        return self.degrees_of_freedom + counts, wishart.cholesky(scatter, none, counts, first)
