"""What a value has to be, said once: a sentence for whoever gave another, and plain Python values for all others.

A dataclass says in its ``__post_init__`` what each of its fields has to be. Estimators, TOML files and the command line
all come to the same dataclasses, and so all are checked alike. NumPy's scalars are numbers; truth values are not.
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

#: Above the largest a concentration or a pseudocount leaves sums over rows no precision: log Gamma(1e9) is known to
#: 4e-6. Below the smallest, digamma and log Gamma of it and what they are multiplied by come near what float64 holds.
SMALLEST, LARGEST = 1e-100, 1e9
Kind = TypeVar("Kind")
Plain = TypeVar("Plain", covariant=True)
#: Letters of a value that a sentence shows.
_SHOWN = 80


def shown(value: object) -> str:
    """A value as a sentence shows it."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name} of shape {value.shape}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _told(bound: float) -> str:
    return f"{bound:g}" if bound else "zero"


def _scalar(value: object) -> object:
    """The one number of an array without dimensions."""
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value


def _as_it_is(value: Kind) -> Kind:
    return value


@dataclass(frozen=True)
class Wanted(Generic[Plain]):
    """What a value has to be.

    Parameters
    ----------
    told : how a sentence that begins with "NAME should be" goes on
    holds : whether a value is such
    plain : makes such a value a plain Python value
    name : what a person calls it, if not by the name of the field
    unset : what None means, where it may be None
    """

    told: str
    holds: Callable[[object], bool]
    plain: Callable[[Any], Plain] = _as_it_is
    name: str = ""
    unset: str = ""

    def take(self, name: str, value: object) -> Plain:
        """The value, plain; raises :class:`InputError` unless it is as wanted."""
        if not self.holds(value):
            raise InputError(f"{self.name or name} should be {self.told}; got {shown(value)}.")
        return self.plain(value)

    def called(self, name: str) -> Wanted[Plain]:
        """The same of something that people know by another name."""
        return replace(self, name=name)

    def or_none(self, meaning: str) -> Wanted[Plain | None]:
        """The same, or None, which means what `meaning` says."""

        def holds(value: object) -> bool:
            return value is None or self.holds(value)

        def plain(value: object) -> Plain | None:
            return None if value is None else self.plain(value)

        return Wanted(f"{self.told}, or None for {meaning}", holds, plain, self.name, meaning)


def check_fields(owner: object, of: str = "", /, **wanted: Wanted[object]) -> None:
    """Make fields of a new, frozen dataclass plain, or raise :class:`InputError`.

    Parameters
    ----------
    owner : the dataclass
    of : follows the name of a field in a sentence, as in " of Effort"
    wanted : what each field has to be
    """
    for name, each in wanted.items():
        object.__setattr__(owner, name, each.take(name + of, getattr(owner, name)))


def whole(least: int, most: int | None = None) -> Wanted[int]:
    """A whole number from `least` on, or to `most`."""

    def holds(value: object) -> bool:
        found = _scalar(value)
        if not isinstance(found, Integral) or isinstance(found, bool):
            return False
        return least <= int(found) and (most is None or int(found) <= most)

    return Wanted(f"a whole number from {least} {'on' if most is None else f'to {most}'}", holds, int)


def number(
    *, above: float | None = None, least: float | None = None, below: float | None = None, most: float | None = None
) -> Wanted[float]:
    """A finite number within bounds: above or at least one number, below or at most another."""
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
    """Whether a value is one finite number that a float holds."""
    found = _scalar(value)
    if not isinstance(found, Real) or isinstance(found, bool):
        return False
    try:
        return math.isfinite(found)
    except OverflowError:
        return False


def numbers(*, positive: bool = False, dimensions: int = 1) -> Wanted[npt.ArrayLike]:
    """A finite number or an array of such of at most so many dimensions; `positive` if all are above zero."""

    def holds(value: object) -> bool:
        array = real_array(value)
        if array is None or array.ndim > dimensions or not array.size:
            return False
        return bool(np.isfinite(array).all() and (not positive or (array > 0).all()))

    told = "a number or one a column" if dimensions == 1 else "a number, one a column or a matrix"
    return Wanted(f"{told}, finite{' and above zero' if positive else ''}", holds)


def real_array(value: object) -> np.ndarray | None:
    """An array of real numbers of what is given, which may be ragged or text: then None."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    return array if array.dtype.kind in "iuf" else None


def one_of(*names: str) -> Wanted[str]:
    """One of some names."""
    told = f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"
    return Wanted(told, lambda value: isinstance(value, str) and value in names, str)


def instance(told: str, *kinds: type) -> Wanted[Any]:  # type checkers know no abstract class as type[Kind]
    """An object of one of some classes."""
    return Wanted(told, lambda value: isinstance(value, kinds))


#: A truth value; as words, since it may stand in a TOML file.
FLAG = Wanted("true or false", lambda value: isinstance(value, bool | np.bool_), bool)
#: How many of something.
COUNT = whole(1)
#: A number above zero.
POSITIVE = number(above=0)
#: A concentration or a pseudocount.
SCALE = replace(number(least=SMALLEST, most=LARGEST), told=f"finite and above zero, from {SMALLEST:g} to {LARGEST:g}")
#: Responsibilities below it are left out.
FLOOR = number(least=0, below=0.01)
#: Where something is kept.
PATH = instance("a path or URL", str, PathLike)
