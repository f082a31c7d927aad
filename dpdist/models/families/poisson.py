"""Independent counts: Poisson likelihood with a Gamma prior on each rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import gammaln, psi

from dpdist.core.checks import check_fields
from dpdist.models.families.base import (
    EACH_POSITIVE,
    Family,
    Features,
    Moments,
    Rows,
    append_ones,
    fill_zeros,
    require_counts,
    set_missing,
    vector,
)
from dpdist.models.families.multinomial import log_factorial, rising_sums_of, row_sums_of


@dataclass(frozen=True, eq=False)
class Poisson(Family):
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

    shape: Any = None
    rate: Any = None

    name = "poisson"
    accepts_sparse = True

    def __post_init__(self) -> None:
        check_fields(self, shape=EACH_POSITIVE, rate=EACH_POSITIVE)

    def with_defaults(self, moments: Moments) -> Poisson:
        shape = vector(1.0 if self.shape is None else self.shape, moments.dimension, "shape")
        filled = set_missing(replace(self, shape=shape), rate=shape / fill_zeros(np.maximum(moments.mean, 0.0)))
        return replace(filled, rate=vector(filled.rate, moments.dimension, "rate"))

    def check_moments(self, moments: Moments) -> None:
        require_counts(moments, "Poisson")

    def features(self, rows: Rows, dtype: type = np.float64) -> Features:
        return append_ones(rows, dtype)

    def log_base_measure(self, rows: Rows) -> np.ndarray:
        return -row_sums_of(rows, log_factorial)

    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        shape, rate = self.posterior(stats)
        columns = self.shape * np.log(self.rate) - gammaln(self.shape) + gammaln(shape) - shape * np.log(rate)
        evidence: np.ndarray = columns.sum(axis=1)
        return evidence

    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        shape, rate = self.posterior(stats)
        constant = -(shape / rate).sum(axis=1)
        return np.ascontiguousarray(np.concatenate([psi(shape) - np.log(rate), constant[:, None]], axis=1).T)

    def log_predictive(self, features: Features, stats: np.ndarray) -> np.ndarray:
        """A product of negative binomials over the columns, base measure apart."""
        shape, rate = self.posterior(stats)
        rows, slope = features[:, :-1], np.log(rate + 1)
        level = -(shape * np.log1p(1 / rate)).sum(axis=1)
        predictive: np.ndarray = level + rising_sums_of(rows, shape) - rows @ slope.T
        return predictive

    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        shape, rate = self.posterior(stats)
        return {"rate": (("component", "column"), shape / rate)}

    def sample(self, stats: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        shape, rate = self.posterior(stats)
        return rng.poisson(rng.gamma(shape, 1 / rate)).astype(np.float64)

    def posterior(self, stats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Shapes and rates of the Gamma posteriors, (K, D) each."""
        return self.shape + stats[:, :-1], self.rate + stats[:, -1:]
