"""Hyperparameters of priors: as users give them, and as the mathematical methods read them.

    mean: Each = Each()

declares a field of a frozen dataclass that may be derived from the data. Users give a number, an array or None;
anything else is refused with an explanation. Once filled, the field is an array with one number per column.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import fields, replace
from typing import Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from dpdist.core.checks import LARGEST, POSITIVE, Wanted, number, numbers
from dpdist.core.errors import InputError

Given = TypeVar("Given", contravariant=True)
Filled = TypeVar("Filled", covariant=True)
#: A dataclass with hyperparameters.
Part = TypeVar("Part")

_DATA = "a value derived from the data"


class Hyperparameter(Generic[Given, Filled]):
    """A field that accepts a `Given` or None, and reads as a `Filled` once it is not None."""

    wanted: Wanted[object]

    def __set_name__(self, kind: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, part: None, kind: type) -> None: ...

    @overload
    def __get__(self, part: object, kind: type) -> Filled: ...

    def __get__(self, part: object, kind: type) -> Filled | None:
        found: Filled | None = None if part is None else vars(part)[self.name]
        return found

    def __set__(self, part: object, value: Given | None) -> None:
        vars(part)[self.name] = self.wanted.take(self.name, value)

    def complete(self, value: object, dimension: int) -> object:
        """The value for rows of `dimension` columns; raises :class:`InputError` if its shape does not fit."""
        return value


class Lone(Hyperparameter[float, float]):
    """One positive number."""

    wanted = POSITIVE.or_none(_DATA)


class LoneCount(Lone):
    """One positive number that counts as rows; far larger ones leave gamma functions too few digits for the rows."""

    wanted = number(above=0, most=LARGEST).or_none(_DATA)


class Each(Hyperparameter[npt.ArrayLike, np.ndarray]):
    """A number, or one per column; filled, (D,) float64."""

    wanted = numbers().or_none(_DATA)

    def complete(self, value: object, dimension: int) -> np.ndarray:
        array = np.asarray(value, dtype=np.float64)
        if array.ndim and array.shape != (dimension,):
            raise InputError(
                f"{self.name} should be a number or {dimension} numbers, one per column; got an array of shape "
                f"{array.shape}."
            )
        return np.broadcast_to(array, (dimension,)).copy()


class EachPositive(Each):
    """A positive number, or one per column; filled, (D,) float64."""

    wanted = numbers(positive=True).or_none(_DATA)


class EachCount(EachPositive):
    """A positive number that counts as rows, or one per column, as :class:`LoneCount`; filled, (D,) float64."""

    wanted = numbers(positive=True, most=LARGEST).or_none(_DATA)


def filled(part: Part, dimension: int, **defaults: float | np.ndarray) -> Part:
    """A copy for rows of `dimension` columns, in which fields that are None take their default, if one is given."""
    values: dict[str, object] = {}
    for field in fields(part):  # type: ignore[arg-type]
        given = getattr(part, field.name)
        value = defaults.get(field.name) if given is None else given
        kind = inspect.getattr_static(type(part), field.name, None)
        complete = isinstance(kind, Hyperparameter) and value is not None
        values[field.name] = kind.complete(value, dimension) if complete else value
    return replace(part, **values)  # type: ignore[type-var]


def with_free(part: Part, free: Collection[str], **values: float | np.ndarray) -> Part:
    """A copy in which the fields named in `free` take the new values."""
    return replace(part, **{name: value for name, value in values.items() if name in free})  # type: ignore[type-var]
