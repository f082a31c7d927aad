"""The bound of a hierarchical Dirichlet process as a function of its global sticks, and its maximum.

The remainder before stick k is a product over the sticks before it. So a Newton step for all sticks is computed by one
backward and one forward recursion over the sticks, as in optimal control, with the remainder as the state. Source: Dunn
& Bertsekas, Efficient dynamic programming implementations of Newton's method for unconstrained optimal control
problems, J. Optimization Theory and Applications 63 (1989).
"""

from __future__ import annotations

import math

import numpy as np

from dpdist.kernels.jit import jit
from dpdist.kernels.special import digamma, tetragamma, trigamma

#: The search stops after a step that promises less than this share of the bound; smallest positive damping.
_SETTLED, _LEAST_DAMPING = 1e-10, 1e-3
#: Relative change at convergence.
_NEARLY = 1e-15


@jit
def stick_bound(first: np.ndarray, second: np.ndarray, ones: np.ndarray, zeros: np.ndarray, pull: np.ndarray) -> float:
    """``sum_k [(ones - a) E log u + (zeros - b) E log(1 - u) + log B(a, b)] + E[beta] . pull``.

    Parameters
    ----------
    first, second : (K,) float64, a and b of the sticks Beta(a_k, b_k)
    ones, zeros : (K,) float64
    pull : (K + 1,) float64
    """
    topics = first.shape[0]
    tail, bound = pull[topics], 0.0  # tail: E[beta] . pull beyond stick k, per unit of remainder
    for k in range(topics - 1, -1, -1):
        a, b = first[k], second[k]
        both = digamma(a + b)
        bound += (ones[k] - a) * (digamma(a) - both) + (zeros[k] - b) * (digamma(b) - both)
        bound += math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
        tail += a / (a + b) * (pull[k] - tail)
    return float(bound + tail)


@jit
def _stick_curvature(
    a: float, b: float, one: float, zero: float, slope: float
) -> tuple[float, float, float, float, float]:
    """Derivatives of a stick's share of the bound with respect to its log odds log(a/b) and log size log(a + b).

    First derivatives, then the second ones: odds twice, mixed, size twice. `slope` is the derivative of the bound with
    respect to the stick's mean.
    """
    size, mean = a + b, a / (a + b)
    spread, excess = mean * b, one + zero - size
    shared, bend = excess * trigamma(size), trigamma(size) - excess * tetragamma(size)
    by_a, by_b = (one - a) * trigamma(a) - shared, (zero - b) * trigamma(b) - shared
    aa = (one - a) * tetragamma(a) - trigamma(a) + bend
    bb = (zero - b) * tetragamma(b) - trigamma(b) + bend
    turn = by_a - by_b + slope / size
    return (
        spread * turn,
        a * by_a + b * by_b,
        spread**2 * (aa - 2 * bend + bb) + spread * (1 - 2 * mean) * turn,
        spread * (a * (aa - bend) + b * (bend - bb) + by_a - by_b),
        a * a * aa + 2 * a * b * bend + b * b * bb + a * by_a + b * by_b,
    )


@jit
def _newton_step(
    first: np.ndarray,
    second: np.ndarray,
    ones: np.ndarray,
    zeros: np.ndarray,
    pull: np.ndarray,
    damping: float,
    step: np.ndarray,
) -> float:
    """Changes of log odds and log sizes (2, K), overwritten, and the increase in nats that they promise.

    NaN if the bound is not concave despite the damping.
    """
    topics = first.shape[0]
    left, gains, passed = np.empty(topics), np.empty((2, topics)), 1.0
    for k in range(topics):
        left[k] = passed
        passed *= second[k] / (first[k] + second[k])
    tail, ahead, bend, promise = pull[topics], 0.0, 0.0, 0.0  # slope and curvature in the remainder after stick k
    for k in range(topics - 1, -1, -1):
        a, b, lead = first[k], second[k], pull[k] - tail
        mean, kept = a / (a + b), b / (a + b)
        moved = -left[k] * mean * kept  # derivative of the remainder with respect to the log odds
        g, h, gg, gh, hh = _stick_curvature(a, b, ones[k], zeros[k], left[k] * lead)
        g, gg, cross = g + moved * ahead, gg + moved**2 * bend, lead * mean * kept + kept * moved * bend
        gg, hh = gg - damping * (ones[k] + zeros[k]) * mean * kept, hh - damping
        if not (gg < 0.0 and gg * hh > gh * gh):
            return math.nan
        scale = gg * hh - gh * gh
        step[0, k], step[1, k] = (gh * h - hh * g) / scale, (gh * g - gg * h) / scale
        gains[0, k], gains[1, k] = -hh * cross / scale, gh * cross / scale
        promise += 0.5 * (g * step[0, k] + h * step[1, k])
        ahead, bend = kept * ahead + cross * step[0, k], kept * kept * bend + cross * gains[0, k]
        tail += mean * lead
    shift = 0.0
    for k in range(topics):
        mean, kept = first[k] / (first[k] + second[k]), second[k] / (first[k] + second[k])
        step[0, k] += gains[0, k] * shift
        step[1, k] += gains[1, k] * shift
        shift = kept * shift - left[k] * mean * kept * step[0, k]
    return promise


@jit
def climb_sticks(
    first: np.ndarray, second: np.ndarray, ones: np.ndarray, zeros: np.ndarray, pull: np.ndarray, most: int
) -> bool:
    """Move sticks to the maximum of :func:`stick_bound`, in at most `most` steps; returns whether it was reached."""
    topics = first.shape[0]
    step, a, b = np.empty((2, topics)), np.empty(topics), np.empty(topics)
    bound, damping = stick_bound(first, second, ones, zeros, pull), 0.0
    for _ in range(most):
        promise = _newton_step(first, second, ones, zeros, pull, damping, step)
        last = damping < 1.0 and promise <= _SETTLED * max(1.0, abs(bound))
        for k in range(topics):
            odds, size = first[k] / second[k] * math.exp(step[0, k]), (first[k] + second[k]) * math.exp(step[1, k])
            a[k], b[k] = size * odds / (1.0 + odds), size / (1.0 + odds)
        found = stick_bound(a, b, ones, zeros, pull) if promise >= 0.0 else -np.inf
        if last or found > bound:
            first[:], second[:], bound = a, b, found
            damping = 0.0 if damping < _LEAST_DAMPING else damping / 10
        else:
            damping = max(10 * damping, _LEAST_DAMPING)
        if last:
            return np.isfinite(found)
    return False


@jit
def multiplier_of(excess: np.ndarray) -> float:
    """The x with ``sum_k 1 / (x + excess_k) = 1``, where the smallest excess is zero.

    Newton's method from x = 1, which is below the solution; it converges monotonically because the sum is convex.
    """
    x = 1.0
    while True:
        value, slope = -1.0, 0.0
        for k in range(excess.shape[0]):
            part = 1.0 / (x + excess[k])
            value += part
            slope += part * part
        step = value / slope
        if not step > _NEARLY * x:
            return x
        x += step
