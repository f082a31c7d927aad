"""Random divisions of some components by the values of columns.

Tables of codes, counts or answers have many arrangements whose components hold rows with certain values in several
columns, and no change of one or two components leads from one of them to a better one. So either some components are
divided anew by a decision list (:mod:`dpdist.inference.moves.conjunctions`), or the rows of one conjunction leave all
components and form a new one. Both are greedy by evidence but may use only random conditions, so that each division is
another; what results is merged as long as that gains. Source: greedy randomized adaptive search (Feo & Resende 1995).
"""

from __future__ import annotations

import numpy as np

from dpdist.inference.moves.agglomerate import merged_down
from dpdist.inference.moves.change import EMPTY
from dpdist.inference.moves.conjunctions import conditions, decision_list, evidence_of
from dpdist.inference.moves.crossing import LEAST, VALUES
from dpdist.inference.moves.sampled_rows import Arrangement, SampledRows
from dpdist.inference.moves.seeding import by_value

#: Largest number of columns that are tried at a time.
COLUMNS = 32
#: Number of random divisions, and of the best of them that are returned. Share of them that are decision lists.
TRIED, KEPT, LISTED = 8, 2, 0.6
#: Largest number of components that a decision list divides. Shares of the conditions that may be allowed in a decision
#: list and in the conjunction of rows that leave all components.
DIVIDED, IN_LISTS, IN_ONE = 5, (0.2, 0.4), (0.1, 0.3)


def redivisions(sample: SampledRows, now: Arrangement, rng: np.random.Generator) -> list[np.ndarray]:
    """Statistics (M, F) of the best arrangements found, best first; none if values recur in no column."""
    divisions = by_value(sample.points, sample.weights, COLUMNS, VALUES, LEAST, rng)
    if not divisions:
        return []
    has = conditions(divisions)
    tried = [
        _listed(sample, now, has, rng) if rng.random() < LISTED else _parted(sample, now, has, rng)
        for _ in range(TRIED)
    ]
    found = merged_down(sample, [stats[stats[:, -1] >= EMPTY] for stats in tried])
    return [each.stats for each in sorted(found, key=lambda each: -each.elbo)[:KEPT]]


def _listed(sample: SampledRows, now: Arrangement, has: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Statistics (M, F) if a random decision list divides the rows of some components."""
    number = min(len(now.stats), int(rng.integers(2, DIVIDED + 1)))
    chosen = rng.choice(len(now.stats), number, replace=False)
    parts = decision_list(sample, has, now.resp[:, chosen].sum(axis=1), float(rng.choice(IN_LISTS)), rng)
    return np.concatenate([np.delete(now.stats, chosen, axis=0), parts])


def _parted(sample: SampledRows, now: Arrangement, has: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Statistics (M, F) if the rows of a conjunction, found greedily, leave all components and form a new one."""
    share, highest, resp = float(rng.choice(IN_ONE)), -np.inf, now.resp
    while True:
        offered = has[:, rng.random(has.shape[1]) < share]
        gains = _gains_of_parting(sample, now.stats, resp, offered)
        best = int(np.argmax(gains)) if len(gains) else -1
        if best < 0 or gains[best] <= highest:
            break
        highest, resp = float(gains[best]), resp * offered[:, [best]]
    return sample.sums(np.concatenate([now.resp - resp, resp.sum(axis=1, keepdims=True)], axis=1))


def _gains_of_parting(sample: SampledRows, stats: np.ndarray, resp: np.ndarray, has: np.ndarray) -> np.ndarray:
    """(V,) evidence gained if rows that have a value form a component: those of `resp` (n, M), taken from `stats`.

    Minus infinity where none or all of these rows have the value.
    """
    rows = np.flatnonzero(resp.any(axis=1))
    features, gains, parted = sample.features[rows], np.zeros(has.shape[1]), np.zeros((has.shape[1], stats.shape[1]))
    for own, before, held in zip(stats, evidence_of(sample, stats), resp[rows].T, strict=True):
        taken = np.asarray((has[rows] * held[:, None]).T @ features)
        parted += taken
        left = own - taken
        touched = taken[:, -1] >= EMPTY
        gains[touched] -= before
        touched &= left[:, -1] >= EMPTY
        gains[touched] += evidence_of(sample, left[touched])
    some = (parted[:, -1] >= EMPTY) & (parted[:, -1] <= resp.sum() - EMPTY)
    gains[some] += evidence_of(sample, parted[some])
    gains[~some] = -np.inf
    return gains
