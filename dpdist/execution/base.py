"""Where functions run: a few operations, of which the serial backend is the meaning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dpdist.core.phases import Phase, phase
from dpdist.core.trees import join_pairwise

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)

#: Values added in one task; the shape of every sum follows from it and the number of values alone.
FAN_IN = 8
#: Calls for each thread of the workers, so that none waits for the slowest.
EACH_THREAD = 2


class Ref(Protocol[Value_co]):
    """A value that lives where the work is done; only its backend can read it."""


@dataclass(frozen=True)
class Counts:
    """What a backend has been through.

    Parameters
    ----------
    resubmissions : tasks that had to be tried again
    restarts : workers restarted because they did not come forward
    lost : workers that went, by themselves or not
    """

    resubmissions: int = 0
    restarts: int = 0
    lost: int = 0


class Labelled(Protocol):
    """A value that says what a person calls it."""

    @property
    def label(self) -> str:
        """Such as "partition 17 (rows 4096 to 8192)"."""


class Remote(ABC):
    """A value the bulk of which a Dask cluster holds already.

    Attributes
    ----------
    future : distributed.Future of the bulk
    """

    future: object

    @property
    @abstractmethod
    def completion(self) -> Callable[..., object]:
        """A function that travels without the bulk, and makes the whole value of it."""


class Backend(ABC):
    """Runs pure functions near shared values."""

    @abstractmethod
    def share(self, value: Value, label: str | None = None) -> Ref[Value]:
        """Put a value where the work is done, once; `label` is what a person calls it, for messages."""

    def share_each(self, values: Sequence[Labelled]) -> list[Ref[object]]:
        """Share values under their own labels, so that an error can name the one it befell."""
        return [self.share(value, value.label) for value in values]

    @abstractmethod
    def map(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        """Call `function` on each row of `columns`; entries may be refs, lists of refs or plain values."""

    @abstractmethod
    def fetch(self, refs: Sequence[Ref[Value]]) -> list[Value]:
        """The values behind refs, in order.

        Raises
        ------
        ClusterError
            If a task was tried as often as it may be; :class:`ClusterLostError` if the cluster, or results, are gone.
        """

    def total(self, function: Callable[..., Value], *columns: Sequence[object]) -> Ref[Value]:
        """The sum of `function` over the rows of `columns`, to the bits of ``sum(map(function, *columns))``."""
        return self.sum(self.map(function, *columns))

    def gathered(self, name: str, function: Callable[..., Value], *columns: Sequence[object]) -> Value:
        """What :meth:`total` gives, here; where results are kept, only what was not kept before is computed.

        Parameters
        ----------
        name : what a person calls the pass
        """
        return self.fetch([self.total(function, *columns)])[0]

    def kept(self, name: str, compute: Callable[[], Value]) -> Value:
        """What `compute` gives; where results are kept, what it gave before.

        Parameters
        ----------
        name : what a person calls it
        compute : depends on data, settings and what was computed before; may compute what has names of its own
        """
        return compute()

    def sum(self, refs: Sequence[Ref[Value]]) -> Ref[Value]:
        """Add values with ``+`` in a tree that depends on their number only."""
        return self.reduce(add_pairwise, refs)

    def reduce(self, function: Callable[..., Value], refs: Sequence[Ref[Value]], *shared: object) -> Ref[Value]:
        """Make values one in a tree that depends on their number only; `function` takes a list and `shared`."""
        level = list(refs)
        while len(level) > 1:
            groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
            level = self._join(function, groups, *([value] * len(groups) for value in shared))
        return level[0]

    def promptly(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        """As :meth:`map`, for calls that others wait for; a backend may do them before what it was given earlier."""
        return self.map(function, *columns)

    def apply(self, function: Callable[..., Value], ref: Ref[Any], *arguments: object) -> Ref[Value]:
        """`function` of what is behind a ref, with more `arguments`: the end of the work on it, promptly done."""
        return self._join(function, [ref], *([each] for each in arguments))[0]

    def _join(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        """As :meth:`map`, for calls that make many values few; a backend may do them first."""
        return self.map(function, *columns)

    @property
    def counts(self) -> Counts:
        """What happened so far; nothing ever does in one process."""
        return Counts()

    @property
    def threads(self) -> int:
        """Calls that workers make at a time; 0 where there are no workers."""
        return 0

    def at_a_time(self, least: int) -> int:
        """Calls to have under way at once where results are held until they are written: few, but work for all."""
        return max(least, EACH_THREAD * self.threads)

    def close(self) -> None:  # noqa: B027 (most start nothing)
        """Give back what the backend itself started."""


def add_pairwise(values: Sequence[Value]) -> Value:
    """Add neighbours, then neighbours of those, and so on."""
    return join_pairwise(values, added)


def add_results(function: Callable[..., Value], *columns: Sequence[object]) -> Value:
    """The sum of `function` over rows as :func:`add_pairwise` adds, holding few results at a time."""
    return join_pairwise((function(*row) for row in zip(*columns, strict=True)), added)


def added(first: Any, second: Any) -> Any:
    """The sum of two values, timed as such."""
    with phase(Phase.SUMS):
        return first + second
