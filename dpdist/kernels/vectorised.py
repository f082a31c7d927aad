"""Vectorised exponentials, logarithms and functions of the gamma family.

Calling a library function for each number spends most of the time on the calls. The loops here have no branches and no
calls, so the compiler vectorises them; powers of two are extracted and built as bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.kernels.jit import jit_inlined, jit_reassociated
from dpdist.kernels.special import FAR, digamma_by, far_from

#: Exponentials of smaller numbers are denormal, which powers of two built from bits cannot represent.
LEAST_EXPONENT = -708.0
#: log 2 in two parts; products of the first with whole numbers are exact.
_LOG_TWO, _REST = 0.693147180369123816490, 1.90821492927058770002e-10
_PER_LOG_TWO, _ROOT_TWO = 1.4426950408889634, 1.4142135623730951
#: Bits of a double's fraction, bias of its exponent, and 2^52: the fraction of 2^52 + n is the whole number n.
_FRACTION, _BIAS, _WHOLE = 52, 1023, 4503599627370496.0
_FRACTION_BITS, _ONE_BITS = (1 << 52) - 1, 1023 << 52
#: Smallest normal number; the factor that makes smaller numbers normal, and its exponent.
_NORMAL, _RAISE, _RAISED = float(np.finfo(np.float64).tiny), 2.0**54, 54.0
_C2, _C3, _C4, _C5, _C6, _C7 = 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040
_C8, _C9, _C10, _C11, _C12, _C13 = 1 / 40320, 1 / 362880, 1 / 3628800, 1 / 39916800, 1 / 479001600, 1 / 6227020800
_HALF_LOG_TWO_PI = 0.9189385332046727


class Bits(NamedTuple):
    """Buffers for numbers: the same memory as float64 and as int64."""

    numbers: np.ndarray
    whole: np.ndarray


@jit_inlined
def bits_of(size: int) -> Bits:
    """Buffers for `size` numbers."""
    numbers = np.empty(size)
    return Bits(numbers, numbers.view(np.int64))


@jit_reassociated
def exponentials(numbers: np.ndarray, least: float, bits: Bits, found: np.ndarray) -> float:
    """Exponentials of numbers; returns their sum.

    With n the whole number nearest to x / log 2, exp x = 2^n exp r, |r| <= log(2) / 2; the series of exp r up to the
    thirteenth power has a relative error below 1e-17.

    Parameters
    ----------
    numbers : (n,) float64, at most zero
    least : at least :data:`LEAST_EXPONENT`; the exponential of a smaller number is zero
    bits : buffers of size n
    found : (n,) float64, overwritten by the exponentials; NaN where `numbers` is NaN
    """
    powers, whole = bits.numbers, bits.whole
    for k in range(numbers.shape[0]):
        x = numbers[k] if numbers[k] > least else least
        n = np.floor(x * _PER_LOG_TWO + 0.5)
        powers[k] = n + (_WHOLE + _BIAS)
        r = (x - n * _LOG_TWO) - n * _REST
        tail = _C8 + r * (_C9 + r * (_C10 + r * (_C11 + r * (_C12 + r * _C13))))
        found[k] = 1.0 + r * (1.0 + r * (_C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * (_C7 + r * tail)))))))
    for k in range(numbers.shape[0]):
        whole[k] <<= _FRACTION
    total = 0.0
    for k in range(numbers.shape[0]):
        value = found[k] * powers[k]
        value = value if numbers[k] >= least else (0.0 if numbers[k] < least else np.nan)
        found[k] = value
        total += value
    return total


@jit_reassociated
def logarithms(numbers: np.ndarray, bits: Bits, found: np.ndarray) -> None:
    """Logarithms of positive numbers (n,); `found` may be `numbers`, and is NaN where these are not finite.

    With x = 2^e m, m within a factor sqrt(2) of 1, log x = e log 2 + 2 artanh s, s = (m - 1) / (m + 1); the series up
    to s^21 has a relative error below 1e-17.
    """
    copies, whole = bits.numbers, bits.whole
    for k in range(numbers.shape[0]):
        copies[k] = numbers[k] if numbers[k] >= _NORMAL else numbers[k] * _RAISE
    for k in range(numbers.shape[0]):
        e = np.float64((whole[k] >> _FRACTION) - _BIAS)
        e = e if numbers[k] >= _NORMAL else e - _RAISED
        found[k] = e + 0.0 * numbers[k]
    for k in range(numbers.shape[0]):
        whole[k] = (whole[k] & _FRACTION_BITS) | _ONE_BITS
    for k in range(numbers.shape[0]):
        m = copies[k]
        large = m > _ROOT_TWO
        m = 0.5 * m if large else m
        e = found[k] + 1.0 if large else found[k]
        s = (m - 1.0) / (m + 1.0)
        z = s * s
        tail = 1 / 13 + z * (1 / 15 + z * (1 / 17 + z * (1 / 19 + z * (1 / 21))))
        tail = 1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z * (1 / 11 + z * tail))))
        found[k] = e * _LOG_TWO + (2.0 * s + (2.0 * s * z * tail + e * _REST))


@jit_inlined
def digammas(numbers: np.ndarray, bits: Bits, far: np.ndarray, found: np.ndarray) -> None:
    """psi of positive numbers (n,), as :func:`dpdist.kernels.special.digamma`; `far` is a buffer of size n."""
    _move_away(numbers, far)
    logarithms(far[: numbers.shape[0]], bits, found)
    for k in range(numbers.shape[0]):
        found[k] = digamma_by(numbers[k], far[k], found[k])


@jit_inlined
def log_gammas(numbers: np.ndarray, bits: Bits, far: np.ndarray, found: np.ndarray) -> None:
    """log Gamma of positive numbers (n,), with an absolute error of about 1e-14; `far` is a buffer of size n."""
    size = numbers.shape[0]
    _move_away(numbers, far)
    logarithms(far[:size], bits, found)
    _log_gammas_from(far, found[:size])
    _rising(numbers, far)
    logarithms(far[:size], bits, far)
    for k in range(numbers.shape[0]):
        found[k] -= far[k]


@jit_reassociated
def _move_away(numbers: np.ndarray, far: np.ndarray) -> None:
    """Move the numbers to where the asymptotic series hold."""
    for k in range(numbers.shape[0]):
        far[k] = far_from(numbers[k])


@jit_reassociated
def _log_gammas_from(far: np.ndarray, found: np.ndarray) -> None:
    """Stirling's series at the numbers `far`, where `found` holds their logarithms."""
    for k in range(found.shape[0]):
        inverse = 1.0 / far[k]
        y = inverse * inverse
        tail = 1 / 1260 - y * (1 / 1680 - y * (1 / 1188 - y * (691 / 360360 - y / 156)))
        tail = inverse * (1 / 12 - y * (1 / 360 - y * tail))
        found[k] = (far[k] - 0.5) * found[k] - far[k] + _HALF_LOG_TWO_PI + tail


@jit_reassociated
def _rising(numbers: np.ndarray, found: np.ndarray) -> None:
    """x (x+1) ... (x+7) where x is below 8, else 1."""
    for k in range(numbers.shape[0]):
        x = numbers[k]
        z = x * (x + 7.0)
        found[k] = z * (z + 6.0) * (z + 10.0) * (z + 12.0) if x < FAR else 1.0
