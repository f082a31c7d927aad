"""Empirical Bayes: hyperparameters under which given components have the highest evidence (type II maximum likelihood).

Source: MacKay (1992), "Bayesian interpolation"; here over a geometric grid, by climbing along one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dpdist.models.families.base import FamilyType

#: Ratio of neighbours on the grid, and how often each hyperparameter is climbed along.
RATIO, SWEEPS = 2.0, 2


class Range(NamedTuple):
    """Where a hyperparameter is looked for: from `start`, by steps of a ratio, within bounds."""

    start: float
    least: float
    most: float


#: Degrees of freedom beyond those that a finite expected covariance needs: rows that a component's spread is worth.
FREEDOM = Range(8.0, 1.0, 1024.0)
#: Rows that the prior mean is worth: one at most, as if each component began with the mean of all.
PRECISION = Range(0.125, 1e-4, 1.0)


def most_evident(posed: Callable[..., FamilyType], ranges: Sequence[Range], stats: np.ndarray) -> FamilyType:
    """The family of hyperparameters within `ranges` for which components with statistics (K, F) are most evident.

    Parameters
    ----------
    posed : the family with hyperparameters given one after the other
    """
    values = [each.start for each in ranges]

    def evidence(values: Sequence[float]) -> float:
        return float(posed(*values).log_evidence(stats).sum())

    best = evidence(values)
    for _ in range(SWEEPS):
        for place, bounds in enumerate(ranges):
            for ratio in (RATIO, 1 / RATIO):
                rose = True
                while rose and bounds.least <= values[place] * ratio <= bounds.most:
                    tried = [*values[:place], values[place] * ratio, *values[place + 1 :]]
                    level = evidence(tried)
                    rose = level > best
                    if rose:
                        values, best = tried, level
    return posed(*values)
