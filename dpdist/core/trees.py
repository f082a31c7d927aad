"""Sums and the like in a tree whose shape depends on the number of values alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Value = TypeVar("Value")


def join_pairwise(values: Sequence[Value], join: Callable[[Value, Value], Value]) -> Value:
    """Join neighbours, then neighbours of those, and so on, until one value is left."""
    level = list(values)
    while len(level) > 1:
        pairs = [join(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
    return level[0]


def join_stream(values: Iterable[Value], join: Callable[[Value, Value], Value]) -> Value:
    """The value of :func:`join_pairwise`, holding one partial result for each binary digit of the number so far.

    As a binary counter carries, two neighbours of equal size are joined as soon as both are there.
    """
    parts: list[tuple[int, Value]] = []
    for value in values:
        size = 1
        while parts and parts[-1][0] == size:
            value, size = join(parts.pop()[1], value), 2 * size
        parts.append((size, value))
    total = parts.pop()[1]
    while parts:
        total = join(parts.pop()[1], total)
    return total
