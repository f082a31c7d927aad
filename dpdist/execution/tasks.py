"""What a worker does with one task.

A result travels with the seconds it took. An error of the task's own travels as a result too, through all that
depends on it, so that Dask does not try again what cannot succeed; one that another try may mend, on another worker,
is raised, and Dask tries again.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from distributed import get_worker

from dpdist.core.errors import DpdistError
from dpdist.execution.lineage import Packed
from dpdist.execution.versions import own_refusal


@dataclass(frozen=True)
class Terms:
    """What all tasks of a run have in common.

    Parameters
    ----------
    topic : on which workers tell of tries that failed
    versions : of the coordinator
    pause : seconds to wait before another try, so that a store that is gone for a moment can come back
    """

    topic: str
    versions: Mapping[str, str]
    pause: float


@dataclass(frozen=True)
class Slot:
    """The place of an input in a call's arguments."""

    index: int


@dataclass(frozen=True, eq=False)
class Call:
    """A function and its arguments, with slots for values that the cluster brings.

    Sent as bytes, which the scheduler passes on as they are.
    """

    terms: Terms
    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __bytes__(self) -> bytes:
        return cloudpickle.dumps(self)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of a call: a value or an error, and the seconds spent on it and on what it was made from."""

    value: Any
    seconds: float
    error: BaseException | None = None


class TaskFault(Exception):
    """A try that failed for a reason that another try may not meet.

    Parameters
    ----------
    key : of the task
    told : the error's name and text
    worker : where it was
    """

    def __init__(self, key: Any, told: str, worker: str) -> None:
        super().__init__(key, told, worker)
        self.key, self.told, self.worker = key, told, worker


def perform(sent: bytes, brought: Sequence[Any]) -> Outcome:
    """Make the call, unless the worker is another version's or an input is an error.

    Parameters
    ----------
    sent : the call
    brought : for its slots, outcomes of calls or results of others' tasks
    """
    call: Call = pickle.loads(sent)
    inputs = [each if isinstance(each, Outcome) else Outcome(each, 0.0) for each in brought]
    error = own_refusal(call.terms.versions) or next((each.error for each in inputs if each.error), None)
    if error is not None:
        return Outcome(None, 0.0, error)
    began = time.perf_counter()
    try:
        value = call.function(*_filled(call.arguments, inputs))
    except Exception as raised:
        if isinstance(raised, OSError) and not isinstance(raised, DpdistError):
            raise _fault(call.terms, raised) from None
        return Outcome(None, time.perf_counter() - began, _portable(raised))
    return Outcome(value, time.perf_counter() - began + sum(each.seconds for each in inputs))


def hold(value: Any) -> Any:
    """A shared value: a task like any other, so that a value lost with its worker is made again."""
    return value


def _fault(terms: Terms, error: OSError) -> TaskFault:
    worker = get_worker()
    fault = TaskFault(worker.get_current_task(), f"{type(error).__name__}: {error}", worker.address)
    worker.log_event(terms.topic, {"key": fault.key, "told": fault.told})
    time.sleep(terms.pause)
    return fault


def _portable(error: Exception) -> Exception:
    """The error, or its text where it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _filled(arguments: tuple[Any, ...], inputs: Sequence[Outcome]) -> list[Any]:
    unpacked: dict[int, Any] = {}

    def fill(argument: Any) -> Any:
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
