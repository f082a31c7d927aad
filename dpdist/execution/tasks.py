"""Execution of one task on a worker.

A result travels with the seconds it took. An error of the call itself is returned as a result, through all tasks that
depend on it, so that Dask does not retry what cannot succeed. An error that another worker may not have is raised, and
Dask retries the task.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from distributed import Worker, get_worker

from dpdist.core.errors import DpdistError
from dpdist.core.phases import Phase, Spent, add, phase, since, spent
from dpdist.execution.base import Value
from dpdist.execution.faults import TaskLimits, described, unreadable
from dpdist.execution.versions import own_refusal

#: Largest bytes of a shared value that travels inside every task that uses it; larger ones are stored on the cluster.
SMALL = 16_384
#: Seconds that a worker waits for its last message to be sent before it ends itself.
_FAREWELL = 0.5


@dataclass(frozen=True, eq=False)
class Packed:
    """A small shared value, pickled once."""

    data: bytes
    label: str | None = None

    def value(self) -> Any:
        """An unpickled copy of the value."""
        return pickle.loads(self.data)


def pack(value: object, label: str | None) -> Packed | None:
    """`value` packed, or None if it is large."""
    buffers: list[pickle.PickleBuffer] = []
    data = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    if len(data) + sum(buffer.raw().nbytes for buffer in buffers) > SMALL:
        return None
    return Packed(cloudpickle.dumps(value) if buffers else data, label)


@dataclass(frozen=True)
class Terms:
    """What all tasks of a run share.

    Parameters
    ----------
    topic : on which workers report failed tries
    versions : of the coordinator
    limits : of waiting times and tries
    """

    topic: str
    versions: Mapping[str, str]
    limits: TaskLimits


@dataclass(frozen=True)
class Slot:
    """The place of an input in a call's arguments."""

    index: int


@dataclass(frozen=True, eq=False)
class Call:
    """A function and its arguments, with slots for inputs on the cluster.

    Parameters
    ----------
    terms : of the run
    function, arguments : the call
    phase : of the coordinator at submission, to which the call's time is counted
    joins : whether it combines many values, whose times are included in its own
    """

    terms: Terms
    function: Callable[..., object]
    arguments: tuple[object, ...]
    phase: Phase | None = None
    joins: bool = False

    def sent(self, name: str) -> Sent:
        """The pickled call, under a name of its own."""
        return Sent(name, cloudpickle.dumps(self))


@dataclass(frozen=True, eq=False)
class Sent:
    """A pickled call, which Dask need not read: it would otherwise hash all of it to name the graph."""

    name: str
    data: bytes

    def __dask_tokenize__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of a call: a value or an error; the seconds of the call and of its inputs; and the seconds by phase
    of the call, and of its inputs if it joins them."""

    value: Any
    seconds: float
    error: BaseException | None = None
    spent: Spent = field(default_factory=dict)


def perform(sent: Sent, brought: Sequence[object]) -> Outcome:
    """Run the call, unless the worker has other versions or an input is an error.

    Parameters
    ----------
    sent : the call
    brought : for its slots, outcomes of calls or results of tasks of others
    """
    call: Call = pickle.loads(sent.data)
    inputs = [each if isinstance(each, Outcome) else Outcome(each, 0.0) for each in brought]
    error = own_refusal(call.terms.versions) or next((each.error for each in inputs if each.error), None)
    if error is not None:
        return Outcome(None, 0.0, error)
    began, before = time.perf_counter(), spent()
    try:
        with _in_time(call.terms), phase(call.phase):
            value = call.function(*_filled(call.arguments, inputs))
    except Exception as raised:
        if isinstance(raised, OSError) and not isinstance(raised, DpdistError):
            raise _fault(call.terms, f"{type(raised).__name__}: {raised}") from None
        return Outcome(None, time.perf_counter() - began, _portable(raised))
    seconds = time.perf_counter() - began + sum(each.seconds for each in inputs)
    for each in inputs if call.joins else ():
        add(each.spent)
    return Outcome(value, seconds, spent=since(before))


def hold(value: Value) -> Value:
    """A shared value, computed by a task like any other, so that Dask can restore it if its worker is lost."""
    return value


@contextlib.contextmanager
def _in_time(terms: Terms) -> Iterator[None]:
    """End a worker process that takes too long for one task. Dask runs the task elsewhere; the nanny starts another
    process."""
    worker = get_worker()
    timer = threading.Timer(terms.limits.stuck_after, _end, (worker, terms.topic, worker.get_current_task()))
    timer.daemon = True
    if worker.nanny is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(worker: Worker, topic: str, key: object) -> None:
    worker.log_event(topic, {"stuck": described(key), "key": str(key)})
    time.sleep(_FAREWELL)
    os.kill(os.getpid(), signal.SIGKILL)


def _fault(terms: Terms, reason: str) -> DpdistError:
    worker, limits = get_worker(), terms.limits
    task = described(worker.get_current_task())
    worker.log_event(terms.topic, {"failed": task, "reason": reason})
    time.sleep(limits.pause)  # time for an unreachable store to recover
    return unreadable(task, limits.attempts, reason, worker.address)


def _portable(error: Exception) -> Exception:
    """The error, or a RuntimeError with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _filled(arguments: Sequence[object], inputs: Sequence[Outcome]) -> list[object]:
    unpacked: dict[int, object] = {}

    def fill(argument: object) -> object:
        if isinstance(argument, list):
            return [fill(each) for each in argument]
        if isinstance(argument, Slot):
            return inputs[argument.index].value
        if isinstance(argument, Packed):
            if id(argument) not in unpacked:
                unpacked[id(argument)] = argument.value()
            return unpacked[id(argument)]
        return argument

    return [fill(argument) for argument in arguments]
