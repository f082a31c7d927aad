"""Failures of a cluster: limits for waiting and retrying, and the errors raised."""

from __future__ import annotations

import asyncio
import concurrent.futures
from dataclasses import dataclass

from dpdist.core.errors import ClusterError, ClusterLostError, InputError

#: Errors that mean cancelled futures or lost results, without a fault of the task.
INTERRUPTIONS = (concurrent.futures.CancelledError, asyncio.CancelledError, OSError)


@dataclass(frozen=True)
class TaskLimits:
    """Limits of waiting times and tries. Dask's scheduler itself counts the deaths of workers under one task.

    Parameters
    ----------
    attempts : tries of a task whose reading fails, or that does not finish
    stuck_after : seconds after which a worker that is busy with one task, or silent, is restarted
    idle_after : seconds without activity of any worker, while results are awaited, before the cluster is given up
    patience : seconds to wait for a cluster without workers, or a scheduler that does not answer
    grace : seconds within which a lost connection to the scheduler may come back
    pause : seconds before a task whose reading failed is retried
    period : seconds between checks of the workers
    """

    attempts: int = 3
    stuck_after: float = 600.0
    idle_after: float = 60.0
    patience: float = 1800.0
    grace: float = 5.0
    pause: float = 5.0
    period: float = 2.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.stuck_after, self.idle_after, self.patience, self.period) <= 0:
            raise InputError(
                f"attempts should be at least 1, and stuck_after, idle_after, patience and period above 0; got {self}."
            )


def described(key: object) -> str:
    """The label of a task, which is the last part of its key."""
    return key[-1] if isinstance(key, tuple) and isinstance(key[-1], str) else str(key)


def judged(error: BaseException) -> BaseException:
    """The error to raise for an error of the cluster."""
    if isinstance(error, INTERRUPTIONS):
        reason = " ".join(str(error).split()) or type(error).__name__
        return ClusterLostError(
            f"results were cancelled or lost ({reason}). Check who else uses the cluster and the scheduler's log, then "
            "resume."
        )
    if isinstance(error, ImportError):
        return InputError(
            f"a worker cannot import what a task needs ({error}); install the same packages on all workers."
        )
    return error


def deadly(task: str) -> ClusterError:
    """The error of a task that killed its workers."""
    return ClusterError(
        f"{task} could not be finished: its worker processes ended again and again, most likely killed because memory "
        "ran out. Give workers more memory, or convert the data to smaller chunks, then resume."
    )


def unreadable(task: str, attempts: int, reason: str, worker: str) -> ClusterError:
    """The error of a task that could not read its inputs or write its results."""
    return ClusterError(
        f"{task} failed in {attempts} of {attempts} tries, last with {reason} (worker {worker}). "
        "Check that every worker can read the data and write the output, and that its disk has space; then resume, or "
        "repeat the command."
    )


def stuck(task: str, times: int, seconds: float) -> ClusterError:
    """The error of a task that did not finish on several workers."""
    return ClusterError(
        f"{task} did not finish within {seconds:g} s on {times} workers, each of which was restarted. Check that "
        "the storage answers on the workers. If the task needs that long, allow more seconds. Then resume."
    )


def scheduler_gone(address: str) -> ClusterLostError:
    """The error of a lost connection to the scheduler."""
    return ClusterLostError(
        f"the Dask scheduler at {address} is gone: the connection ended and did not come back. "
        "Start a cluster again, then resume."
    )


def nobody_there(address: str, seconds: float) -> ClusterLostError:
    """The error of a cluster without workers, or without answers."""
    return ClusterLostError(
        f"the Dask cluster at {address} had no worker, or did not answer, for {seconds:g} s. "
        "Find out why its workers ended, start them again, then resume."
    )


def nobody_works(address: str, seconds: float) -> ClusterLostError:
    """The error of a cluster whose workers are idle although tasks are waiting: Dask has lost track of the tasks."""
    return ClusterLostError(
        f"no worker of the Dask cluster at {address} was active for {seconds:g} s, although tasks are waiting. "
        "Check whether the workers are paused because they lack memory, then resume."
    )
