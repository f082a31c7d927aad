"""How many batches a lap has where nobody says, as many as pay, and how many rows a partition: so much work.

Every batch has a posterior of its own, so more batches learn more from a lap; but what a batch costs beside its rows is
to stay a small share of what its rows cost. Both are estimated, in nanoseconds of a present-day core, from what is
known before a run: results never depend on a clock. With F columns of statistics and K components, each with M
replacements that moves measure, a batch of n rows costs

    K (1 + M) F POSTERIOR + OVERHEAD       posteriors, sums of the batches' tree, what a batch costs whatever it holds
    n (K (F PRODUCT + SHARE) + F FEATURE)  products of features with coefficients and responsibilities, and the features

A partition is what one task is made of. With :data:`WORK_COMPONENTS`, or as many as a fit begins with or may have, it
is :data:`WORK_SECONDS` of work: with fewer components several make a task, with more, rows have candidates.
"""

from __future__ import annotations

import numpy as np

from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.mixture.engine import feature_columns
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.schedules.base import MOST_BATCHES
from dpdist.models.families.base import Family, Moments

#: What a batch may cost beside its rows, as a share of what its rows cost.
MOST_BESIDE = 0.1
#: Seconds that the rows of a partition are to take, under so many components.
WORK_SECONDS, WORK_COMPONENTS = 0.3, 100
#: Components of a run that nobody bounds: the more there are, the less the overhead counts.
COMPONENTS = 10
#: Replacements of each that moves measure, where there are moves.
REPLACEMENTS = 2
#: Nanoseconds: see above.
POSTERIOR, OVERHEAD, PRODUCT, SHARE, FEATURE = 30.0, 500_000.0, 0.4, 10.0, 2.0


def batches_that_pay(problem: Problem, rows: int) -> int:
    """The number of batches for so many rows."""
    most, columns = problem.model.allocation.max_components, feature_columns(problem)
    components = COMPONENTS if most is None else min(most, COMPONENTS)
    replacements = REPLACEMENTS if problem.moves and problem.schedule.moves else 0
    beside = components * (1 + replacements) * columns * POSTERIOR + OVERHEAD
    row = row_nanoseconds(components, columns)
    return max(1, min(MOST_BATCHES, int(rows * row * MOST_BESIDE / beside)))


def row_nanoseconds(components: int, columns: int) -> float:
    """What a row costs under so many components of F columns of statistics."""
    return components * (columns * PRODUCT + SHARE) + columns * FEATURE


def rows_of_work(family: Family, width: int, components: int, most: int | None, candidates: Candidates) -> int:
    """Rows that are :data:`WORK_SECONDS` of work.

    Parameters
    ----------
    family : maybe without its hyperparameters
    width : columns of rows as it sees them
    components, most : that a fit begins with, and that it may have
    candidates : when rows are looked at for few components only
    """
    ones = np.ones(width)
    known = family.with_defaults(Moments(2.0, ones, ones, ones, ones, integral=True))
    typical = max(components, WORK_COMPONENTS) if most is None else min(most, max(components, WORK_COMPONENTS))
    if candidates.every > 1:
        typical = min(typical, candidates.components)
    return max(1, int(1e9 * WORK_SECONDS / row_nanoseconds(typical, known.features(ones[None]).shape[1])))
