"""Checks of the cluster while results are awaited: there may be no workers left, or none may be active.

Dask's scheduler restarts silent workers (``worker-ttl``), and a worker that takes too long for one task ends itself
(:mod:`dpdist.execution.tasks`). Dask does not report a cluster without workers.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Coroutine, Mapping
from typing import TypeVar

from distributed import Client

from dpdist.execution.faults import TaskLimits, nobody_there, nobody_works

logger = logging.getLogger("dpdist")
Answer = TypeVar("Answer")

#: Seconds after which a request to the scheduler counts as unanswered.
_ANSWER = 20.0
#: Seconds without workers before a warning.
_TELL_AFTER = 60.0
#: Task states in which a worker is active.
_AT_WORK = ("executing", "flight", "long-running", "resumed")


class Watch:
    """Detects that there are no workers, or that none is active.

    Parameters
    ----------
    client : of the cluster
    limits : of the time that this may last
    workers : desired number, if the client's own cluster does not replace workers that end; 0 if it does

    Attributes
    ----------
    lost : number of workers that left
    """

    def __init__(self, client: Client, limits: TaskLimits, workers: int = 0) -> None:
        self._client, self._limits, self._workers = client, limits, workers
        self._seen: Mapping[str, tuple[object, bool]] = {}
        self.lost = 0
        self.begin()

    def begin(self) -> None:
        """Reset the times, as the time between two waits does not count."""
        self._peopled = self._busy = time.monotonic()
        self._told = False

    def look(self, awaited: bool = True) -> None:
        """Raise :class:`ClusterLostError` if there was no worker, or no activity, for longer than the limits allow. If
        no results are `awaited`, workers may be idle."""
        now, address = time.monotonic(), self._client.scheduler.address
        found = ask(self._client, _snapshot(self._client))
        if found is not None:
            if len(found) < self._workers:
                self._client.cluster.scale(self._workers)
            self.lost += len(self._seen.keys() - found.keys())
        if found:
            self._peopled, self._told = now, False
            if not awaited or found != self._seen or any(works for _, works in found.values()):
                self._busy = now
        else:
            self._busy = now
        self._seen = self._seen if found is None else found
        if now - self._peopled > self._limits.patience:
            raise nobody_there(address, now - self._peopled)
        if now - self._busy > self._limits.idle_after:
            raise nobody_works(address, self._limits.idle_after)
        if now - self._peopled > _TELL_AFTER and not self._told:
            self._told = True
            logger.warning("the cluster at %s has no workers, or does not answer; waiting for workers", address)


def ask(client: Client, question: Coroutine[object, None, Answer]) -> Answer | None:
    """The result of a coroutine on the client's own loop; None without an answer."""
    asked = asyncio.run_coroutine_threadsafe(question, client.loop.asyncio_loop)
    try:
        return asked.result(timeout=_ANSWER)
    except (OSError, concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
        asked.cancel()
        return None


async def _snapshot(client: Client) -> dict[str, tuple[object, bool]]:
    """For each worker, by address, its assigned tasks, and whether it is active."""
    given = await client.scheduler.processing(workers=None)
    workers = (await client.scheduler.identity(n_workers=-1))["workers"]
    return {address: (given.get(address), _works(each.get("metrics", {}))) for address, each in workers.items()}


def _works(metrics: Mapping[str, Mapping[str, int]]) -> bool:
    counts = metrics.get("task_counts", {})
    return any(counts.get(state) for state in _AT_WORK) or bool(metrics.get("transfer", {}).get("outgoing_count"))
