"""Dirichlet process by stick breaking, truncated to K full sticks (nested truncation).

With v_k ~ Beta(1, gamma) and w_k = v_k prod_{l<k} (1 - v_l), expected counts N give

    A(N) = sum_k [log B(1 + N_k, gamma + N_>k) + log gamma].

Sources: Blei & Jordan (2006); Hughes & Sudderth (2013), section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import betaln, gammainc, gammaincinv, logsumexp, psi

from dpdist.core.checks import COUNT, LARGEST, POSITIVE, SCALE, check_fields, whole
from dpdist.core.errors import InputError
from dpdist.models.allocations.base import Allocation, counts_after
from dpdist.models.allocations.stick_merges import stick_merge_gains

#: Smallest concentration of a grid.
LEAST = 1e-12
#: All nodes this many nats below the mode contribute less than rounding.
_NEGLIGIBLE = 45.0
#: Up to this many components, computing every pair for all nodes at once is faster than node by node.
_FEW = 24


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
        check_fields(self, concentration=SCALE, max_components=COUNT.or_none("no bound"))

    def log_evidence(self, counts: np.ndarray) -> np.ndarray:
        return _log_evidence(counts, self.concentration)

    def log_weights(self, counts: np.ndarray) -> np.ndarray:
        return _log_weights(counts, self.concentration)

    def merge_gains(self, counts: np.ndarray) -> np.ndarray:
        return stick_merge_gains(counts, self.concentration)

    def weights(self, counts: np.ndarray) -> tuple[np.ndarray, float]:
        weights, rest = _weights(counts, np.array([self.concentration]))
        return weights[0], float(rest[0])


@dataclass(frozen=True, eq=False)
class LearnedDirichletProcess(Allocation):
    """Dirichlet process whose concentration has a Gamma prior.

    The prior is represented on a fixed grid, uniform in log gamma, that covers all but 2e-7 of its mass; its mass below
    1e-12 is placed at 1e-12, where a second component is practically impossible. The concentration is then integrated
    out exactly jointly with the sticks, A(N) = log sum_j p_j exp A(N | gamma_j), a tighter bound than with a factorised
    q(gamma) q(v).

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
        check_fields(self, shape=POSITIVE, rate=POSITIVE, nodes=whole(2), max_components=COUNT.or_none("no bound"))
        grid, log_prior = _on_grid(self.shape, self.rate, self.nodes)
        object.__setattr__(self, "_grid", grid)
        object.__setattr__(self, "_log_prior", log_prior)

    def log_evidence(self, counts: np.ndarray) -> np.ndarray:
        joint = self._log_joint(counts, self._likely(counts))
        mode = joint.max(axis=-1)
        return mode + np.log(np.exp(joint - mode[..., None]).sum(axis=-1))

    def log_weights(self, counts: np.ndarray) -> np.ndarray:
        nodes = self._likely(counts, _NEGLIGIBLE - math.log(LEAST))  # log w of empty components is about -1 / gamma
        posterior, onward = self._posterior(counts, nodes), counts_after(counts)[0]
        # The sticks' psi cancel between neighbours: psi(1 + N_k) - psi(gamma + R_1) - sum_{l <= k} 1 / (gamma + R_l).
        left = onward[..., None] + self._grid[nodes]
        passed = np.cumsum(np.einsum("...kj,...j->...k", 1 / left, posterior), axis=-1)
        return np.asarray(psi(1 + counts) - np.einsum("...kj,...j->...k", psi(left[..., :1, :]), posterior) - passed)

    def merge_gains(self, counts: np.ndarray) -> np.ndarray:
        """The log of the posterior mean over gamma of exp(gain given gamma).

        The gain of a pair decreases in log gamma, with a slope between -1 and 0: one count fewer removes a term log
        gamma, and the partial sums of counts before and after the merge interlace. This bounds the contribution of each
        node in advance.
        """
        if len(counts) <= _FEW:
            return super().merge_gains(counts)
        joint, logs = self._log_joint(self.in_order(counts)), np.log(self._grid)
        mode = int(joint.argmax())
        highest = stick_merge_gains(counts, self._grid[mode])
        mean = np.zeros_like(highest)
        for node in np.flatnonzero(joint + np.abs(logs - logs[mode]) > joint[mode] - _NEGLIGIBLE):
            mean += np.exp(joint[node] - joint[mode] + stick_merge_gains(counts, self._grid[node]) - highest)
        gains: np.ndarray = highest + np.log(mean) - logsumexp(joint - joint[mode])
        np.fill_diagonal(gains, 0.0)
        return gains

    def weights(self, counts: np.ndarray) -> tuple[np.ndarray, float]:
        posterior = self._posterior(counts)
        weights, rest = _weights(counts, self._grid)
        return posterior @ weights, float(posterior @ rest)

    def expected_concentration(self, counts: np.ndarray) -> float:
        """Posterior mean of the concentration given `counts` (K,)."""
        return float(self._posterior(counts) @ self._grid)

    def plug_in(self, counts: np.ndarray) -> DirichletProcess:
        return DirichletProcess(self.expected_concentration(counts), self.max_components)

    def _log_joint(self, counts: np.ndarray, nodes: slice = slice(None)) -> np.ndarray:
        """log p_j + A(N | gamma_j) at some nodes, (..., J), with one logarithm per component and node.

        The Gamma functions of adjacent sticks cancel, so up to terms that do not depend on gamma

            A(N | gamma) = K log gamma + log B(gamma, 1 + R_1) - sum_{k > 1} log(gamma + R_k),  R_k = N_>=k;

        these terms follow from A(N | 1).
        """
        grid, (onward, _) = self._grid[nodes], counts_after(counts)
        whole, later = onward[..., :1], onward[..., None, 1:]
        own = counts.shape[-1] * np.log(grid) + betaln(grid, 1 + whole) - np.log(grid[:, None] + later).sum(axis=-1)
        at_one = betaln(1.0, 1 + whole) - np.log1p(later).sum(axis=-1)
        return _log_evidence(counts, 1.0)[..., None] + (own - at_one) + self._log_prior[nodes]

    def _likely(self, counts: np.ndarray, below: float = _NEGLIGIBLE) -> slice:
        """The nodes outside of which the posterior is `below` nats under its mode for all of `counts` (..., K).

        Except for the first node, which may hold a point mass, the joint density is log-concave in log gamma. So it has
        one mode, within a stride of the best of the sampled nodes, and stays negligible beyond a node where it is.
        """
        stride = max(1, math.isqrt(self.nodes // 2))
        joint = self._log_joint(counts, slice(None, None, stride)).reshape(-1, len(self._grid[::stride]))
        near = (joint > joint.max(axis=1, keepdims=True) - below).any(axis=0)
        near[1 + joint[:, 1:].argmax(axis=1)] = True
        kept = stride * np.flatnonzero(near)
        return slice(max(0, kept[0] - stride), kept[-1] + stride + 1)

    def _posterior(self, counts: np.ndarray, nodes: slice = slice(None)) -> np.ndarray:
        joint = self._log_joint(counts, nodes)
        shares = np.exp(joint - joint.max(axis=-1, keepdims=True))  # logsumexp would keep the rounding of large numbers
        return np.asarray(shares / shares.sum(axis=-1, keepdims=True))


def _on_grid(shape: float, rate: float, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Grid points of a Gamma prior, uniform in log scale, and their log probabilities, (nodes,) each."""
    low, high = _ends(shape, rate)
    grid = np.exp(np.linspace(np.log(max(low, LEAST)), np.log(high), nodes))
    logs = shape * np.log(grid) - rate * grid
    if low >= LEAST:
        return grid, logs - logsumexp(logs)
    below = gammainc(shape, rate * LEAST)
    logs[0] -= np.log(2)  # the first point has half a step above it, and the mass below
    logs += np.log1p(-below) - logsumexp(logs)
    logs[0] = np.logaddexp(logs[0], np.log(below))
    return grid, logs


def _ends(shape: float, rate: float) -> tuple[float, float]:
    """Range that holds all but 2e-7 of a Gamma prior's mass; raises :class:`InputError` if it reaches too high."""
    with np.errstate(over="ignore"):
        low, high = gammaincinv(shape, [1e-7, 1 - 1e-7]) / rate
    if not LEAST < high <= LARGEST:
        raise InputError(
            f"shape and rate should keep the concentration between {LEAST:g} and {LARGEST:g}; the Gamma prior with "
            f"shape {shape!r} and rate {rate!r} reaches up to {high:g}."
        )
    return float(low), float(high)


def _log_evidence(counts: np.ndarray, concentration: float | np.ndarray) -> np.ndarray:
    _, beyond = counts_after(counts)
    sticks = betaln(1 + counts, concentration + beyond) + np.log(concentration)
    return sticks.sum(axis=-1)


def _log_weights(counts: np.ndarray, concentration: float) -> np.ndarray:
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
