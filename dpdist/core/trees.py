"""Sums and the like in a tree whose shape depends on the number of values alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Value = TypeVar("Value")


def join_pairwise(values: Iterable[Value], join: Callable[[Value, Value], Value]) -> Value:
    """Join neighbours, then neighbours of those, and so on, until one value is left; there is at least one.

    What is held is one partial result for each binary digit of the number so far.
    """
    joined = Joined(join)
    for value in values:
        joined.add(value)
    return joined.total()


class Joined(Generic[Value]):
    """Values joined as they come, in the tree of :func:`join_pairwise`.

    As a binary counter carries, two neighbours of equal size are joined as soon as both are there.

    Parameters
    ----------
    join : makes one value of two
    parts : how many values each partial result stands for, and the result
    """

    def __init__(self, join: Callable[[Value, Value], Value], parts: Iterable[tuple[int, Value]] = ()) -> None:
        self._join, self.parts = join, list(parts)

    def add(self, value: Value) -> None:
        """Take the next value."""
        size = 1
        while self.parts and self.parts[-1][0] == size:
            value, size = self._join(self.parts.pop()[1], value), 2 * size
        self.parts.append((size, value))

    def total(self) -> Value:
        """All values so far as one; there is at least one."""
        *before, (_, total) = self.parts
        for _, value in reversed(before):
            total = self._join(value, total)
        return total
