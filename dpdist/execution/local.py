"""Worker processes on this machine that stay: one that ends is started again, also when it ends while it starts.

Dask's own nanny gives up for good on a process that ends before it has told that it is ready, as one does that is
killed at that moment or takes a task at once that kills it. Dask's own local cluster closes a nanny whose process
needs more than 15 s to come back, as it may on a busy machine, and opens no other.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import dask
from distributed import LocalCluster, Nanny, Status

from dpdist.execution.settings import WORKER_ENVIRONMENT

#: Starts in a row that may fail, and seconds between them.
_STARTS, _BETWEEN = 30, 0.5
#: Seconds a process may take to tell that it is ready before it is killed and another is started.
_START = 180.0
#: States of a nanny that is told to end.
_ENDING = (Status.closing, Status.closed, Status.closing_gracefully)


class PersistentNanny(Nanny):
    """A nanny that starts its process again where Dask's gives up, each time with dpdist's environment."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.pre_spawn_env |= WORKER_ENVIRONMENT

    async def instantiate(self) -> Status:
        """Start the worker process; raises what a try raised while the nanny ends."""
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
        await super().close(reason="the worker process ends whenever it is started")
        raise RuntimeError("the worker process ends whenever it is started")

    def _kill_starting(self) -> None:
        if self.process is not None and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGKILL)

    async def close(self, timeout: float = 5, reason: str = "nanny-close") -> str:
        """End the process and the nanny, except for a start that failed."""
        return "OK" if reason.startswith("nanny-instantiate") else await super().close(timeout=timeout, reason=reason)


class PersistentCluster(LocalCluster):
    """So many worker processes of one thread each, bound to loopback, with a memory limit as Dask takes it."""

    def __init__(self, workers: int, memory_limit: str | float | None = "auto") -> None:
        loopback = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
        given = {"threads_per_worker": 1, "worker_class": PersistentNanny, "memory_limit": memory_limit}
        super().__init__(n_workers=workers, **loopback, **given)

    def _update_worker_status(self, op: str, msg: object) -> None:
        with dask.config.set({"distributed.deploy.lost-worker-timeout": "10m"}):
            super()._update_worker_status(op, msg)
