"""Arrangements of a sample's rows refined side by side, of which fewer and fewer go on.

What ends higher may begin lower: a few rows taken out of a component lose next to nothing at once and never gain, while
what parts it well often begins far below. So arrangements are compared by where they would be some steps later, and
those that stand still below what there is are given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpdist.inference.moves.sampled_rows import STEP_GAIN, SampledRows

#: Steps like its last one by which an arrangement is thought to go on where arrangements are compared.
AHEAD = 5
#: Nats a row by which arrangements may differ that come to the same: the first is kept, not what rounding says.
ALIKE = 1e-7


class Rising(NamedTuple):
    """An arrangement, statistics (M, F), the bound after its last step, and by how much that raised it."""

    stats: np.ndarray
    elbo: float
    rise: float

    @property
    def outlook(self) -> float:
        """The bound some steps later; of what was not refined yet it is not known."""
        return self.elbo + AHEAD * self.rise if np.isfinite(self.rise) else np.inf


def contest(
    sample: SampledRows,
    candidates: Sequence[np.ndarray],
    stages: Sequence[tuple[int, int]],
    least: float,
    among_credible: bool = True,
) -> list[Rising]:
    """Candidates that remain after some stages, the most promising first.

    Parameters
    ----------
    sample : rows that they share out
    candidates : statistics (M, F) of each; of those that promise alike the first come first
    stages : how many go on, those that would be the highest soon, and for how many steps
    least : a bound; what stands still below it is given up at once
    among_credible : whether components go that are no more than the rows of the sample they hold
    """
    still, rising = STEP_GAIN * sample.rows, [Rising(stats, -np.inf, np.inf) for stats in candidates]
    tie = ALIKE * sample.rows
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
