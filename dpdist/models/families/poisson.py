"""Independent counts: Poisson likelihood with a Gamma prior on each rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, psi

from dpdist.models.families.base import Features, LinearFamily, Moments, Rows, fill_zeros
from dpdist.models.families.multinomial import log_factorial, rising_sums_of, row_sums_of
from dpdist.models.families.support import COUNTS
from dpdist.models.hyperparameters import EachCount, EachPositive, filled


@dataclass(frozen=True, eq=False)
class Poisson(LinearFamily):
    """Independent Poisson columns; rows may be SciPy CSR.

    Parameters
    ----------
    shape : float or (D,), optional
        Shape of the Gamma prior. Default: 1.
    rate : float or (D,), optional
        Rate of the Gamma prior, whose mean is shape / rate. Default: shape / the data's mean.

    Notes
    -----
    Statistics: x, 1; F = D + 1. Base measure: -sum log x!.
    """

    shape: EachCount = EachCount()
    rate: EachPositive = EachPositive()

    name = "poisson"
    support = COUNTS

    def with_defaults(self, moments: Moments) -> Poisson:
        shaped = filled(self, moments.dimension, shape=1.0)
        return filled(shaped, moments.dimension, rate=shaped.shape / fill_zeros(np.maximum(moments.mean, 0.0)))

    def log_base_measure(self, rows: Rows) -> np.ndarray:
        return -row_sums_of(rows, log_factorial)

    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        shape, rate = self.posterior(stats)
        columns = self.shape * np.log(self.rate) - gammaln(self.shape) + gammaln(shape) - shape * np.log(rate)
        return np.asarray(columns.sum(axis=1))

    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        shape, rate = self.posterior(stats)
        constant = -(shape / rate).sum(axis=1)
        return np.ascontiguousarray(np.concatenate([psi(shape) - np.log(rate), constant[:, None]], axis=1).T)

    def log_predictive(self, features: Features, stats: np.ndarray) -> np.ndarray:
        """A product of negative binomials over the columns, without the base measure."""
        shape, rate = self.posterior(stats)
        rows, slope = features[:, :-1], np.log(rate + 1)
        level = -(shape * np.log1p(1 / rate)).sum(axis=1)
        return np.asarray(level + rising_sums_of(rows, shape) - rows @ slope.T)

    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        shape, rate = self.posterior(stats)
        return {"rate": (("component", "column"), shape / rate)}

    def sample(self, stats: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        shape, rate = self.posterior(stats)
        rates = rng.gamma(shape[components], 1 / rate[components])
        return np.asarray(rng.poisson(rates), dtype=np.float64)

    def posterior(self, stats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Shapes and rates of the Gamma posteriors, (K, D) each."""
        return self.shape + stats[:, :-1], self.rate + stats[:, -1:]
