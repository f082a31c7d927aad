"""Finite mixture with a symmetric Dirichlet prior on its weights, Dir(alpha/M, ..., alpha/M).

    A(N) = log Gamma(alpha) - log Gamma(alpha + sum N) + sum_k [log Gamma(alpha/M + N_k) - log Gamma(alpha/M)]

M is fixed; components without rows contribute nothing, so K may be any number up to M.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, psi

from dpdist.core.checks import COUNT, SCALE, check_fields
from dpdist.models.allocations.base import Allocation


@dataclass(frozen=True, eq=False)
class FiniteDirichlet(Allocation):
    """Symmetric Dirichlet over at most `components` components.

    Parameters
    ----------
    components : int
        M, the number of components of the prior; a fit may use fewer.
    concentration : float
        alpha > 0, the sum of the Dirichlet's parameters.
    """

    components: int
    concentration: float = 1.0

    name = "finite_dirichlet"

    def __post_init__(self) -> None:
        check_fields(self, components=COUNT, concentration=SCALE)
        SCALE.take("concentration / components", self.concentration / self.components)

    @property
    def max_components(self) -> int:  # type: ignore[override]
        """M: moves may not exceed the prior's number of components."""
        return self.components

    def log_evidence(self, counts: np.ndarray) -> np.ndarray:
        each = self.concentration / self.components
        total = gammaln(self.concentration) - gammaln(self.concentration + counts.sum(axis=-1))
        return total + (gammaln(each + counts) - gammaln(each)).sum(axis=-1)

    def log_weights(self, counts: np.ndarray) -> np.ndarray:
        each = self.concentration / self.components
        return psi(each + counts) - psi(self.concentration + counts.sum(axis=-1, keepdims=True))

    def merge_gains(self, counts: np.ndarray) -> np.ndarray:
        each = self.concentration / self.components
        alone = gammaln(each + counts)
        gains = gammaln(each + (counts[:, None] + counts)) + gammaln(each) - (alone[:, None] + alone)
        np.fill_diagonal(gains, 0.0)
        return np.asarray(gains)

    def weights(self, counts: np.ndarray) -> tuple[np.ndarray, float]:
        each = self.concentration / self.components
        total = self.concentration + counts.sum()
        return (each + counts) / total, float(each * (self.components - counts.shape[0]) / total)
