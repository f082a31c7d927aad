"""Sums and the like in a tree whose shape depends on the number of values alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Value = TypeVar("Value")


def join_pairwise(values: Sequence[Value], join: Callable[[Value, Value], Value]) -> Value:
    """Join neighbours, then neighbours of those, and so on, until one value is left."""
    level = list(values)
    while len(level) > 1:
        pairs = [join(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
    return level[0]
