"""Where functions run: three operations, of which the serial backend is the meaning."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from dpdist.trees import join_pairwise

#: A value that lives where the work is done; only its backend can read it.
Ref = Any

#: Values added in one task; the shape of every sum follows from it and the number of values alone.
FAN_IN = 8


class Backend(ABC):
    """Runs pure functions near shared values."""

    @abstractmethod
    def share(self, value: Any) -> Ref:
        """Put a value where the work is done, once."""

    @abstractmethod
    def map(self, function: Callable[..., Any], *columns: Sequence[Any]) -> list[Ref]:
        """Call `function` on each row of `columns`; entries may be refs, lists of refs or plain values."""

    @abstractmethod
    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        """The values behind refs, in order."""

    def sum(self, refs: Sequence[Ref]) -> Ref:
        """Add values with ``+`` in a tree that depends on their number only."""
        return self.reduce(add_pairwise, refs)

    def reduce(self, function: Callable[..., Any], refs: Sequence[Ref], *shared: Any) -> Ref:
        """Make values one in a tree that depends on their number only; `function` takes a list and `shared`."""
        level = list(refs)
        while len(level) > 1:
            groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
            level = self.map(function, groups, *([value] * len(groups) for value in shared))
        return level[0]

    def close(self) -> None:  # noqa: B027 (most start nothing)
        """Give back what the backend itself started."""


def add_pairwise(values: Sequence[Any]) -> Any:
    """Add neighbours, then neighbours of those, and so on."""
    return join_pairwise(values, operator.add)
