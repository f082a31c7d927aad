"""The laws of allocations."""

from __future__ import annotations

import numpy as np

from dpdist.models.allocations import Allocation
from dpdist.testing.laws import check_gradient, hold
from dpdist.testing.stored import check_stored


def check_allocation(allocation: Allocation, seed: int = 0) -> None:
    """Check an allocation, which is a prior over assignments, against the laws of allocations."""
    rng = np.random.default_rng(seed)
    size = 4 if allocation.max_components is None else min(4, allocation.max_components)
    counts = np.sort(rng.gamma(1.0, 30.0, size=size))[::-1]
    hold("the evidence of zero counts is 0", np.asarray(allocation.log_evidence(np.zeros(size))), 0.0)
    check_gradient(allocation.log_evidence, allocation.log_weights(counts)[None], counts[None])
    found = allocation.merge_gains(counts)
    hold("merge gains are changes of the log evidence", found, Allocation.merge_gains(allocation, counts))
    weights, rest = allocation.weights(counts)
    hold("weights and rest sum to 1", np.asarray(weights.sum() + rest), 1.0)
    assert (weights >= 0).all() and rest >= 0, "weights and rest are not negative"
    above = np.log(weights) + 1e-9 - allocation.log_weights(counts)
    assert (above >= 0).all(), "expected log weights are at most the logs of expected weights"
    several = np.stack([counts, rng.permutation(counts), 2 * counts])
    alone = [allocation.log_evidence(each) for each in several]
    hold("several counts at once have the evidence of each alone", allocation.log_evidence(several), alone)
    alone = [allocation.log_weights(each) for each in several]
    hold("several counts at once have the log weights of each alone", allocation.log_weights(several), alone)
    longer = np.asarray(allocation.log_evidence(np.append(counts, 0.0)))
    hold("an empty component at the end does not change the evidence", longer, allocation.log_evidence(counts))
    check_stored(allocation)
    best = float(allocation.log_evidence(counts))
    if allocation.ordered:
        for _ in range(10):
            other = float(allocation.log_evidence(rng.permutation(counts)))
            assert other <= best + 1e-9 * abs(best), "descending counts have the highest evidence"
    else:
        hold("the order of counts does not matter", allocation.log_evidence(counts[::-1]), best)
