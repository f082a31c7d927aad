"""Parts that a person may write: a likelihood, one without a conjugate prior, an allocation, a merge test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import gammaln, psi

from dpdist.inference.sva import MergeTest
from dpdist.models.allocations import Allocation, DirichletProcess
from dpdist.models.families import Family, Moments
from dpdist.models.likelihoods import Likelihood


@dataclass(frozen=True, eq=False)
class Exponential(Family):
    """Waiting times, independent columns, a Gamma prior on each rate."""

    shape: float = 2.0
    rate: Any = None
    columns: tuple[str, ...] = ()

    name = "exponential"

    def with_defaults(self, moments: Moments) -> Exponential:
        return self if self.rate is not None else replace(self, rate=self.shape * moments.mean)

    def features(self, rows: np.ndarray, dtype: type = np.float64) -> np.ndarray:
        return np.concatenate([rows, np.ones((len(rows), 1))], axis=1).astype(dtype)

    def posterior(self, stats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.shape + stats[:, -1:], self.rate + stats[:, :-1]

    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        shape, rate = self.posterior(stats)
        columns = gammaln(shape) - gammaln(self.shape) + self.shape * np.log(self.rate) - shape * np.log(rate)
        return columns.sum(axis=1)

    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        shape, rate = self.posterior(stats)
        constant = (psi(shape) - np.log(rate)).sum(axis=1, keepdims=True)
        return np.ascontiguousarray(np.concatenate([-shape / rate, constant], axis=1).T)

    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        shape, rate = self.posterior(stats)
        return {"waiting_time": (("component", "column"), rate / (shape - 1))}

    def sample(self, stats: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        shape, rate = self.posterior(stats)
        return rng.exponential(rate / rng.gamma(shape, size=rate.shape))


@dataclass(frozen=True, eq=False)
class GeometricSticks(Allocation):
    """Each component takes the same share of what those before it left."""

    share: float = 0.5

    name = "geometric_sticks"
    ordered = True

    def logs(self, components: int) -> np.ndarray:
        return np.log(self.share) + np.arange(components) * np.log1p(-self.share)

    def log_evidence(self, counts: np.ndarray) -> np.ndarray:
        return counts @ self.logs(counts.shape[-1])

    def log_weights(self, counts: np.ndarray) -> np.ndarray:
        return self.logs(len(counts))

    def weights(self, counts: np.ndarray) -> tuple[np.ndarray, float]:
        weights = np.exp(self.logs(len(counts)))
        return weights, float(1 - weights.sum())

    def plug_in(self, counts: np.ndarray) -> DirichletProcess:
        return DirichletProcess(1 / self.share - 1)


@dataclass(frozen=True, eq=False)
class KnownSpread(Likelihood):
    """Normal columns of one known spread about a mean with a wide normal prior."""

    spread: float = 1.0
    width: float = 10.0
    draws: int = 200

    name = "known_spread"

    def with_defaults(self, moments: Moments) -> KnownSpread:
        return self

    def log_likelihood(self, observed: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        gaps = (observed[:, None] - parameters) / self.spread
        return -0.5 * (gaps**2).sum(axis=2) - observed.shape[1] * np.log(self.spread * np.sqrt(2 * np.pi))

    def gradient(self, observed: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        return (observed - parameters) / self.spread**2

    def log_prior_gradient(self, parameters: np.ndarray) -> np.ndarray:
        return -parameters / self.width**2

    def prior_draws(self, rng: np.random.Generator, count: int, columns: int) -> np.ndarray:
        return rng.normal(0.0, self.width, (count, columns))

    def describe(self, parameters: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        return {"place": (("component", "column"), parameters)}

    def sample(self, parameters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.normal(parameters, self.spread)


@dataclass(frozen=True)
class Never(MergeTest):
    """No pair should become one."""

    reason: str = "because"

    def pairs(self, table: np.ndarray, *_: Any) -> np.ndarray:
        return np.zeros((0, 2), dtype=np.intp)
