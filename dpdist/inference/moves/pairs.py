"""What becomes of the evidence when two components become one, for every pair."""

from __future__ import annotations

import numpy as np

from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary

#: Pair evidences are computed in chunks of about this many numbers.
_CHUNK = 4_000_000


def pair_gains(model: Model, total: Summary) -> np.ndarray:
    """Change of A + A_alloc for every pair, (K, K), upper triangle; entropy apart, so an upper bound of the gain."""
    components = len(total.entropy)
    gains = np.full((components, components), -np.inf)
    first, second = np.triu_indices(components, 1)
    evidence = model.family.log_evidence(total.stats)
    shared = model.allocation.merge_gains(total.counts)
    step = max(1, _CHUNK // total.stats.shape[1])
    for start in range(0, len(first), step):
        a, b = first[start : start + step], second[start : start + step]
        joint = model.family.log_evidence(total.stats[a] + total.stats[b])
        gains[a, b] = joint - evidence[a] - evidence[b] + shared[a, b]
    return gains
