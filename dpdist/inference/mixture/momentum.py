"""Momentum: in runs with moves, laps after no move was accepted go further along the change of the lap before.

Runs without moves are plain memoized or batch inference, lap by lap as published. So are those with look-ahead, where a
visit cannot be repeated at once, and those with large batch summaries, whose total is not on the coordinator.

Where clusters overlap, coordinate ascent converges linearly, by a small part of the way in each lap. So the posterior
of a lap is extrapolated along the change since the previous lap end, with Nesterov's weights, which grow from lap to
lap. Extrapolated are the coefficients of the log probabilities: any real numbers are valid for every family, and the
bound of what the local step returns is exact whatever it started from. A visit that lowers the bound is repeated under
the posterior that is not extrapolated, and momentum begins anew, as after every accepted move. So the bound never
falls.

Sources: Nesterov, *A method for solving the convex programming problem with convergence rate O(1/k^2)*, 1983;
Salakhutdinov & Roweis, *Adaptive overrelaxed bound optimization methods*, ICML 2003; O'Donoghue & Candès, *Adaptive
restart for accelerated gradient schemes*, 2015.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from dpdist.core.stored import Stored
from dpdist.inference.mixture.kept import MEMO_BYTES
from dpdist.models.mixture import Posterior

#: Largest weight of the last lap's change.
MOST = 0.95
#: Largest size of all batch summaries, in bytes: the bound of a total is computed before and after a visit, and the
#: totals of larger ones are not on the coordinator.
LARGEST_MEMO = MEMO_BYTES


def serves(memo_bytes: int) -> bool:
    """Whether there is momentum with batch summaries of so many bytes in all."""
    return memo_bytes <= LARGEST_MEMO


@dataclass(frozen=True, eq=False)
class Momentum:
    """The change in the last lap, by component.

    Parameters
    ----------
    laps : number of changes seen since momentum began
    last : (K, F) coefficients at the last lap end
    trend : (K, F) their change since the lap end before; zeros if `laps` is 0
    """

    laps: int
    last: Annotated[np.ndarray, Stored(("component", "feature"), "coefficients at the last lap end")]
    trend: Annotated[np.ndarray, Stored(("component", "feature"), "change of the coefficients in the last lap")]

    @classmethod
    def begun(cls, coefficients: np.ndarray) -> Momentum:
        """Momentum before any change, at a lap end with `coefficients` (K, F)."""
        return cls(0, coefficients, np.zeros_like(coefficients))

    @property
    def weight(self) -> float:
        """Nesterov's weight of the trend, (n - 1) / (n + 2) after n changes, but at most :data:`MOST`."""
        return min(MOST, max(0, self.laps - 1) / (self.laps + 2))

    def after(self, coefficients: np.ndarray, origins: np.ndarray) -> Momentum:
        """Momentum after a lap that accepted no move.

        Parameters
        ----------
        coefficients : (K, F) at the lap end
        origins : (K,) positions before the lap end of the components, whose order may have changed
        """
        return Momentum(self.laps + 1, coefficients, coefficients - self.last[origins])

    def stopped(self) -> Momentum:
        """Momentum that begins anew within a lap."""
        return Momentum.begun(self.last)

    def extrapolated(self, posterior: Posterior) -> Posterior:
        """The posterior, further along the trend."""
        if not self.weight:
            return posterior
        further = posterior.coefficients + self.weight * self.trend.T
        return replace(posterior, coefficients=np.ascontiguousarray(further, dtype=posterior.coefficients.dtype))
