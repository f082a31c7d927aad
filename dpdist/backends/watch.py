"""Looks at workers while results are awaited: some are stuck, and sometimes none is left."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from distributed import Client

from dpdist.backends.faults import Limits, nobody_there

logger = logging.getLogger("dpdist")

#: Seconds a question to the scheduler may take before it counts as unanswered.
_ANSWER = 20.0
#: Seconds a worker is given to end before it is killed.
_RESTART = 10.0
#: Seconds without workers before that is told.
_TELL_AFTER = 60.0


@dataclass(frozen=True)
class _Sight:
    """A worker as it was seen: what it works on, its last sign of life, and when either last changed."""

    tasks: tuple[Any, ...]
    sign: float
    tasks_since: float
    sign_since: float


class Watch:
    """Restarts workers that do not come forward, and says when there are none.

    Parameters
    ----------
    client : of the cluster
    limits : how long a worker may be at the same tasks
    ours : whether a key is one of ours; workers at others' tasks are left alone
    workers : that the client's own cluster should have; others look after themselves
    """

    def __init__(self, client: Client, limits: Limits, ours: Callable[[Any], bool], workers: int = 0) -> None:
        self._client, self._limits, self._ours, self._workers = client, limits, ours, workers
        self._seen: dict[str, _Sight] = {}
        self._peopled, self._told = time.monotonic(), False
        self._stuck: Counter[Any] = Counter()
        self.restarts = self.lost = 0

    def begin(self) -> None:
        """Forget times: what happened while nobody looked is not held against workers."""
        now = time.monotonic()
        self._peopled, self._told = now, False
        self._seen = {a: _Sight(s.tasks, s.sign, now, now) for a, s in self._seen.items()}

    def look(self) -> dict[Any, int]:
        """Restart stuck workers.

        Returns
        -------
        key -> number of workers restarted under it so far, for tasks at which a worker just now was

        Raises
        ------
        ClusterLostError
            If there was no worker for as long as the limits allow.
        """
        now = time.monotonic()
        found = self._ask()
        if found is not None and len(found) < self._workers:
            self._client.cluster.scale(self._workers)
        if not found:
            self._miss(now)
            self._forget(found)
            return {}
        self._peopled, self._told = now, False
        self._forget(found)
        self._seen = {a: _seen_again(self._seen.get(a), *each, now) for a, each in found.items()}
        return self._restart(self._suspects(now))

    def _ask(self) -> dict[str, tuple[tuple[Any, ...], float]] | None:
        """Address -> tasks that a worker's threads are at, or next at, and its last sign of life; None: no answer."""
        return ask(self._client, _snapshot(self._client))

    def _miss(self, now: float) -> None:
        waited, address = now - self._peopled, self._client.scheduler.address
        if waited > self._limits.patience:
            raise nobody_there(address, waited)
        if waited > _TELL_AFTER and not self._told:
            logger.warning(
                "the cluster at %s has had no worker, or has not answered, for %.0f s; waiting for workers to come "
                "back, %.0f s at most",
                address,
                waited,
                self._limits.patience,
            )
            self._told = True

    def _forget(self, found: Mapping[str, Any] | None) -> None:
        if found is None:
            return
        gone = self._seen.keys() - found.keys()
        self.lost += len(gone)
        self._seen = {address: sight for address, sight in self._seen.items() if address in found}

    def _suspects(self, now: float) -> list[str]:
        """Workers without a sign of life or, where all give one, those at the same tasks for too long."""
        long = self._limits.stuck_after
        silent = [a for a, s in self._seen.items() if now - s.sign_since > long]
        return silent or [
            a for a, s in self._seen.items() if any(map(self._ours, s.tasks)) and now - s.tasks_since > long
        ]

    def _restart(self, addresses: list[str]) -> dict[Any, int]:
        if not addresses:
            return {}
        keys = [key for address in addresses for key in self._seen[address].tasks if self._ours(key)]
        for address in addresses:
            logger.warning(
                "the worker %s has not come forward for %.0f s and is restarted; its tasks go to others",
                address,
                self._limits.stuck_after,
            )
        with contextlib.suppress(TimeoutError, OSError, RuntimeError):
            self._client.restart_workers(addresses, timeout=_RESTART, raise_for_error=False)
        self.restarts += len(addresses)
        self._seen = {address: sight for address, sight in self._seen.items() if address not in addresses}
        self.begin()
        self._stuck.update(keys)
        return {key: self._stuck[key] for key in keys}


def ask(client: Client, question: Coroutine[Any, Any, Any]) -> Any:
    """The answer to a question that runs on the client's own loop; None where none comes."""
    asked = asyncio.run_coroutine_threadsafe(question, client.loop.asyncio_loop)
    try:
        return asked.result(timeout=_ANSWER)
    except (OSError, concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
        asked.cancel()
        return None


async def _snapshot(client: Client) -> dict[str, tuple[tuple[Any, ...], float]]:
    working = await client.scheduler.processing(workers=None)
    workers = (await client.scheduler.identity(n_workers=-1))["workers"]
    return {
        address: (tuple(working.get(address, ()))[: each["nthreads"]], float(each["last_seen"]))
        for address, each in workers.items()
    }


def _seen_again(before: _Sight | None, tasks: tuple[Any, ...], sign: float, now: float) -> _Sight:
    if before is None:
        return _Sight(tasks, sign, now, now)
    return _Sight(
        tasks,
        sign,
        before.tasks_since if tasks == before.tasks else now,
        before.sign_since if sign == before.sign else now,
    )
