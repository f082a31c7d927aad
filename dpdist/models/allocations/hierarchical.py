"""Global weights of a hierarchical Dirichlet process, with Beta posteriors on the global sticks.

    beta_k = u_k prod_{l<k} (1 - u_l),  u_k ~ Beta(1, gamma)
    pi_j ~ Dir(alpha beta_1, ..., alpha beta_K, alpha beta_rest)

The cumulant of pi_j's prior is replaced by its lower bound

    log Gamma(alpha) - sum_k log Gamma(alpha beta_k)  >=  K log alpha + sum_{k<=K+1} log beta_k,

so the bound on the data depends on q(u_k) = Beta(a_k, b_k) through closed-form expectations. It is a bound on the same
evidence for every K, and a topic without tokens never raises it.

Source: Hughes, Kim & Sudderth, Reliable and scalable variational inference for the hierarchical Dirichlet process,
AISTATS 2015, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.core.checks import SCALE, check_fields
from dpdist.core.errors import PrecisionError
from dpdist.kernels.sticks import climb_sticks, multiplier_of, stick_bound

#: Largest number of Newton steps; a few suffice.
_MOST = 200


@dataclass(frozen=True, eq=False)
class Sticks:
    """q(u_k) = Beta(first_k, second_k), each (K,)."""

    first: np.ndarray
    second: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        """E[beta], (K + 1,); the last entry is the mass of all topics not in use."""
        means = self.first / (self.first + self.second)
        left = np.cumprod(np.append(1.0, 1 - means))
        return np.append(means, 1.0) * left


@dataclass(frozen=True)
class HierarchicalDirichletProcess:
    """How documents share topics.

    Parameters
    ----------
    concentration : float
        gamma > 0 of the global weights; larger values expect more topics.
    document_concentration : float
        alpha > 0; larger values keep documents' proportions closer to the global weights.
    """

    concentration: float = 1.0
    document_concentration: float = 0.5

    def __post_init__(self) -> None:
        check_fields(self, concentration=SCALE, document_concentration=SCALE)

    def value(self, sticks: Sticks, log_pi: np.ndarray, documents: float) -> float:
        """Contribution of the global sticks to the bound, in nats.

        Parameters
        ----------
        sticks : of K topics
        log_pi : (K + 1,) sums over documents of E log pi_jk
        documents : their number
        """
        topics = len(sticks.first)
        pull = self.document_concentration * np.asarray(log_pi, dtype=np.float64)
        ones, zeros = self._coefficients(topics, documents)
        bound = stick_bound(sticks.first, sticks.second, ones, zeros, pull)
        constant = topics * (documents * np.log(self.document_concentration) + np.log(self.concentration))
        return float(bound + constant)

    def sticks(self, log_pi: np.ndarray, documents: float) -> Sticks:
        """The sticks that maximise :meth:`value`, by Newton's method from a start that depends on the arguments alone.

        Raises
        ------
        PrecisionError
            If there is no finite optimum.
        """
        near = self.approximate_sticks(log_pi, documents)
        ones, zeros = self._coefficients(len(log_pi) - 1, documents)
        pull = self.document_concentration * np.asarray(log_pi, dtype=np.float64)
        if not climb_sticks(near.first, near.second, ones, zeros, pull, _MOST):
            raise PrecisionError(
                f"the global weights have no finite optimum under concentration={self.concentration:g} and "
                f"document_concentration={self.document_concentration:g}; choose values closer to 1."
            )
        return near

    def approximate_sticks(self, log_pi: np.ndarray, documents: float) -> Sticks:
        """A fast approximation of :meth:`sticks`.

        It uses the weights that maximise ``documents * sum_k log beta_k + alpha beta . log_pi``. With many documents
        this is nearly the bound, and each weight is 1 / (lambda - alpha log_pi_k / documents), with the lambda for
        which the weights sum to one.
        """
        ones, zeros = self._coefficients(len(log_pi) - 1, documents)
        if documents <= 0:
            return Sticks(ones, zeros)
        weights = 1 / (self._multiplier(log_pi, documents) - self.document_concentration * log_pi / documents)
        means = weights[:-1] / np.cumsum(weights[::-1])[::-1][:-1]
        return Sticks(means * (ones + zeros), (1 - means) * (ones + zeros))

    def union_gains(self, log_pi: np.ndarray, documents: float, pairs: np.ndarray, unions: np.ndarray) -> np.ndarray:
        """Approximate change of :meth:`value` if two topics are merged, (P,).

        Lambda is that of all topics, corrected by one Newton step, and one stick more costs about log(documents) nats.

        Parameters
        ----------
        log_pi, documents : as in :meth:`value`
        pairs : (P, 2) topics
        unions : (P,) sums over documents of E log pi of the merged topics
        """
        if documents <= 0:
            return np.zeros(len(pairs))
        multiplier, alpha = self._multiplier(log_pi, documents), self.document_concentration
        weights = 1 / (multiplier - alpha * log_pi / documents)
        union = 1 / np.maximum(multiplier - alpha * unions / documents, 1.0)  # a weight is at most one
        apart = weights[pairs]
        excess = union - apart.sum(axis=1)
        squares = (weights**2).sum() - (apart**2).sum(axis=1) + union**2
        gains = documents * (1 + np.log(union) - np.log(apart).sum(axis=1) - excess**2 / (2 * squares))
        return gains - documents * np.log(alpha) - np.log(self.concentration) + np.log(documents)

    def _multiplier(self, log_pi: np.ndarray, documents: float) -> float:
        """The lambda for which the weights sum to one."""
        pull = -self.document_concentration * log_pi / documents
        least = float(pull.min())
        return float(multiplier_of(pull - least)) - least

    def _coefficients(self, topics: int, documents: float) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients of E log u_k and of E log (1 - u_k), without those of q's own densities."""
        later = np.arange(topics, 0, -1.0)
        return np.full(topics, documents + 1.0), documents * later + self.concentration
