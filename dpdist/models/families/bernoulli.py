"""Binary columns: Bernoulli likelihood with a Beta prior on each probability."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, psi

from dpdist.models.families.base import Features, LinearFamily, Moments
from dpdist.models.families.support import BITS
from dpdist.models.hyperparameters import EachCount, filled


@dataclass(frozen=True, eq=False)
class Bernoulli(LinearFamily):
    """Independent binary columns; rows may be SciPy CSR.

    Parameters
    ----------
    ones, zeros : float or (D,), optional
        Parameters of the Beta prior, its counts of ones and of zeros per column. Default: 0.5 each.

    Notes
    -----
    Statistics: x, 1; F = D + 1.
    """

    ones: EachCount = EachCount()
    zeros: EachCount = EachCount()

    name = "bernoulli"
    support = BITS

    def with_defaults(self, moments: Moments) -> Bernoulli:
        return filled(self, moments.dimension, ones=0.5, zeros=0.5)

    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        ones, zeros = self.posterior(stats)
        return np.asarray((betaln(ones, zeros) - betaln(self.ones, self.zeros)).sum(axis=1))

    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        ones, zeros = self.posterior(stats)
        constant = (psi(zeros) - psi(ones + zeros)).sum(axis=1)
        return np.ascontiguousarray(np.concatenate([psi(ones) - psi(zeros), constant[:, None]], axis=1).T)

    def log_predictive(self, features: Features, stats: np.ndarray) -> np.ndarray:
        """Bernoulli with the posterior mean of each probability, which is linear in the row."""
        ones, zeros = self.posterior(stats)
        constant = (np.log(zeros) - np.log(ones + zeros)).sum(axis=1)
        return np.asarray(features[:, :-1] @ (np.log(ones) - np.log(zeros)).T + constant)

    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        ones, zeros = self.posterior(stats)
        return {"probability": (("component", "column"), ones / (ones + zeros))}

    def sample(self, stats: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        ones, zeros = self.posterior(stats)
        chances = (ones / (ones + zeros))[components]
        return np.asarray((rng.random(chances.shape) < chances).astype(np.float64))

    def posterior(self, stats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Counts of ones and of zeros including the prior's, (K, D) each."""
        hits = stats[:, :-1]
        # Rounding may make a count of zeros slightly negative.
        return self.ones + hits, self.zeros + np.maximum(stats[:, -1:] - hits, 0.0)
