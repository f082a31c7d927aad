"""Persistent worker processes on this machine: a process that ends is restarted, even if it ends during its start.

Dask's own nanny gives up permanently on a process that ends before it is ready, for example if it is killed at that
moment or at once receives a task that kills it. Dask's own local cluster closes a nanny whose process needs more than
15 s to come back, which happens on a busy machine, and opens no other.
"""

from __future__ import annotations

import asyncio
import os
import signal
from multiprocessing import resource_tracker
from typing import Any

import dask
from distributed import LocalCluster, Nanny, Status

from dpdist.execution.settings import WORKER_ENVIRONMENT

#: Largest number of failed starts in a row, and seconds between them.
_STARTS, _BETWEEN = 30, 0.5
#: Seconds after which a starting process that is not ready is killed and another is started.
_START = 180.0
#: States of a nanny that is ending.
_ENDING = (Status.closing, Status.closed, Status.closing_gracefully)


class PersistentNanny(Nanny):
    """A nanny that restarts its process if Dask's would give up, each time with dpdist's environment."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.pre_spawn_env |= WORKER_ENVIRONMENT

    async def instantiate(self) -> Status:
        """Start the worker process; raises the error of a start only while the nanny ends, or after too many failed
        starts."""
        # Until the process ignores Ctrl-C (preload.py), it is blocked there, as it is in this thread, from then on.
        resource_tracker.ensure_running()  # otherwise started below, which would allow it again in this thread
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        for _ in range(_STARTS):
            late = asyncio.get_running_loop().call_later(_START, self._kill_starting)
            try:
                if (status := await super().instantiate()) == Status.running:
                    return status
            except Exception:
                if self.status in _ENDING:
                    raise
            finally:
                late.cancel()
            if self.status in _ENDING:
                return self.status
            await asyncio.sleep(_BETWEEN)
        await super().close(reason="the worker process ended after every start")
        raise RuntimeError("the worker process ended after every start")

    def _kill_starting(self) -> None:
        if self.process is not None and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGKILL)

    async def close(self, timeout: float = 5, reason: str = "nanny-close") -> str:
        """End the process and the nanny, but not after a failed start."""
        return "OK" if reason.startswith("nanny-instantiate") else await super().close(timeout=timeout, reason=reason)


class PersistentCluster(LocalCluster):
    """A given number of single-threaded worker processes, bound to loopback, with a memory limit as in Dask."""

    def __init__(self, workers: int, memory_limit: str | float | None = "auto") -> None:
        loopback = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
        given = {"threads_per_worker": 1, "worker_class": PersistentNanny, "memory_limit": memory_limit}
        try:
            super().__init__(n_workers=workers, **loopback, **given)
        except Exception:
            raise  # Dask has closed it
        except BaseException:  # a signal, after which Dask would not know the nannies that it had made
            self.workers |= {nanny.name: nanny for nanny in self._created}
            self.close()
            raise

    def _update_worker_status(self, op: str, msg: object) -> None:
        with dask.config.set({"distributed.deploy.lost-worker-timeout": "10m"}):
            super()._update_worker_status(op, msg)
