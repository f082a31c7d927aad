"""Numbers that a person gives, checked where they come in: a number, of the right kind, within its bounds."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from dpdist.errors import InputError

#: Above the largest a concentration or a pseudocount leaves sums over rows no precision: log Gamma(1e9) is known to
#: 4e-6. Below the smallest, digamma and log Gamma of it and what they are multiplied by come near what float64 holds.
SMALLEST, LARGEST = 1e-100, 1e9


def require_scale(name: str, value: Any) -> None:
    """Raise :class:`InputError` unless a concentration or pseudocount is a number that float64 can compute with."""
    if isinstance(value, bool) or not isinstance(value, Real) or not SMALLEST <= float(value) <= LARGEST:
        raise InputError(f"{name} should be finite and above zero, from {SMALLEST:g} to {LARGEST:g}; got {value!r}.")


def require_least(name: str, value: Any, least: float, unit: str = "") -> None:
    """Raise :class:`InputError` unless a finite number is `least` or more; `unit` says of what."""
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) < float("inf"):
        raise InputError(f"{name} should be {_told(least)} or more{unit}; got {value!r}.")


def require_whole(name: str, value: Any, least: int) -> None:
    """Raise :class:`InputError` unless a whole number is `least` or more."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} should be a whole number from {least} on; got {value!r}.")


def _told(least: float) -> str:
    return f"{least:g}" if least else "zero"
