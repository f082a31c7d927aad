"""Gaussian with known isotropic variance and a Normal prior on its mean.

    mean ~ N(m, s_p^2 I),   x | mean ~ N(mean, s_x^2 I)

Source: Lin (2013), eq. 22.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpdist.core.errors import PrecisionError
from dpdist.models.families.base import Family, Features, Moments, Rows, computable
from dpdist.models.families.wishart import precise
from dpdist.models.hyperparameters import Each, Lone, filled


@dataclass(frozen=True, eq=False)
class IsotropicGaussian(Family):
    """Gaussian of known, isotropic variance.

    Parameters
    ----------
    variance : float, optional
        s_x^2, the variance of every column within a component. Default: a tenth of the data's mean variance.
    mean_variance : float, optional
        s_p^2, the prior variance of a component's mean. Default: the data's mean variance.
    mean : float or (D,), optional
        Prior mean m. Default: the data's mean.

    Notes
    -----
    Statistics: the square of the norm of x, x, 1; F = D + 2.
    """

    variance: Lone = Lone()
    mean_variance: Lone = Lone()
    mean: Each = Each()

    name = "isotropic_gaussian"
    has_location = True

    def with_defaults(self, moments: Moments) -> IsotropicGaussian:
        typical = float(moments.spread().mean())
        return filled(self, moments.dimension, variance=0.1 * typical, mean_variance=typical, mean=moments.mean)

    def about(self, origin: np.ndarray) -> IsotropicGaussian:
        return replace(self, mean=self.mean - origin)

    def features(self, rows: Rows, dtype: type = np.float64) -> np.ndarray:
        features = np.empty((rows.shape[0], rows.shape[1] + 2), dtype)
        values = computable(rows, dtype)
        features[:, 0] = np.einsum("nd,nd->n", values, values)
        features[:, 1:-1] = values
        features[:, -1] = 1
        return features

    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        dimension, counts = self.mean.shape[0], stats[:, -1]
        shift, precision = self._shift(stats), self._precision(stats)
        squares = stats[:, 0] - 2 * stats[:, 1:-1] @ self.mean + counts * (self.mean @ self.mean)
        fitted = (shift**2).sum(axis=1) / (self.variance * precision)
        about_mean = np.maximum(squares - fitted, 0.0) + (counts + 1) * self.variance
        raw = np.abs(stats[:, 0]) + counts * (self.mean @ self.mean)
        if not precise(about_mean, raw).all():
            raise PrecisionError(
                "a component's sum of squares lost its precision: its rows lie too far from the origin or the "
                "prior mean for their variance. Standardise the columns (row_transform=TransformPlan(scale=True)) or "
                "give the family a mean near the rows or a larger variance."
            )
        return np.asarray(
            -0.5 * dimension * np.log(2 * np.pi * self.variance) * counts
            - 0.5 * squares / self.variance
            - 0.5 * dimension * np.log(precision * self.mean_variance)
            + 0.5 * fitted / self.variance
        )

    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        dimension, mean, precision = self.mean.shape[0], self._mean(stats), self._precision(stats)
        spread = (mean**2).sum(axis=1) + dimension / precision
        constant = -0.5 * dimension * np.log(2 * np.pi * self.variance) - 0.5 * spread / self.variance
        quadratic = np.full((stats.shape[0], 1), -0.5 / self.variance)
        return np.ascontiguousarray(np.concatenate([quadratic, mean / self.variance, constant[:, None]], axis=1).T)

    def log_predictive(self, features: Features, stats: np.ndarray) -> np.ndarray:
        """N(m_k, (s^2 + 1 / precision_k) I), with the distances from one matrix product."""
        mean, spread = self._mean(stats), self.variance + 1 / self._precision(stats)
        distance = features[:, :1] - 2 * features[:, 1:-1] @ mean.T + (mean**2).sum(axis=1)
        level = -0.5 * self.mean.shape[0] * np.log(2 * np.pi * spread)
        return np.asarray(level - 0.5 * np.maximum(distance, 0.0) / spread)

    def free_parameters(self, features: int) -> int:
        return features - 2  # the variance is known

    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        mean = self._mean(stats)
        spread = np.broadcast_to(1 / self._precision(stats)[:, None], mean.shape)
        return {"mean": (("component", "column"), mean), "mean_variance": (("component", "column"), spread)}

    def sample(self, stats: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        spread = np.sqrt(self.variance + 1 / self._precision(stats))
        mean = self._mean(stats)[components]
        return np.asarray(mean + spread[components, None] * rng.standard_normal(mean.shape))

    def _shift(self, stats: np.ndarray) -> np.ndarray:
        return np.asarray(stats[:, 1:-1] - stats[:, -1:] * self.mean)

    def _precision(self, stats: np.ndarray) -> np.ndarray:
        return np.asarray(1 / self.mean_variance + stats[:, -1] / self.variance)

    def _mean(self, stats: np.ndarray) -> np.ndarray:
        return np.asarray(self.mean + self._shift(stats) / (self.variance * self._precision(stats)[:, None]))
