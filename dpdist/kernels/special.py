"""Functions of the gamma family for compiled code, for positive arguments."""

from __future__ import annotations

import math

from dpdist.kernels.jit import jit, jit_inlined

#: The asymptotic series hold for arguments from this value on.
FAR = 8.0


@jit_inlined
def far_from(x: float) -> float:
    """x, or x + 8 where x is below 8, so that the asymptotic series hold."""
    return x + FAR if x < FAR else x


@jit_inlined
def digamma_by(x: float, far: float, log_far: float) -> float:
    """psi(x) from the asymptotic series at `far` and, if x is below 8, the recurrence from there."""
    y = 1.0 / (far * far)
    tail = 691.0 / 32760.0 - y / 12.0
    for term in (1.0 / 132.0, 1.0 / 240.0, 1.0 / 252.0, 1.0 / 120.0, 1.0 / 12.0):
        tail = term - y * tail
    shift = 0.0
    if x < FAR:
        # Terms of 1/x + ... + 1/(x+7) are paired from both ends: 1/x + 1/(x+7) = (2x + 7) / z.
        z = x * (x + 7.0)
        low, high = z * (z + 6.0), (z + 10.0) * (z + 12.0)
        shift = (2.0 * x + 7.0) * ((2.0 * z + 6.0) * high + (2.0 * z + 22.0) * low) / (low * high)
    return log_far - 0.5 / far - y * tail - shift


@jit
def digamma(x: float) -> float:
    """psi(x), with a relative error of about 1e-14."""
    far = far_from(x)
    return digamma_by(x, far, math.log(far))


@jit
def log_beta(x: float, y: float) -> float:
    """log B(x, y), without the cancellation of the three Gamma functions where arguments are large.

    With S(x) = log Gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2, Stirling's series, and x the larger argument

        log B = log Gamma(y) - (x - 1/2) log(1 + y / x) - y log(x + y) + y + S(x) - S(x + y).
    """
    large, small = max(x, y), min(x, y)
    if large < FAR:
        return math.lgamma(large) + math.lgamma(small) - math.lgamma(large + small)
    level = -(large - 0.5) * math.log1p(small / large) + _stirling(large) - _stirling(large + small)
    if small < FAR:
        return level + math.lgamma(small) - small * math.log(large + small) + small
    level += _stirling(small) - (small - 0.5) * math.log1p(large / small)
    return level + 0.5 * math.log(2 * math.pi / (large + small))


@jit_inlined
def _stirling(x: float) -> float:
    """The error of Stirling's formula for log Gamma(x), x at least 8."""
    y = 1.0 / (x * x)
    tail = 1.0 / 156.0
    for term in (691.0 / 360360.0, 1.0 / 1188.0, 1.0 / 1680.0, 1.0 / 1260.0, 1.0 / 360.0, 1.0 / 12.0):
        tail = term - y * tail
    return tail / x


@jit
def trigamma(x: float) -> float:
    """The derivative of psi at x, with a relative error of about 1e-14."""
    shift = 0.0
    if x < 8.0:
        # Terms of 1/x^2 + ... + 1/(x+7)^2 are paired from both ends, as in :func:`digamma`.
        z = x * (x + 7.0)
        for apart in (0.0, 6.0, 10.0, 12.0):
            shift += (2.0 * z + 49.0 - 2.0 * apart) / ((z + apart) * (z + apart))
        x += 8.0
    y = 1.0 / (x * x)
    tail = 691.0 / 2730.0 - y * 7.0 / 6.0
    for term in (5.0 / 66.0, 1.0 / 30.0, 1.0 / 42.0, 1.0 / 30.0, 1.0 / 6.0):
        tail = term - y * tail
    return shift + 1.0 / x + 0.5 * y + y / x * tail


@jit
def tetragamma(x: float) -> float:
    """The second derivative of psi at x, with a relative error of about 1e-12."""
    shift = 0.0
    while x < 8.0:
        shift += 2.0 / (x * x * x)
        x += 1.0
    y = 1.0 / (x * x)
    tail = 691.0 / 210.0
    for term in (5.0 / 6.0, 3.0 / 10.0, 1.0 / 6.0, 1.0 / 6.0, 1.0 / 2.0):
        tail = term - y * tail
    return -shift - y - y / x - y * y * tail
