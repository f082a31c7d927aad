"""What goes wrong on a cluster, how often it may, and the sentences that say so."""

from __future__ import annotations

import asyncio
import concurrent.futures
from dataclasses import dataclass

from distributed.scheduler import KilledWorker

from dpdist.core.errors import ClusterError, ClusterLostError, InputError
from dpdist.execution.lineage import Task, describe
from dpdist.execution.tasks import TaskFault

#: What cancels futures or loses what they stand for; the task itself is not at fault.
INTERRUPTIONS = (concurrent.futures.CancelledError, asyncio.CancelledError, OSError)


@dataclass(frozen=True)
class Limits:
    """How long to wait and how often to begin again.

    Parameters
    ----------
    attempts : tries of a task whose reading fails, that is cancelled or that does not come forward
    deaths : worker processes that may end under one task; Dask itself begins it again elsewhere
    stuck_after : seconds after which a worker that does not come forward is restarted
    idle_after : seconds for which every worker does nothing, though results are awaited, before all are restarted
    patience : seconds to wait for a cluster without workers, or a scheduler that does not answer
    grace : seconds within which a lost connection to the scheduler may come back
    pause : seconds before another try of a task whose reading failed
    period : seconds between looks at the workers
    """

    attempts: int = 3
    deaths: int = 10
    stuck_after: float = 600.0
    idle_after: float = 60.0
    patience: float = 1800.0
    grace: float = 5.0
    pause: float = 5.0
    period: float = 2.0

    def __post_init__(self) -> None:
        if (
            self.attempts < 1
            or self.deaths < 0
            or min(self.stuck_after, self.idle_after, self.patience, self.period) <= 0
        ):
            raise InputError(
                f"attempts should be 1 or more, deaths 0 or more, times above 0; got {self}. Give such limits."
            )


def verdict(error: BaseException, task: Task, limits: Limits) -> BaseException | None:
    """What to raise, or None where the task may be begun again; counts the task's misfortunes.

    Parameters
    ----------
    error : what the cluster gave instead of a result
    task : that it befell
    limits : how often it may
    """
    if isinstance(error, TaskFault):
        return _failed(task, error, limits.attempts)
    if isinstance(error, KilledWorker):
        task.deaths += error.allowed_failures + 1
        return _deadly(task) if task.deaths > limits.deaths else None
    if isinstance(error, INTERRUPTIONS):
        task.cancelled += 1
        return _cancelled(task, error) if task.cancelled >= limits.attempts else None
    if isinstance(error, ImportError):
        return InputError(
            f"a worker cannot import what a task needs ({error}); install the same packages on all workers."
        )
    return error


def _failed(task: Task, fault: TaskFault, attempts: int) -> ClusterError:
    return ClusterError(
        f"{describe(task)} failed in {attempts} of {attempts} tries, last with {fault.told} (worker {fault.worker}). "
        "See that every worker can read the data, then resume."
    )


def _deadly(task: Task) -> ClusterError:
    return ClusterError(
        f"{describe(task)} could not be finished: {task.deaths} worker processes ended while they had it, most likely "
        "killed for want of memory. Give workers more memory, or convert the data to smaller chunks, then resume."
    )


def _cancelled(task: Task, error: BaseException) -> ClusterError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ClusterError(
        f"{describe(task)} was cancelled or lost {task.cancelled} times, last with: {reason} "
        "See who else uses the cluster and the scheduler's log, then resume."
    )


def stuck(task: Task, times: int, seconds: float) -> ClusterError:
    """The error of a task that did not come forward on several workers."""
    return ClusterError(
        f"{describe(task)} did not finish within {seconds:g} s on {times} workers, each restarted for it. See that the "
        "storage answers there; if a task may well take that long, allow more seconds; then resume."
    )


def scheduler_gone(address: str) -> ClusterLostError:
    """The error of a connection that did not come back."""
    return ClusterLostError(
        f"the Dask scheduler at {address} is gone: the connection ended and did not come back. "
        "Start a cluster again, then resume."
    )


def nobody_there(address: str, seconds: float) -> ClusterLostError:
    """The error of a cluster without workers, or without answers."""
    return ClusterLostError(
        f"the Dask cluster at {address} had no worker, or did not answer, for {seconds:g} s. "
        "See what became of its workers, start them again, then resume."
    )


def nobody_works(address: str, seconds: float, times: int) -> ClusterLostError:
    """The error of a cluster whose workers are there and do nothing, also after they were restarted."""
    return ClusterLostError(
        f"no worker of the Dask cluster at {address} did anything for {seconds:g} s, though there is work, and {times} "
        "restarts of all of them changed nothing. See whether they are paused for want of memory, then resume."
    )
