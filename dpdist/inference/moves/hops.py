"""Rows that go where they would fit best if their own component had not been fitted to them.

A component of few rows for its columns is so much fitted to each that a row stays where it once came to be, though
another component would take it as readily as any unseen row: variational inference, in which all rows are moved by what
the components are with them, ends there. With a row left out of its own the two are compared as they should be, and
what rows that go leave behind loses less than is gained. Source: the exchange step of Hartigan (1975), "Clustering
algorithms", with predictive densities for distances.
"""

from __future__ import annotations

import numpy as np

from dpdist.inference.moves.change import EMPTY
from dpdist.inference.moves.sampled_rows import Arrangement, SampledRows, drawn_to, left_out
from dpdist.models.families.base import dense_rows

#: Times that rows go at most, and rows that are looked at each time: those that are nearest to going.
SWEEPS, LOOKED_AT = 6, 512


def hopped(sample: SampledRows, now: Arrangement) -> np.ndarray | None:
    """Statistics (M, F) after rows of an arrangement have gone, those that would gain all at once; None if none would.

    Of a sample that is not all there is, nothing is said: a row is a smaller part of what its component really holds.
    """
    if sample.share < 1.0 or len(now.stats) < 2:
        return None
    begun = now.resp.argmax(axis=1)
    owners = begun
    for _ in range(SWEEPS):
        after = _swept(sample, owners, len(now.stats))
        if (after == owners).all():
            break
        owners = after
    return None if (owners == begun).all() else sample.owned(owners, len(now.stats))


def _swept(sample: SampledRows, owners: np.ndarray, members: int) -> np.ndarray:
    """(n,) owners after those rows have gone that have a higher predictive density elsewhere; none goes that is alone.

    A row of weight w is w such rows, of which one is left out.
    """
    family, stats, rows = sample.model.family, sample.owned(owners, members), np.arange(len(owners))
    scores = drawn_to(family, sample.features, stats)
    own, share = scores[rows, owners], np.minimum(sample.weights, 1.0)
    scores[rows, owners] = -np.inf
    nearness = scores.max(axis=1) - own
    nearness[(share < EMPTY) | (stats[owners, -1] - share < EMPTY)] = -np.inf
    asked = np.argsort(-nearness, kind="stable")[: min(LOOKED_AT, np.isfinite(nearness).sum())]
    features, by = dense_rows(sample.features[asked]), owners[asked]
    alone = left_out(family, features, stats[by], family.log_evidence(stats)[by], share[asked])
    goes = asked[scores[asked].max(axis=1) > alone]
    after = owners.copy()
    after[goes] = scores[goes].argmax(axis=1)
    return after
