"""Functions of the gamma family for compiled code, of arguments above zero."""

from __future__ import annotations

import math

from dpdist.kernels.jit import jit


@jit
def digamma(x: float) -> float:
    """psi(x), to about 1e-14 relative: recurrence from x to x + 8 below 8, then the asymptotic series."""
    shift = 0.0
    if x < 8.0:
        # Of 1/x + ... + 1/(x+7), terms from both ends are added in pairs: 1/x + 1/(x+7) = (2x + 7) / z.
        z = x * (x + 7.0)
        low, high = z * (z + 6.0), (z + 10.0) * (z + 12.0)
        shift = (2.0 * x + 7.0) * ((2.0 * z + 6.0) * high + (2.0 * z + 22.0) * low) / (low * high)
        x += 8.0
    y = 1.0 / (x * x)
    tail = 691.0 / 32760.0 - y / 12.0
    for term in (1.0 / 132.0, 1.0 / 240.0, 1.0 / 252.0, 1.0 / 120.0, 1.0 / 12.0):
        tail = term - y * tail
    return math.log(x) - 0.5 / x - y * tail - shift


@jit
def trigamma(x: float) -> float:
    """The derivative of psi at x, to about 1e-14 relative."""
    shift = 0.0
    if x < 8.0:
        # Of 1/x^2 + ... + 1/(x+7)^2, terms from both ends are added in pairs, as in :func:`digamma`.
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
    """The second derivative of psi at x, to about 1e-12 relative."""
    shift = 0.0
    while x < 8.0:
        shift += 2.0 / (x * x * x)
        x += 1.0
    y = 1.0 / (x * x)
    tail = 691.0 / 210.0
    for term in (5.0 / 6.0, 3.0 / 10.0, 1.0 / 6.0, 1.0 / 6.0, 1.0 / 2.0):
        tail = term - y * tail
    return -shift - y - y / x - y * y * tail
