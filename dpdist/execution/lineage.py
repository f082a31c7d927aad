"""What is known of a value on the cluster: the call that makes it, and those that made its arguments.

Whoever needs a value holds a :class:`Held`, and with it the result on the cluster. A :class:`Task` knows its holder
only weakly: when the holder goes, the cluster may free the result, while the recipe stays for as long as something
that was made from it is held.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

#: Bytes up to which a shared value travels inside every task that uses it; larger ones are put on the cluster once.
SMALL = 16_384
#: Labels named in the description of a task.
_NAMED = 2


@dataclass(frozen=True, eq=False)
class Packed:
    """A small shared value, pickled once."""

    data: bytes
    label: str | None = None

    def value(self) -> Any:
        """The value again, a copy of its own."""
        return pickle.loads(self.data)


def pack(value: Any, label: str | None) -> Packed | None:
    """`value` packed, or None where it is large."""
    buffers: list[pickle.PickleBuffer] = []
    data = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    if len(data) + sum(buffer.raw().nbytes for buffer in buffers) > SMALL:
        return None
    return Packed(cloudpickle.dumps(value) if buffers else data, label)


@dataclass(eq=False)
class Task:
    """One call and all it takes to make it again.

    Parameters
    ----------
    function, arguments : the call; arguments are values, tasks, packed values or lists of these
    name : of the function that the call is about
    label : what a person calls the value
    place : tells the call from its neighbours where nothing it depends on has a label
    priority : higher goes first
    key : under which it was last submitted
    rows, timed : of a sum over rows, their number and the name of their function
    cancelled, deaths : how often it was, and worker processes that ended while they had it
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    name: str
    label: str | None = None
    place: str = ""
    priority: int = 0
    key: Any = None
    rows: int = 0
    timed: str | None = None
    cancelled: int = 0
    deaths: int = 0
    counted: bool = False
    holder: weakref.ref[Held] | None = field(default=None, repr=False)

    def inputs(self) -> Iterator[Task]:
        """The tasks whose values the call takes."""
        return (leaf for leaf in _leaves(self.arguments) if isinstance(leaf, Task))

    def held(self) -> Held | None:
        """Who holds the result, if anybody does."""
        return None if self.holder is None else self.holder()


class Held:
    """A value on the cluster, kept there for as long as this object lives."""

    __slots__ = ("__weakref__", "future", "task")

    def __init__(self, task: Task, future: Any) -> None:
        self.task, self.future = task, future
        task.holder = weakref.ref(self)


def recipes(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments with what they hold replaced by how it was made."""
    return tuple(_recipe(argument) for argument in arguments)


def _recipe(argument: Any) -> Any:
    if isinstance(argument, list):
        return [_recipe(each) for each in argument]
    return argument.task if isinstance(argument, Held) else argument


def _leaves(arguments: Sequence[Any]) -> Iterator[Any]:
    for argument in arguments:
        if isinstance(argument, list):
            yield from _leaves(argument)
        else:
            yield argument


def ancestry(task: Task) -> Iterator[Task]:
    """The task and all that it was made from, each once."""
    seen, stack = {id(task)}, [task]
    while stack:
        each = stack.pop()
        yield each
        new = [one for one in each.inputs() if id(one) not in seen]
        seen.update(id(one) for one in new)
        stack.extend(new)


def describe(task: Task) -> str:
    """What a person calls the task: its own label, or its name and the labels of what it works on."""
    if task.label is not None:
        return task.label
    found = (leaf.label for leaf in _leaves(task.arguments) if isinstance(leaf, Task | Packed) and leaf.label)
    labels = list(dict.fromkeys(found))
    if not labels:
        return task.name + task.place
    more = "" if len(labels) <= _NAMED else f" and {len(labels) - _NAMED} more"
    return f"{task.name} of {', '.join(labels[:_NAMED])}{more}"
