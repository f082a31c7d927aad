"""Reductions in a binary tree whose shape depends only on the number of values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Value = TypeVar("Value")


def join_pairwise(values: Iterable[Value], join: Callable[[Value, Value], Value]) -> Value:
    """Join neighbours, then neighbours of the results, and so on, until one value is left; needs at least one value.

    At any time, it holds one partial result for each binary digit of the number of values so far.
    """
    joined = Joined(join)
    for value in values:
        joined.add(value)
    return joined.total()


class Joined(Generic[Value]):
    """Values joined one after another, in the tree of :func:`join_pairwise`.

    Like carries of a binary counter, two neighbours of equal size are joined as soon as both exist.

    Parameters
    ----------
    join : combines two values
    parts : number of values in each partial result, and the result
    """

    def __init__(self, join: Callable[[Value, Value], Value], parts: Iterable[tuple[int, Value]] = ()) -> None:
        self._join, self.parts = join, list(parts)

    def add(self, value: Value) -> None:
        """Add the next value."""
        size = 1
        while self.parts and self.parts[-1][0] == size:
            value, size = self._join(self.parts.pop()[1], value), 2 * size
        self.parts.append((size, value))

    def total(self) -> Value:
        """All values so far joined; needs at least one."""
        *before, (_, total) = self.parts
        for _, value in reversed(before):
            total = self._join(value, total)
        return total
