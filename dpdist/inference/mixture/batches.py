"""How many batches a lap has where nobody says: as many as pay.

Every batch has a posterior of its own, so more batches learn more from a lap; but what a batch costs beside its rows is
to stay a small share of what its rows cost. Both are estimated, in nanoseconds of a present-day core, from what is
known before a run: results never depend on a clock. With F columns of statistics and K components, each with M
replacements that moves measure, a batch of n rows costs

    K (1 + M) F POSTERIOR + OVERHEAD       posteriors, sums of the batches' tree, what a batch costs whatever it holds
    n (K (F PRODUCT + SHARE) + F FEATURE)  products of features with coefficients and responsibilities, and the features
"""

from __future__ import annotations

from dpdist.inference.mixture.engine import feature_columns
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.schedules.base import MOST_BATCHES

#: What a batch may cost beside its rows, as a share of what its rows cost.
MOST_BESIDE = 0.1
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
    row = components * (columns * PRODUCT + SHARE) + columns * FEATURE
    return max(1, min(MOST_BATCHES, int(rows * row * MOST_BESIDE / beside)))
