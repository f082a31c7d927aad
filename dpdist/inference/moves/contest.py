"""Candidate arrangements of a sample's rows, refined side by side while the worse ones are dropped.

An arrangement that ends higher may start lower: moving a few rows out of a component costs almost nothing at first and
never gains, while a good division often starts far below. So arrangements are compared by an extrapolation of their
bound some steps ahead, and those that stagnate below the current bound are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpdist.inference.moves.sampled_rows import STEP_GAIN, SampledRows

#: Number of further steps, each with the last step's increase, in the extrapolation that compares arrangements.
AHEAD = 5
#: Bounds are compared in steps of so many nats per row, and the first of arrangements within one step is kept, so that
#: rounding hardly ever decides.
TIE = 1e-7


class Rising(NamedTuple):
    """Statistics (M, F) of an arrangement, the bound after its last step, and the increase in that step."""

    stats: np.ndarray
    elbo: float
    rise: float

    @property
    def outlook(self) -> float:
        """The bound extrapolated :data:`AHEAD` steps; infinite for an arrangement that was not refined yet."""
        return self.elbo + AHEAD * self.rise if np.isfinite(self.rise) else np.inf


def contest(
    sample: SampledRows,
    candidates: Sequence[np.ndarray],
    stages: Sequence[tuple[int, int]],
    least: float,
    among_credible: bool = True,
) -> list[Rising]:
    """The candidates that remain after all stages, the most promising first.

    Parameters
    ----------
    sample : rows that the candidates divide
    candidates : statistics (M, F) of each; candidates with equal extrapolations keep their order
    stages : (number kept, steps) of each stage; those with the highest extrapolated bound are kept
    least : a bound; candidates that stagnate below it are dropped at once
    among_credible : whether components that only fit the sample's own rows (:meth:`SampledRows.credible`) are removed
        after the first step of each stage
    """
    still, rising = STEP_GAIN * sample.rows, [Rising(stats, -np.inf, np.inf) for stats in candidates]
    tie = TIE * sample.rows
    for kept, steps in stages:
        rising = _ranked(rising, tie)[:kept]
        for step in range(steps):
            if not rising:
                return []
            found = sample.stepped([each.stats for each in rising])
            stats = [each.stats if step or not among_credible else sample.credible(each) for each in found]
            rising = [Rising(s, a.elbo, a.elbo - b.elbo) for s, a, b in zip(stats, found, rising, strict=True)]
            rising = [each for each in rising if each.elbo >= least or each.rise >= still]
    return _ranked(rising, tie)


def _ranked(rising: Sequence[Rising], tie: float) -> list[Rising]:
    return sorted(rising, key=lambda each: -np.floor(each.outlook / tie))
