"""The interface of a likelihood without a conjugate prior, for sequential passes.

A component is a point phi_k in unconstrained coordinates. A row x_i scores it by h_i(k) = log F(x_i | phi_k), scores a
new component by the log of the integral of F over the prior, and updates it by

    phi_k <- phi_k + sigma_i (n rho_i(k) grad log F(x_i | phi_k) + grad log p(phi_k)),     sigma_i = i^-kappa / n

A user-defined likelihood needs the abstract methods. It then runs in Python, one row at a time for all components, at
about half a millisecond per row; a compiled ``advance`` makes a pass fast.

Source: Lin (2013), "Online learning of nonparametric mixture models via sequential variational approximation", the part
on models without a conjugate prior.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.special import logsumexp

from dpdist.kernels.sequential import Law, add_overlaps, share_row
from dpdist.kernels.sequential_dirichlet import Steps, step_of
from dpdist.models.families.base import Moments, Rows

LikelihoodType = TypeVar("LikelihoodType", bound="Likelihood")


class Opening(NamedTuple):
    """Scores and starting points of new components, one for each row.

    Parameters
    ----------
    evidence : (n,) log of the integral of F(x_n | phi) over the prior, nats
    start : (n, P) initial parameters of a component that the row opens
    """

    evidence: np.ndarray
    start: np.ndarray


class Likelihood(ABC):
    """A likelihood with a prior; subclasses are frozen dataclasses of hyperparameters.

    Hyperparameters left at ``None`` are filled by :meth:`with_defaults`; the mathematical methods need them filled.
    Every method that takes rows must treat each row independently of the others.
    """

    #: Short name.
    name: str
    #: Number of prior draws passed to :meth:`open_components`.
    draws: int = 1000

    @abstractmethod
    def with_defaults(self: LikelihoodType, moments: Moments) -> LikelihoodType:
        """The same likelihood with missing hyperparameters derived from the data's moments."""

    @abstractmethod
    def log_likelihood(self, observed: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """log F(x_n | phi_k), base measure included, (n, K), of observed (n, Q) and parameters (K, P)."""

    @abstractmethod
    def gradient(self, observed: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Gradient of log F(x | phi_k) with respect to phi_k, (K, P), for one observed row (Q,)."""

    @abstractmethod
    def log_prior_gradient(self, parameters: np.ndarray) -> np.ndarray:
        """Gradient of the log prior density of phi, in the same coordinates, (K, P)."""

    @abstractmethod
    def prior_draws(self, rng: np.random.Generator, count: int, columns: int) -> np.ndarray:
        """Parameters drawn from the prior for rows of `columns` columns, (count, P)."""

    @abstractmethod
    def describe(self, parameters: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        """Estimates for users: name -> (dimension names, array); the first dimension is ``component``."""

    @abstractmethod
    def sample(self, parameters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """One draw from F(. | phi) for each row of parameters (n, P): (n, D)."""

    def check_moments(self, moments: Moments) -> None:  # noqa: B027 (many likelihoods take any numbers)
        """Raise :class:`InputError` if data with these moments cannot come from this likelihood."""

    def observe(self, rows: Rows) -> np.ndarray:
        """What other methods need of rows (n, D): (n, Q) float64; raises :class:`InputError` for unsupported rows."""
        return np.asarray(rows, dtype=np.float64)

    def size(self, columns: int) -> int:
        """P, the number of parameters of a component for rows of `columns` columns."""
        return columns

    def open_components(self, observed: np.ndarray, draws: np.ndarray) -> Opening:
        """Evidence of rows (n, Q) under a new component, and its starting point.

        Monte Carlo over fixed prior draws (M, P): the mean likelihood, and the likelihood-weighted mean of the draws,
        which estimates the posterior mean. If a row determines phi closely, few draws have weight; override this method
        then.
        """
        logs = self.log_likelihood(observed, draws)
        totals = logsumexp(logs, axis=1, keepdims=True)
        return Opening(
            totals[:, 0] - np.log(len(draws)), self.settle(np.einsum("nm,mp->np", np.exp(logs - totals), draws))
        )

    def precondition(self, gradient: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Steps (K, P) from gradients (K, P), for example divided by the information. Default: unchanged."""
        return gradient

    def settle(self, parameters: np.ndarray) -> np.ndarray:
        """Parameters (K, P) after a step or an average, in the form the other methods expect. Default: unchanged."""
        return parameters

    def advance(
        self,
        observed: np.ndarray,
        weights: np.ndarray,
        draws: np.ndarray,
        count: int,
        law: Law,
        steps: Steps,
        table: np.ndarray,
        overlap: np.ndarray,
    ) -> int:
        """Process rows in order, in place.

        Parameters
        ----------
        observed, weights : (n, Q) and (n,)
        draws : (M, P) from the prior
        count : present number of components
        law, steps : constants of the pass
        table : (C, P + 1) parameters and weights, C > count + n
        overlap : (C, C) sums of min(rho_a, rho_b), or (0, 0)

        Returns
        -------
        int
            New number of components; -1 if a score was not a number.
        """
        seen = steps.seen
        for row, weight in zip(observed, weights, strict=True):
            if weight > 0 and count >= 0:
                seen += weight
                now = steps._replace(seen=seen)
                count = self._take(row, weight, self.open_components(row[None], draws), count, law, now, table, overlap)
        return count

    def _take(
        self,
        row: np.ndarray,
        weight: float,
        opening: Opening,
        count: int,
        law: Law,
        steps: Steps,
        table: np.ndarray,
        overlap: np.ndarray,
    ) -> int:
        """Process one row; ``steps.seen`` includes it."""
        known = np.log(table[:count, -1]) + self.log_likelihood(row[None], table[:count, :-1])[0]
        shares, active = np.empty(count + 1), np.empty(count + 1, dtype=np.int64)
        found, opens = share_row(np.append(known, law.log_concentration + opening.evidence), count, law, shares, active)
        if found < 0:
            return -1
        table[active[:found], -1] += weight * shares[:found]
        touched = active[: found - opens]
        self._move(row, weight * shares[: found - opens], touched, steps, table)
        if opens:
            table[count, :-1] = opening.start[0]
        add_overlaps(overlap, shares, active, found, weight)
        return count + int(opens)

    def _move(self, row: np.ndarray, gained: np.ndarray, touched: np.ndarray, steps: Steps, table: np.ndarray) -> None:
        """Update the components `touched` (A,) by the weights `gained` (A,) that they gained from a row."""
        if not len(touched):
            return
        parameters, weights = table[touched, :-1], table[touched, -1]
        pairs = [step_of(steps, steps.seen, *pair) for pair in zip(weights, gained, strict=True)]
        gain, pull = np.array(pairs).T[:, :, None]
        gradient = self.gradient(row, parameters) + pull * self.log_prior_gradient(parameters)
        table[touched, :-1] = self.settle(parameters + gain * self.precondition(gradient, parameters))
