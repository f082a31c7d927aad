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

from dpdist.execution.faults import Limits, nobody_there, nobody_works

logger = logging.getLogger("dpdist")

#: Seconds a question to the scheduler may take before it counts as unanswered.
_ANSWER = 20.0
#: Seconds a worker is given to end before it is killed.
_RESTART = 10.0
#: Seconds without workers before that is told.
_TELL_AFTER = 60.0
#: States of a worker's own tasks in which it is at them.
_AT_WORK = ("executing", "flight", "long-running", "resumed")


@dataclass(frozen=True)
class _Told:
    """What is known of a worker: tasks it is at, or next at; its last sign of life; whether that said it works."""

    tasks: tuple[Any, ...]
    sign: float
    works: bool


@dataclass(frozen=True)
class _Sight:
    """A worker as it was seen, when its tasks and its sign of life last changed, and for how long it does nothing."""

    told: _Told
    tasks_since: float
    sign_since: float
    idle: float = 0.0

    def later(self, told: _Told, now: float) -> _Sight:
        """The same worker as it is seen now; only its own fresh signs say that it does nothing."""
        fresh, same = told.sign != self.told.sign, told.tasks == self.told.tasks
        since = now if fresh else self.sign_since
        idle = 0.0 if told.works or not same else self.idle + (since - self.sign_since)
        return _Sight(told, self.tasks_since if same else now, since, idle)


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
        self.restarts = self.lost = self._idle_rounds = 0

    def begin(self) -> None:
        """Forget times: what happened while nobody looked is not held against workers."""
        now = time.monotonic()
        self._peopled, self._told = now, False
        self._seen = {a: _Sight(s.told, now, now) for a, s in self._seen.items()}

    def look(self, awaited: bool = True) -> dict[Any, int]:
        """Restart stuck workers.

        Parameters
        ----------
        awaited : whether results are not there yet; workers may do nothing while one only fetches

        Returns
        -------
        key -> number of workers restarted under it so far, for tasks at which a worker just now was

        Raises
        ------
        ClusterLostError
            If there was no worker, or none did anything, for as long as the limits allow.
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
        before = {a: self._seen.get(a) or _Sight(told, now, now) for a, told in found.items()}
        self._seen = {a: before[a].later(told, now) for a, told in found.items()}
        suspects, long = self._suspects(now), self._limits.stuck_after
        if suspects:
            return self._restart(suspects, f"has not come forward for {long:g} s")
        if awaited and self._all_idle():
            self._restart(list(self._seen), "has, like all others, done nothing of what there is to do")
        return {}

    def _ask(self) -> dict[str, _Told] | None:
        """What is known of each worker, by address; None: no answer."""
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
            a for a, s in self._seen.items() if any(map(self._ours, s.told.tasks)) and now - s.tasks_since > long
        ]

    def _all_idle(self) -> bool:
        """Whether all workers do nothing though results are awaited: Dask has lost track of what they were given."""
        if any(sight.told.works for sight in self._seen.values()):
            self._idle_rounds = 0
        least = self._limits.idle_after
        if any(sight.idle <= least for sight in self._seen.values()):
            return False
        self._idle_rounds += 1
        if self._idle_rounds > self._limits.attempts:
            raise nobody_works(self._client.scheduler.address, least, self._limits.attempts)
        return True

    def _restart(self, addresses: list[str], reason: str) -> dict[Any, int]:
        keys = [key for address in addresses for key in self._seen[address].told.tasks if self._ours(key)]
        for address in addresses:
            logger.warning("the worker %s %s and is restarted; its tasks are begun again", address, reason)
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


async def _snapshot(client: Client) -> dict[str, _Told]:
    working = await client.scheduler.processing(workers=None)
    workers = (await client.scheduler.identity(n_workers=-1))["workers"]
    return {
        address: _Told(tuple(working.get(address, ()))[: each["nthreads"]], float(each["last_seen"]), _works(each))
        for address, each in workers.items()
    }


def _works(worker: Mapping[str, Any]) -> bool:
    """Whether a worker says that it is at tasks, or hands over their results."""
    metrics = worker.get("metrics", {})
    counts = metrics.get("task_counts", {})
    return any(counts.get(state) for state in _AT_WORK) or bool(metrics.get("transfer", {}).get("outgoing_count"))
