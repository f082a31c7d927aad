"""Gaussian with independent columns of unknown mean and variance: Normal-Gamma prior on each.

    precision_d ~ Gamma(a, b_d),   mean_d | precision_d ~ N(m_d, 1 / (kappa precision_d))

Source: Murphy (2007), "Conjugate Bayesian analysis of the Gaussian distribution", eqs. 85-95.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from dpdist.core.errors import PrecisionError
from dpdist.kernels import diagonal
from dpdist.kernels.jit import contiguous
from dpdist.kernels.sequential_diagonal import log_factor_sums
from dpdist.models.families.base import Family, Features, Moments, Rows, computable
from dpdist.models.families.empirical import FREEDOM, PRECISION, most_evident
from dpdist.models.families.wishart import ROUNDED, precise
from dpdist.models.hyperparameters import Each, EachPositive, Lone, LoneCount, filled, with_free


class NormalGamma(NamedTuple):
    """Posterior of each component."""

    mean: np.ndarray  # (K, D)
    precision: np.ndarray  # (K, 1) kappa
    shape: np.ndarray  # (K, 1)
    rate: np.ndarray  # (K, D)


@dataclass(frozen=True, eq=False)
class DiagonalGaussian(Family):
    """Gaussian with a diagonal covariance.

    Parameters
    ----------
    mean : float or (D,), optional
        Prior mean m. Default: the data's mean.
    mean_precision : float, optional
        kappa, the number of rows that the prior mean counts as. Default: 1e-4.
    shape : float, optional
        Shape a of the Gamma prior on each precision. Default: 1.5.
    rate : float or (D,), optional
        Rate b; the prior's expected variance is b / (a - 1). Default: a tenth of the data's variances, times (a - 1).

    Notes
    -----
    Statistics: x^2, x, 1; F = 2D + 1.
    """

    mean: Each = Each()
    mean_precision: Lone = Lone()
    shape: LoneCount = LoneCount()
    rate: EachPositive = EachPositive()

    name = "diagonal_gaussian"
    spreads = True
    has_location = True

    def with_defaults(self, moments: Moments) -> DiagonalGaussian:
        shaped = filled(self, moments.dimension, mean=moments.mean, mean_precision=1e-4, shape=1.5)
        shape = shaped.shape
        return filled(shaped, moments.dimension, rate=0.1 * moments.spread() * (shape - 1 if shape > 1 else shape))

    def about(self, origin: np.ndarray) -> DiagonalGaussian:
        return replace(self, mean=self.mean - origin)

    def empirical(self, stats: np.ndarray, free: Collection[str]) -> DiagonalGaussian:
        """The rate from the variances within components, kappa and the shape by maximising the evidence."""
        rate = replace(self, mean_precision=1e-9).posterior(stats).rate
        expected = self.rate / (self.shape - 1 if self.shape > 1 else self.shape)
        count = max(stats[:, -1].sum() - len(stats), 0.0)
        within = (2 * (rate - self.rate).sum(axis=0) + expected) / (count + 1)

        def posed(freedom: float, precision: float) -> DiagonalGaussian:
            shape = 1 + freedom / 2 if "shape" in free else self.shape
            rate = within * (shape - 1 if shape > 1 else shape)
            return with_free(self, free, shape=shape, rate=rate, mean_precision=precision)

        return most_evident(posed, (FREEDOM, PRECISION), stats)

    def features(self, rows: Rows, dtype: type = np.float64) -> np.ndarray:
        count, dimension = rows.shape
        features = np.empty((count, 2 * dimension + 1), dtype)
        values = computable(rows, dtype)
        np.multiply(values, values, out=features[:, :dimension], casting="same_kind")
        features[:, dimension:-1] = values
        features[:, -1] = 1
        return features

    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        found = np.empty(len(stats))
        _require_precise(diagonal.evidences(self._compiled_prior, contiguous(stats), found) < 0)
        return found

    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        found = np.empty(stats.shape)
        _require_precise(diagonal.gradients(self._compiled_prior, contiguous(stats), found) < 0)
        return found.T

    @cached_property
    def _compiled_prior(self) -> diagonal.Prior:
        """The prior as compiled code takes it."""
        mean, rate = contiguous(self.mean), contiguous(self.rate)
        return diagonal.Prior(mean, float(self.mean_precision), float(self.shape), rate, ROUNDED)

    def log_predictive(self, features: Features, stats: np.ndarray) -> np.ndarray:
        """A product of Student t over the columns."""
        dimension, post = self._dimension, self.posterior(stats)
        shrink = post.precision / (post.precision + 1)
        sums = np.empty((features.shape[0], stats.shape[0]))
        rows = np.ascontiguousarray(features[:, dimension:-1], dtype=np.float64)
        log_factor_sums(rows, post.mean, shrink / (2 * post.rate), sums)
        each = gammaln(post.shape + 0.5) - gammaln(post.shape) + 0.5 * np.log(shrink / (2 * np.pi))
        level = dimension * each[:, 0] - 0.5 * np.log(post.rate).sum(axis=1)
        return np.asarray(level - (post.shape[:, 0] + 0.5) * sums)

    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        post = self.posterior(stats)
        variance = post.rate / np.where(post.shape > 1, post.shape - 1, post.shape)
        return {"mean": (("component", "column"), post.mean), "variance": (("component", "column"), variance)}

    def sample(self, stats: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        post = self.posterior(stats)
        spread = np.sqrt(post.rate * (post.precision + 1) / (post.shape * post.precision))
        freedom = np.broadcast_to(2 * post.shape, post.mean.shape)[components]
        return np.asarray(post.mean[components] + spread[components] * rng.standard_t(freedom))

    @property
    def _dimension(self) -> int:
        return int(self.mean.shape[0])

    def posterior(self, stats: np.ndarray) -> NormalGamma:
        """Normal-Gamma update, with sums centred at the prior mean."""
        dimension, counts = self._dimension, stats[:, -1:]
        squares, total = stats[:, :dimension], stats[:, dimension:-1]
        precision = self.mean_precision + counts
        shift = total - counts * self.mean
        about_prior = squares - 2 * total * self.mean + counts * self.mean**2
        rate = self.rate + 0.5 * (about_prior - shift**2 / precision)
        raw = np.abs(squares) + counts * self.mean**2
        _require_precise(bool(precise(rate, raw).all()))
        return NormalGamma(self.mean + shift / precision, precision, self.shape + 0.5 * counts, rate)


def _require_precise(sound: bool) -> None:
    """Raise :class:`PrecisionError` if a rate is not sound."""
    if not sound:
        raise PrecisionError(
            "a component's variance lost its precision: the component's rows vary far less than their distance "
            "from the origin or the prior mean. Standardise the columns (row_transform=TransformPlan(scale=True)) "
            "or give the family a mean near the rows or a larger rate."
        )
