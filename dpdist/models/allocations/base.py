"""The interface of a prior over component assignments: its log evidence as a function of expected counts."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np


class Allocation(ABC):
    """A prior over assignments, defined by the log evidence of expected counts N (K,); subclasses are dataclasses.

    As for families, ``log_evidence`` of zero counts is 0 and ``log_weights`` is its gradient, E_q[log w_k].
    """

    #: Short name, used in configurations and reports.
    name: str
    #: Whether the value depends on the order of the components.
    ordered: bool = False
    #: Largest number of components the prior allows; None for no bound.
    max_components: int | None = None

    @abstractmethod
    def log_evidence(self, counts: np.ndarray) -> np.ndarray:
        """A(N) over the last axis of `counts` (..., K): (...) float64, in nats."""

    @abstractmethod
    def log_weights(self, counts: np.ndarray) -> np.ndarray:
        """Gradient of :meth:`log_evidence` at `counts` (..., K): E_q[log w_k], (..., K)."""

    @abstractmethod
    def weights(self, counts: np.ndarray) -> tuple[np.ndarray, float]:
        """Posterior mean weights (K,) and the remaining mass of components not yet seen."""

    def in_order(self, counts: np.ndarray) -> np.ndarray:
        """`counts` (..., K) in the order of components after a lap: descending if the value depends on their order."""
        return np.sort(counts, axis=-1)[..., ::-1] if self.ordered else counts

    def merge_gains(self, counts: np.ndarray) -> np.ndarray:
        """Change of A if two components are merged and the rest reordered: (K, K), symmetric, zero on the diagonal.

        Computes A for every pair; allocations with a faster formula override this.
        """
        size, before = len(counts), self.log_evidence(self.in_order(counts))
        gains = np.zeros((size, size))
        for first in range(size - 1):
            later = np.arange(size - 1 - first)
            after = np.tile(np.delete(counts, first), (len(later), 1))
            after[later, first + later] += counts[first]
            gains[first, first + 1 :] = self.log_evidence(self.in_order(after)) - before
        return gains + gains.T

    def plug_in(self, counts: np.ndarray) -> Allocation:
        """The allocation with learned quantities fixed at their mean given `counts`, for sequential passes.

        A sequential pass uses its concentration, so the result should then be a DirichletProcess or FiniteDirichlet.
        """
        return self


def counts_after(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the counts from each component on, N_>=k, and after it, N_>k, over the last axis."""
    onward = np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1]
    beyond = np.zeros_like(onward)
    beyond[..., :-1] = onward[..., 1:]
    return onward, beyond
