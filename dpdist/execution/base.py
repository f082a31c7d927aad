"""The interface of backends: a few operations, whose meaning the serial backend defines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dpdist.core.phases import Phase, phase
from dpdist.core.trees import join_pairwise

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)

#: Number of values added in one task; the tree of every sum depends only on it and on the number of values.
FAN_IN = 8
#: Calls per thread of the workers, so that no thread is idle while another finishes a slow call.
EACH_THREAD = 2


class Ref(Protocol[Value_co]):
    """A reference to a value on a backend, which only this backend can read."""


@dataclass(frozen=True)
class Counts:
    """Counts of failures handled by a backend.

    Parameters
    ----------
    resubmissions : tasks that were submitted again
    restarts : workers that were restarted because they did not respond
    lost : workers that left, for whatever reason
    """

    resubmissions: int = 0
    restarts: int = 0
    lost: int = 0


class Labelled(Protocol):
    """A value with a label for messages."""

    @property
    def label(self) -> str:
        """Such as "partition 17 (rows 4096 to 8192)"."""


class Remote(ABC):
    """A value whose bulk is already held by a Dask cluster.

    Attributes
    ----------
    future : distributed.Future of the bulk
    """

    future: object

    @property
    @abstractmethod
    def completion(self) -> Callable[..., object]:
        """A function, small to send, that turns the bulk into the whole value."""


class Backend(ABC):
    """Runs pure functions where shared values are held."""

    @abstractmethod
    def share(self, value: Value, label: str | None = None) -> Ref[Value]:
        """Move a value to where functions run, once; `label` names it in messages."""

    def share_each(self, values: Sequence[Labelled]) -> list[Ref[object]]:
        """Share values under their own labels, so that errors can name the value concerned."""
        return [self.share(value, value.label) for value in values]

    @abstractmethod
    def map(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        """Call `function` on each row of `columns`; entries may be refs, lists of refs or plain values."""

    @abstractmethod
    def fetch(self, refs: Sequence[Ref[Value]]) -> list[Value]:
        """The referenced values, in order.

        Raises
        ------
        ClusterError
            If a task failed in all its tries; :class:`ClusterLostError` if the cluster, or results, are gone.
        """

    def total(self, function: Callable[..., Value], *columns: Sequence[object]) -> Ref[Value]:
        """The sum of `function` over the rows of `columns`, to the bits of ``sum(map(function, *columns))``."""
        return self.sum(self.map(function, *columns))

    def gathered(self, name: str, function: Callable[..., Value], *columns: Sequence[object]) -> Value:
        """The value of :meth:`total`, fetched; a backend that stores results computes only what is not stored.

        Parameters
        ----------
        name : of the pass, for messages
        """
        return self.fetch([self.total(function, *columns)])[0]

    def kept(self, name: str, compute: Callable[[], Value]) -> Value:
        """The value of `compute`; a backend that stores results returns the stored value, if there is one.

        Parameters
        ----------
        name : of the value, for messages
        compute : depends on data, settings and earlier results only; may itself store values under other names
        """
        return compute()

    def sum(self, refs: Sequence[Ref[Value]]) -> Ref[Value]:
        """Add values with ``+`` in a tree that depends only on their number."""
        return self.reduce(add_pairwise, refs)

    def reduce(self, function: Callable[..., Value], refs: Sequence[Ref[Value]], *shared: object) -> Ref[Value]:
        """Combine values in a tree that depends only on their number; `function` takes a list of values, and
        `shared`."""
        level = list(refs)
        while len(level) > 1:
            groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
            level = self._join(function, groups, *([value] * len(groups) for value in shared))
        return level[0]

    def promptly(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        """As :meth:`map`, for calls whose results are urgent; a backend may run them before earlier calls."""
        return self.map(function, *columns)

    def apply(self, function: Callable[..., Value], ref: Ref[Any], *arguments: object) -> Ref[Value]:
        """Call `function` on a referenced value and more `arguments`, as the last step of the work on it; urgent."""
        return self._join(function, [ref], *([each] for each in arguments))[0]

    def _join(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        """As :meth:`map`, for calls that combine many values; a backend may run them first."""
        return self.map(function, *columns)

    @property
    def counts(self) -> Counts:
        """Counts of failures so far; all zero in a single process."""
        return Counts()

    @property
    def threads(self) -> int:
        """Number of calls that workers run at a time; 0 without workers."""
        return 0

    def at_a_time(self, least: int) -> int:
        """Number of calls to submit at a time if their results are held until written: few, but enough for all
        threads."""
        return max(least, EACH_THREAD * self.threads)

    def close(self) -> None:  # noqa: B027 (most start nothing)
        """Release everything that the backend started."""


def add_pairwise(values: Sequence[Value]) -> Value:
    """Add neighbours, then neighbours of these sums, and so on."""
    return join_pairwise(values, added)


def add_results(function: Callable[..., Value], *columns: Sequence[object]) -> Value:
    """The sum of `function` over rows, with the bits of :func:`add_pairwise`, while holding only a few results."""
    return join_pairwise((function(*row) for row in zip(*columns, strict=True)), added)


def added(first: Any, second: Any) -> Any:
    """The sum of two values, with its time counted as :attr:`Phase.SUMS`."""
    with phase(Phase.SUMS):
        return first + second
