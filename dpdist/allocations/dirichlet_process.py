"""Dirichlet process by stick breaking, truncated to K full sticks (nested truncation).

With v_k ~ Beta(1, gamma) and w_k = v_k prod_{l<k} (1 - v_l), expected counts N give

    A(N) = sum_k [log B(1 + N_k, gamma + N_>k) + log gamma].

Sources: Blei & Jordan (2006); Hughes & Sudderth (2013), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import betaln, gammaincinv, logsumexp, psi

from dpdist.allocations.base import Allocation, counts_after
from dpdist.errors import InputError


@dataclass(frozen=True, eq=False)
class DirichletProcess(Allocation):
    """Dirichlet process of fixed concentration.

    Parameters
    ----------
    concentration : float
        gamma > 0; larger values expect more components.
    max_components : int, optional
        Largest number of components that moves may reach; default: no bound.
    """

    concentration: float = 1.0
    max_components: int | None = None

    name = "dirichlet_process"
    ordered = True

    def __post_init__(self) -> None:
        _require_positive(self.concentration, "concentration")

    def log_evidence(self, counts: np.ndarray) -> np.ndarray:
        return _log_evidence(counts, self.concentration)

    def log_weights(self, counts: np.ndarray) -> np.ndarray:
        return _log_weights(counts, self.concentration)

    def weights(self, counts: np.ndarray) -> tuple[np.ndarray, float]:
        weights, rest = _weights(counts, np.array([self.concentration]))
        return weights[0], float(rest[0])


@dataclass(frozen=True, eq=False)
class LearnedDirichletProcess(Allocation):
    """Dirichlet process whose concentration has a Gamma prior.

    The prior is held on a fixed grid, even in log gamma, that spans all but 2e-7 of its mass; the
    concentration is then integrated out exactly jointly with the sticks,
    A(N) = log sum_j p_j exp A(N | gamma_j), a tighter bound than a factorised q(gamma) q(v).

    Parameters
    ----------
    shape, rate : float
        Gamma(shape, rate) prior, mean shape / rate.
    nodes : int
        Number of grid points.
    max_components : int, optional
        Largest number of components that moves may reach; default: no bound.
    """

    shape: float = 1.0
    rate: float = 0.1
    nodes: int = 256
    max_components: int | None = None
    _grid: np.ndarray = field(init=False, repr=False)
    _log_prior: np.ndarray = field(init=False, repr=False)

    name = "learned_dirichlet_process"
    ordered = True

    def __post_init__(self) -> None:
        _require_positive(self.shape, "shape")
        _require_positive(self.rate, "rate")
        if self.nodes < 2:
            raise InputError(f"nodes should be at least 2; got {self.nodes}.")
        ends = gammaincinv(self.shape, [1e-7, 1 - 1e-7]) / self.rate
        least, most = np.log(np.maximum(ends, 1e-12))
        grid = np.exp(np.linspace(least, most, self.nodes))
        log_prior = self.shape * np.log(grid) - self.rate * grid
        object.__setattr__(self, "_grid", grid)
        object.__setattr__(self, "_log_prior", log_prior - logsumexp(log_prior))

    def log_evidence(self, counts: np.ndarray) -> np.ndarray:
        evidence: np.ndarray = logsumexp(self._log_joint(counts), axis=-1)
        return evidence

    def log_weights(self, counts: np.ndarray) -> np.ndarray:
        expected: np.ndarray = self._posterior(counts) @ _log_weights(counts, self._grid[:, None])
        return expected

    def weights(self, counts: np.ndarray) -> tuple[np.ndarray, float]:
        posterior = self._posterior(counts)
        weights, rest = _weights(counts, self._grid)
        return posterior @ weights, float(posterior @ rest)

    def expected_concentration(self, counts: np.ndarray) -> float:
        """Posterior mean of the concentration given `counts` (K,)."""
        return float(self._posterior(counts) @ self._grid)

    def plug_in(self, counts: np.ndarray) -> DirichletProcess:
        return DirichletProcess(self.expected_concentration(counts))

    def hyperparameters(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("shape", "rate", "nodes", "max_components")}

    def _log_joint(self, counts: np.ndarray) -> np.ndarray:
        return _log_evidence(counts[..., None, :], self._grid[:, None]) + self._log_prior

    def _posterior(self, counts: np.ndarray) -> np.ndarray:
        joint = self._log_joint(counts)
        posterior: np.ndarray = np.exp(joint - logsumexp(joint))
        return posterior


def _require_positive(value: float, name: str) -> None:
    if not (np.isfinite(value) and value > 0):
        raise InputError(f"{name} should be finite and above zero; got {value!r}.")


def _log_evidence(counts: np.ndarray, concentration: float | np.ndarray) -> np.ndarray:
    _, beyond = counts_after(counts)
    sticks = betaln(1 + counts, concentration + beyond) + np.log(concentration)
    evidence: np.ndarray = sticks.sum(axis=-1)
    return evidence


def _log_weights(counts: np.ndarray, concentration: float | np.ndarray) -> np.ndarray:
    onward, beyond = counts_after(counts)
    total = psi(1 + concentration + onward)
    passed = np.cumsum(psi(concentration + beyond) - total, axis=-1)
    logs: np.ndarray = psi(1 + counts) - total
    logs[..., 1:] += passed[..., :-1]
    return logs


def _weights(counts: np.ndarray, concentration: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Posterior mean weights (M, K) and rest (M,) for M concentrations."""
    onward, beyond = counts_after(counts)
    total = 1 + concentration[:, None] + onward
    stick = (1 + counts) / total
    left = np.cumprod((concentration[:, None] + beyond) / total, axis=-1)
    weights = stick.copy()
    weights[:, 1:] *= left[:, :-1]
    return weights, left[:, -1]
