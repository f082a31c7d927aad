"""Checks of values: each gives an error message for a wrong value, and converts a valid one to a plain Python value.

A dataclass checks its fields in ``__post_init__``. Estimators, TOML files and the command line create the same
dataclasses, so all are checked alike. NumPy's scalars are accepted as numbers; truth values are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from os import PathLike
from typing import Any, Generic, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import InputError

#: Bounds of concentrations and pseudocounts. Above the largest, sums over rows lose precision: log Gamma(1e9) is known
#: to 4e-6. Below the smallest, its digamma and log Gamma, times their factors, come near the range of float64.
SMALLEST, LARGEST = 1e-100, 1e9
Kind = TypeVar("Kind")
Plain = TypeVar("Plain", covariant=True)
#: Largest number of characters of a value in a message.
_SHOWN = 80


def shown(value: object) -> str:
    """A value as shown in a message."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name} of shape {value.shape}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _told(bound: float) -> str:
    return f"{bound:g}" if bound else "zero"


def _scalar(value: object) -> object:
    """The single number of a 0-d array; other values unchanged."""
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value


def _as_it_is(value: Kind) -> Kind:
    return value


@dataclass(frozen=True)
class Wanted(Generic[Plain]):
    """The requirements of a value.

    Parameters
    ----------
    told : continuation of a sentence that begins with "NAME should be"
    holds : whether a value is valid
    plain : converts a valid value to a plain Python value
    name : name of the value in messages, if not that of the field
    unset : meaning of None, if None is valid
    """

    told: str
    holds: Callable[[object], bool]
    plain: Callable[[Any], Plain] = _as_it_is
    name: str = ""
    unset: str = ""

    def take(self, name: str, value: object) -> Plain:
        """The value as a plain Python value; raises :class:`InputError` unless it is valid."""
        if not self.holds(value):
            raise InputError(f"{self.name or name} should be {self.told}; got {shown(value)}.")
        return self.plain(value)

    def called(self, name: str) -> Wanted[Plain]:
        """The same requirements, with another name in messages."""
        return replace(self, name=name)

    def or_none(self, meaning: str) -> Wanted[Plain | None]:
        """The same requirements, or None, whose meaning is `meaning`."""

        def holds(value: object) -> bool:
            return value is None or self.holds(value)

        def plain(value: object) -> Plain | None:
            return None if value is None else self.plain(value)

        return Wanted(f"{self.told}, or None for {meaning}", holds, plain, self.name, meaning)


def check_fields(owner: object, of: str = "", /, **wanted: Wanted[object]) -> None:
    """Convert fields of a new, frozen dataclass to plain values, or raise :class:`InputError`.

    Parameters
    ----------
    owner : the dataclass
    of : follows the name of a field in messages, as in " of Effort"
    wanted : requirements of each field
    """
    for name, each in wanted.items():
        object.__setattr__(owner, name, each.take(name + of, getattr(owner, name)))


def whole(least: int, most: int | None = None) -> Wanted[int]:
    """An integer of at least `least`, and at most `most` if given."""

    def holds(value: object) -> bool:
        found = _scalar(value)
        if not isinstance(found, Integral) or isinstance(found, bool):
            return False
        return least <= int(found) and (most is None or int(found) <= most)

    return Wanted(f"a whole number {f'of at least {least}' if most is None else f'from {least} to {most}'}", holds, int)


def number(
    *, above: float | None = None, least: float | None = None, below: float | None = None, most: float | None = None
) -> Wanted[float]:
    """A finite number within bounds: strictly (`above`, `below`) or not (`least`, `most`)."""
    low = -np.inf if least is None else least
    high = np.inf if most is None else most

    def holds(value: object) -> bool:
        return (
            is_number(value)
            and low <= value <= high
            and (above is None or value > above)
            and (below is None or value < below)
        )

    bounds = [("above", above), ("at least", least), ("below", below), ("at most", most)]
    told = " and ".join(f"{side} {_told(bound)}" for side, bound in bounds if bound is not None)
    return Wanted(f"finite and {told}" if told else "a finite number", holds, float)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a single finite number in the range of a float."""
    found = _scalar(value)
    if not isinstance(found, Real) or isinstance(found, bool):
        return False
    try:
        return math.isfinite(found)
    except OverflowError:
        return False


def numbers(*, positive: bool = False, most: float = np.inf, dimensions: int = 1) -> Wanted[npt.ArrayLike]:
    """A finite number up to `most`, or an array of such with at most `dimensions` dimensions; `positive` requires all
    above zero."""

    def holds(value: object) -> bool:
        array = real_array(value)
        if array is None or array.ndim > dimensions or not array.size:
            return False
        return bool(np.isfinite(array).all() and (array <= most).all() and (not positive or (array > 0).all()))

    told = "a number or one per column" if dimensions == 1 else "a number, one per column or a matrix"
    bounds = (" and above zero" if positive else "") + (f" and at most {most:g}" if most < np.inf else "")
    return Wanted(f"{told}, finite{bounds}", holds)


def real_array(value: object) -> np.ndarray | None:
    """The value as an array of real numbers, or None if it is not one, such as text or a ragged list."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    return array if array.dtype.kind in "iuf" else None


def one_of(*names: str) -> Wanted[str]:
    """One of the given names."""
    told = f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"
    return Wanted(told, lambda value: isinstance(value, str) and value in names, str)


def instance(told: str, *kinds: type) -> Wanted[Any]:  # type checkers reject abstract classes as type[Kind]
    """An object of one of the given classes."""
    return Wanted(told, lambda value: isinstance(value, kinds))


#: A truth value; the message uses the words of TOML.
FLAG = Wanted("true or false", lambda value: isinstance(value, bool | np.bool_), bool)
#: A positive integer.
COUNT = whole(1)
#: A number above zero.
POSITIVE = number(above=0)
#: A concentration or a pseudocount.
SCALE = replace(number(least=SMALLEST, most=LARGEST), told=f"finite and above zero, from {SMALLEST:g} to {LARGEST:g}")
#: A bound below which responsibilities are set to zero.
FLOOR = number(least=0, below=0.01)
#: A path or URL.
PATH = instance("a path or URL", str, PathLike)
