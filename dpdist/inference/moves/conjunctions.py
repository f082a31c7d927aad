"""Sampled rows divided by conjunctions: those with certain values in certain columns, others with others, the rest.

Where columns hold whole numbers, codes or answers, a cluster may be all rows with certain values in several columns,
which no division by one column finds. Conjunctions are found one after the other, as in a decision list (Rivest 1987),
each greedily by evidence: the value that divides off the best component, then another value among the rows that have
it, as long as that gains.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import xlogy

from dpdist.core.errors import PrecisionError
from dpdist.inference.moves.change import EMPTY
from dpdist.inference.moves.sampled_rows import SampledRows

#: Largest number of values of a column that are asked for, and of conjunctions.
COMMONEST, CONJUNCTIONS = 6, 10


def by_conjunctions(sample: SampledRows, divisions: Sequence[np.ndarray]) -> np.ndarray:
    """Statistics (M, F) of the rows of each conjunction, in the order of finding, and of all others.

    `divisions` are ranks of rows, (n,), by their values in some columns.
    """
    return decision_list(sample, conditions(divisions), sample.weights)


def conditions(divisions: Sequence[np.ndarray]) -> np.ndarray:
    """(n, V) whether a row has each of the most frequent values of each column; `divisions` are ranks (n,)."""
    return np.concatenate(
        [ranks[:, None] == np.arange(min(COMMONEST, int(ranks.max()) + 1)) for ranks in divisions], axis=1
    )


def decision_list(
    sample: SampledRows, has: np.ndarray, rest: np.ndarray, share: float = 1.0, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Statistics (M, F) of the rows of each conjunction, in the order of finding, and of all others.

    Parameters
    ----------
    has : (n, V) bool, of :func:`conditions`
    rest : (n,) weights of the rows to divide
    share : fraction of the conditions, drawn anew for each conjunction, of which it consists
    rng : of these draws; None if all conditions may be used
    """
    found = list[np.ndarray]()
    while len(found) < CONJUNCTIONS:
        among = has if rng is None else has[:, rng.random(has.shape[1]) < share]
        part = _conjunction(sample, among, rest)
        if part is None:
            break
        found.append(sample.sums(part))
        rest = rest - part
    return np.stack([*found, sample.sums(rest)])


def evidence_of(sample: SampledRows, stats: np.ndarray) -> np.ndarray:
    """(C,) log evidence of components with statistics (C, F), and about that of their weights but for a constant."""
    every = stats / sample.share
    return np.asarray(sample.model.family.log_evidence(every) + xlogy(every[:, -1], every[:, -1]))


def _conjunction(sample: SampledRows, has: np.ndarray, rest: np.ndarray) -> np.ndarray | None:
    """Weights (n,) of the rows of one conjunction among those with weights `rest`; None if none gains.

    None also if evidences of differences of statistics are lost to rounding.
    """
    every = sample.sums(rest)
    part, highest = rest, -np.inf
    try:
        together = float(evidence_of(sample, every[None])[0])
        while True:
            rows = np.flatnonzero(part)
            stats = np.asarray((has[rows] * part[rows, None]).T @ sample.features[rows])
            values = np.flatnonzero((stats[:, -1] >= EMPTY) & (stats[:, -1] <= part.sum() - EMPTY))
            if not len(values):
                break
            evidences = evidence_of(sample, stats[values]) + evidence_of(sample, every - stats[values])
            best = int(np.argmax(evidences))
            if evidences[best] <= highest:
                break
            highest, part = float(evidences[best]), part * has[:, values[best]]
    except PrecisionError:
        return None
    return part if highest > together else None
