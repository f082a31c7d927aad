"""The largest of a row's scores, and the number of scores close to it; sixteen are compared at once."""

from __future__ import annotations

import numpy as np

from dpdist.kernels.jit import jit_inlined

#: Scores compared at once: a cache line of float32. With fewer lines than FEW, scores are compared one after the other.
LANES, FEW = 16, 2


@jit_inlined
def highest(scores: np.ndarray, lanes: np.ndarray) -> float:
    """The largest score, ignoring NaN; minus infinity if there is none.

    `lanes`, of the length of `scores`, is overwritten: one running maximum per lane, because a single one would stall
    the processor at every score.
    """
    top, begin = scores.dtype.type(-np.inf), 0
    if scores.shape[0] >= FEW * LANES:
        begin = scores.shape[0] - scores.shape[0] % LANES
        for lane in range(LANES):
            lanes[lane] = -np.inf
        for start in range(0, begin, LANES):
            for lane in range(LANES):
                score = scores[start + lane]
                lanes[lane] = score if score > lanes[lane] else lanes[lane]
        for lane in range(LANES):
            top = lanes[lane] if lanes[lane] > top else top
    for k in range(begin, scores.shape[0]):
        top = scores[k] if scores[k] > top else top
    return np.float64(top)


@jit_inlined
def reaching(scores: np.ndarray, least: float) -> int:
    """Number of scores that are not below `least`; NaN counts as not below."""
    found = 0
    for k in range(scores.shape[0]):
        found += not scores[k] < least
    return found
