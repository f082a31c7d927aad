"""Point estimates of the global weights of a hierarchical Dirichlet process.

    beta_k = u_k prod_{l<k} (1 - u_l),  u_k ~ Beta(1, gamma)
    pi_j ~ Dir(alpha beta_1, ..., alpha beta_K, alpha beta_rest)

The prior density is that of the first K *masses* beta_1, ..., beta_K, not of the sticks. Including the Jacobian it is,
with R_k = 1 - beta_1 - ... - beta_k,

    p(beta_1, ..., beta_K) = gamma^K R_K^(gamma - 1) / (R_1 ... R_{K-1}).

Densities of different numbers K of masses cannot be compared: over a whole corpus, an empty topic changes the density
by log gamma - log R_K, which may be positive.

Sources: Liang, Petrov, Jordan & Klein, The infinite PCFG using hierarchical Dirichlet processes, EMNLP 2007, section
3.4; Bryant & Sudderth, Truly nonparametric online variational inference for hierarchical Dirichlet processes, NeurIPS
2012, section 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # imports scipy.optimize, which is slow, on first use
from scipy.special import gammaln, polygamma, psi

from dpdist.core.errors import InputError, PrecisionError
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess

#: Stopping criteria of L-BFGS, far below differences that affect a bound.
_EFFORT = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-11}
_REACH = 20.0  # bound on the change of a log weight; no search reaches it
_LEAST = 1e-300  # used for -log beta_rest if beta_rest is 1


@dataclass(frozen=True)
class PointWeights:
    """The objective of K + 1 positive masses that sum to one; the last is that of all topics not in use.

    Parameters
    ----------
    process : how documents share topics
    """

    process: HierarchicalDirichletProcess

    def log_density(self, weights: np.ndarray) -> float:
        """log p(beta_1, ..., beta_K) of `weights` (K + 1,), in nats."""
        gamma, left = self.process.concentration, _onward(weights)
        topics = len(weights) - 1
        if not topics:
            return 0.0
        return float(topics * np.log(gamma) + (gamma - 1) * np.log(left[-1]) - np.log(left[1:-1]).sum())

    def value(self, weights: np.ndarray, log_pi: np.ndarray, documents: float) -> float:
        """Contribution of the weights to the bound, in nats.

            log p(beta) + D [log Gamma(alpha) - sum_k log Gamma(alpha beta_k)] + sum_k alpha beta_k sum_j E log pi_jk

        The terms - sum_k E log pi_jk of the Dirichlet densities of pi_j under p and under q cancel.

        Parameters
        ----------
        weights : (K + 1,) masses
        log_pi : (K + 1,) sums over documents of E log pi_jk
        documents : D, their number
        """
        prior = self.process.document_concentration * weights
        cumulant = gammaln(self.process.document_concentration) - gammaln(prior).sum()
        return float(self.log_density(weights) + documents * cumulant + prior @ log_pi)

    def gradient(self, weights: np.ndarray, log_pi: np.ndarray, documents: float) -> np.ndarray:
        """Derivatives (K + 1,) of :meth:`value` with respect to the masses, without the constraint on their sum."""
        alpha, left = self.process.document_concentration, _onward(weights)
        slope: np.ndarray = alpha * (log_pi - documents * psi(alpha * weights))
        if len(weights) > 1:
            slope[-1] += (self.process.concentration - 1) / left[-1]
            slope -= np.cumsum(np.concatenate([[0.0], 1 / left[1:-1], [0.0]]))
        return slope

    def best_concentration(self, weights: np.ndarray) -> float:
        """The gamma that maximises :meth:`log_density` of weights (K + 1,), K / -log beta_rest.

        It is optimal for these K topics only. The density gains log gamma with each further topic, so it cannot compare
        different K under any gamma, including a learned one.
        """
        return (len(weights) - 1) / max(-math.log(weights[-1]), _LEAST)

    def document_slopes(self, weights: np.ndarray, log_pi: np.ndarray, documents: float) -> tuple[float, float]:
        """First and second derivative of :meth:`value` by alpha; the second is negative, so the optimum is unique."""
        prior = self.process.document_concentration * weights
        total = self.process.document_concentration
        slope = documents * (psi(total) - weights @ psi(prior)) + weights @ log_pi
        bend = documents * (polygamma(1, total) - weights**2 @ polygamma(1, prior))
        return float(slope), float(bend)

    def weights(self, log_pi: np.ndarray, documents: float) -> np.ndarray:
        """The weights (K + 1,) that maximise :meth:`value`, by L-BFGS over their logarithms (a softmax).

        The search starts at the optimum without the prior, so the result depends on the arguments alone.

        Parameters
        ----------
        log_pi : (K + 1,) sums over documents of E log pi_jk
        documents : D >= 1, their number; scale the sums of a mini-batch to the corpus first

        Raises
        ------
        InputError
            If there is less than one document: without documents the density has no maximum.
        PrecisionError
            If a sum or the optimum is not finite.
        """
        if not documents >= 1:
            raise InputError(f"global weights should be fitted to one document or more; got {documents!r}.")
        if not np.isfinite(log_pi).all():
            raise PrecisionError(
                "sums of E log pi should be finite; got NaN or infinity. Check that all counts are finite."
            )
        scale = documents * len(log_pi)

        def negative(x: np.ndarray) -> tuple[float, np.ndarray]:
            weights = _softmax(x)
            slope = weights * self.gradient(weights, log_pi, documents)
            return -self.value(weights, log_pi, documents) / scale, (weights * slope.sum() - slope) / scale

        start = np.log(self._without_prior(log_pi / documents))
        bounds = np.stack([start - _REACH, start + _REACH], axis=1)
        found = scipy.optimize.minimize(negative, start, jac=True, method="L-BFGS-B", bounds=bounds, options=_EFFORT)
        weights = _softmax(found.x)
        if not (np.isfinite(found.fun) and (weights > 0).all()):
            alpha, gamma = self.process.document_concentration, self.process.concentration
            raise PrecisionError(
                f"the global weights have no finite optimum under concentration={gamma:g} and "
                f"document_concentration={alpha:g} ({found.message}); choose values closer to 1."
            )
        return weights

    def _without_prior(self, mean_log_pi: np.ndarray) -> np.ndarray:
        """The maximum without log p(beta).

        It solves psi(alpha beta_k) = E log pi_k + shift, with the shift for which the weights sum to one.
        """
        alpha = self.process.document_concentration
        pull = mean_log_pi - mean_log_pi.max()
        least, most = float(psi(alpha / len(pull))), float(psi(alpha))
        shift = scipy.optimize.brentq(
            lambda x: _inverse_psi(pull + x).sum() - alpha, least - 1e-9, most + 1e-9, xtol=1e-13
        )
        prior = _inverse_psi(pull + shift)
        return np.asarray(prior / prior.sum())


def _onward(weights: np.ndarray) -> np.ndarray:
    """Sums of the weights from each one on, (K + 1,)."""
    return np.asarray(np.cumsum(weights[::-1])[::-1])


def _softmax(x: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.exp(x - x.max())
    return np.asarray(weights / weights.sum())


def _inverse_psi(values: np.ndarray) -> np.ndarray:
    """x with psi(x) = value, by Newton's method. Source: Minka, Estimating a Dirichlet distribution (2000)."""
    x: np.ndarray = np.where(values >= -2.22, np.exp(np.minimum(values, 700.0)) + 0.5, -1 / (values - psi(1.0)))
    for _ in range(6):
        x = x - (psi(x) - values) / polygamma(1, x)
    return x
