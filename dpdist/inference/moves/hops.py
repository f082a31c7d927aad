"""Single rows that move to another component, if it predicts them better than their own component without them.

A component with few rows for its number of columns fits each of them so closely that a row stays where it is, although
another component would take it as readily as an unseen row. Variational inference updates all rows under posteriors
that include them, so it converges there. Leaving a row out of its own component makes the comparison fair; the rows
that remain lose less than is gained. Source: the exchange step of Hartigan (1975), "Clustering algorithms", with
predictive densities instead of distances.
"""

from __future__ import annotations

import numpy as np

from dpdist.inference.moves.change import EMPTY
from dpdist.inference.moves.sampled_rows import Arrangement, SampledRows, drawn_to, left_out
from dpdist.models.families.base import dense_rows

#: Largest number of sweeps, and of rows examined in each: those closest to moving.
SWEEPS, LOOKED_AT = 6, 512


def hopped(sample: SampledRows, now: Arrangement) -> np.ndarray | None:
    """Statistics (M, F) after repeated sweeps in which rows move; None if no row moves.

    Also None if the sample is not the whole data of its components: a row is a smaller part of what its component holds
    in full, so leaving it out says little.
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
    """(n,) owners after rows with a higher predictive density elsewhere have moved; a row alone stays.

    A row of weight w counts as w equal rows, of which one is left out.
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
