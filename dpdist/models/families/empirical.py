"""Empirical Bayes: hyperparameters that maximise the evidence of given components (type II maximum likelihood).

Source: MacKay (1992), "Bayesian interpolation"; here over a geometric grid, by hill climbing in one hyperparameter at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dpdist.models.families.base import FamilyType

#: Ratio of adjacent grid points, and number of times each hyperparameter is optimised.
RATIO, SWEEPS = 2.0, 2


class Range(NamedTuple):
    """Search range of a hyperparameter: the initial value, and bounds."""

    start: float
    least: float
    most: float


#: Degrees of freedom in excess of those needed for a finite expected covariance: the prior covariance counts as this
#: many rows.
FREEDOM = Range(8.0, 1.0, 1024.0)
#: Number of rows that the prior mean counts as: at most one, as if each component started with one row at the overall
#: mean.
PRECISION = Range(0.125, 1e-4, 1.0)


def most_evident(posed: Callable[..., FamilyType], ranges: Sequence[Range], stats: np.ndarray) -> FamilyType:
    """The family, which `posed` makes from the hyperparameters in order, with those within `ranges` that maximise the
    evidence of components with statistics (K, F)."""
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
