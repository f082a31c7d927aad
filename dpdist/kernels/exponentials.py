"""Exponentials of many numbers at once, where a library's function would be called for each.

With n the whole number nearest to x / log 2, exp x = 2^n exp r, |r| <= log(2) / 2; the series of exp r to its
thirteenth power leaves off less than 1e-17 of it. Loops have no branch and call nothing, so that the compiler
vectorises them.
"""

from __future__ import annotations

import numpy as np

from dpdist.kernels.jit import jit_reassociated

#: Exponentials below that of this are denormal, which powers of two made of bits are not.
LEAST = -708.0
_PER_LOG_TWO = 1.4426950408889634
#: log 2 in two parts, of which products of the first with whole numbers are exact.
_LOG_TWO, _REST = 0.693147180369123816490, 1.90821492927058770002e-10
_BIAS, _MANTISSA = 1023, 52
_C2, _C3, _C4, _C5, _C6, _C7 = 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040
_C8, _C9, _C10, _C11, _C12, _C13 = 1 / 40320, 1 / 362880, 1 / 3628800, 1 / 39916800, 1 / 479001600, 1 / 6227020800


@jit_reassociated
def exponentials(numbers: np.ndarray, least: float, bits: np.ndarray, powers: np.ndarray, found: np.ndarray) -> float:
    """exp of some numbers, and their sum.

    Parameters
    ----------
    numbers : (n,) float64, at most zero
    least : not below :data:`LEAST`; the exponential of a number below it is zero
    bits, powers : (n,) room, the same memory as int64 and as float64
    found : (n,) float64, gains the exponentials; not a number where `numbers` is none
    """
    for k in range(numbers.shape[0]):
        x = numbers[k] if numbers[k] > least else least
        whole = np.floor(x * _PER_LOG_TWO + 0.5)
        r = (x - whole * _LOG_TWO) - whole * _REST
        tail = _C8 + r * (_C9 + r * (_C10 + r * (_C11 + r * (_C12 + r * _C13))))
        found[k] = 1.0 + r * (1.0 + r * (_C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * (_C7 + r * tail)))))))
        bits[k] = (np.int64(whole) + _BIAS) << _MANTISSA
    total = 0.0
    for k in range(numbers.shape[0]):
        value = found[k] * powers[k]
        value = value if numbers[k] >= least else (0.0 if numbers[k] < least else np.nan)
        found[k] = value
        total += value
    return total
