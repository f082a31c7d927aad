"""Default number of batches per lap, and default number of rows per partition.

Every batch has its own posterior, so more batches learn more per lap; but the fixed cost of a batch should be a small
share of the cost of its rows. Both costs are estimated in nanoseconds of a present-day core, from what is known before
a run: results never depend on a clock. With F columns of statistics and K components, each with M replacements that
moves measure, a batch of n rows costs

    K (1 + M) F POSTERIOR + OVERHEAD       posteriors, sums of the batches' tree, and a fixed cost per batch
    n (K (F PRODUCT + SHARE) + F FEATURE)  products of features with coefficients and responsibilities, and the features

A partition is the input of one task. Its rows are :data:`WORK_SECONDS` of work with :data:`WORK_COMPONENTS` components,
or with the initial or allowed number of components. With fewer components, one task processes several partitions; with
more, the local step uses candidates.
"""

from __future__ import annotations

import numpy as np

from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.mixture.engine import feature_columns
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.schedules.base import MOST_BATCHES
from dpdist.models.families.base import Family, Moments

#: Largest fixed cost of a batch, as a share of the cost of its rows.
MOST_BESIDE = 0.1
#: Seconds of work on the rows of a partition, with that many components.
WORK_SECONDS, WORK_COMPONENTS = 0.3, 100
#: Components assumed for a run without a limit: the more there are, the less the overhead counts.
COMPONENTS = 10
#: Replacements per component that moves measure, if there are moves.
REPLACEMENTS = 2
#: Nanoseconds; see the module docstring.
POSTERIOR, OVERHEAD, PRODUCT, SHARE, FEATURE = 30.0, 500_000.0, 0.4, 10.0, 2.0


def batches_that_pay(problem: Problem, rows: int) -> int:
    """The default number of batches for `rows` rows."""
    most, columns = problem.model.allocation.max_components, feature_columns(problem)
    components = COMPONENTS if most is None else min(most, COMPONENTS)
    replacements = REPLACEMENTS if problem.moves and problem.schedule.moves else 0
    beside = components * (1 + replacements) * columns * POSTERIOR + OVERHEAD
    row = row_nanoseconds(components, columns)
    return max(1, min(MOST_BATCHES, int(rows * row * MOST_BESIDE / beside)))


def row_nanoseconds(components: int, columns: int) -> float:
    """Cost of a row with `components` components and F columns of statistics."""
    return components * (columns * PRODUCT + SHARE) + columns * FEATURE


def rows_of_work(family: Family, width: int, components: int, most: int | None, candidates: Candidates) -> int:
    """Number of rows that are :data:`WORK_SECONDS` of work.

    Parameters
    ----------
    family : its hyperparameters may be unset
    width : columns of the prepared rows
    components, most : initial and largest number of components
    candidates : when the local step uses only a few components per row
    """
    ones = np.ones(width)
    known = family.with_defaults(Moments(2.0, ones, ones, ones, ones, integral=True))
    typical = max(components, WORK_COMPONENTS) if most is None else min(most, max(components, WORK_COMPONENTS))
    if candidates.every > 1:
        typical = min(typical, candidates.components)
    return max(1, int(1e9 * WORK_SECONDS / row_nanoseconds(typical, known.features(ones[None]).shape[1])))
