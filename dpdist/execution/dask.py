"""The same calls as tasks on a Dask cluster, begun again when the cluster loses them.

Tasks are pure, and shared values are small enough to travel inside tasks or are held by tasks of their own. Dask runs
again what was lost with a worker. What Dask gives up is begun again here, from the recipe that each ref carries: what
was cancelled, what needs it, and of what it needs that which nobody holds any more.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import time
import traceback
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dask
from distributed import Client, Future
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from dpdist.core.errors import InputError
from dpdist.core.versions import VERSIONED
from dpdist.core.waiting import wait_until
from dpdist.execution.base import Backend, Counts, Ref, Remote, add_results
from dpdist.execution.faults import Limits, scheduler_gone, stuck, verdict
from dpdist.execution.grouping import group_size
from dpdist.execution.lineage import Held, Task, ancestry, describe, pack, recipes
from dpdist.execution.tasks import Call, Outcome, Slot, TaskFault, Terms, hold, perform
from dpdist.execution.versions import code_versions, probe, refusal
from dpdist.execution.watch import Watch, ask

logger = logging.getLogger("dpdist")

#: States of a future whose value will not come: by no fault of its task's, and in all.
_LOST = ("cancelled", "lost")
_BROKEN = (*_LOST, "error")


#: What tasks need is sent with them, so that it can be sent again; Dask would call that a large graph.
_LARGE = {"distributed.admin.large-graph-warning-threshold": "1TiB"}


class DaskBackend(Backend):
    """Tasks on the cluster behind `client`.

    Parameters
    ----------
    client : distributed.Client
    owned : whether :meth:`close` closes the client and its cluster
    limits : how long to wait and how often to begin again
    workers : that the client's own cluster should have, where it does not replace those that end; 0: it does

    Raises
    ------
    InputError
        If a worker runs other versions than this process.
    """

    def __init__(self, client: Client, owned: bool = False, limits: Limits | None = None, workers: int = 0) -> None:
        self.client, self._owned, self.limits = client, owned, limits or Limits()
        self._run, self._calls = uuid.uuid4().hex[:12], itertools.count()
        self._topic = f"dpdist-tries-{self._run}"
        self._terms = Terms(self._topic, code_versions(), self.limits.pause)
        self._watch = Watch(client, self.limits, self._is_ours, workers)
        self._address = client.scheduler.address
        self._finished = self._resubmitted = self._tries = 0
        self._seconds: dict[str, float] = {}
        self._tasks: weakref.WeakValueDictionary[Any, Task] = weakref.WeakValueDictionary()
        self._require_cluster()
        _refuse_other_versions(client)
        client.subscribe_topic(self._topic, self._note_try)

    def share(self, value: Any, label: str | None = None) -> Ref:
        if isinstance(value, Remote):
            return self._submit([Task(value.completion, (self._own(value.future),), "shared value", label)])[0]
        packed = pack(value, label)
        if packed is not None:
            return packed
        return self._submit([Task(hold, (value,), "shared value", label)])[0]

    def map(self, function: Callable[..., Any], *columns: Sequence[Any]) -> list[Ref]:
        return self._map(function, list(zip(*columns, strict=True)), _name(function))

    def _join(self, function: Callable[..., Any], *columns: Sequence[Any]) -> list[Ref]:
        """Before other tasks, so that partial results do not pile up."""
        return self._map(function, list(zip(*columns, strict=True)), _name(function), priority=1)

    def total(self, function: Callable[..., Any], *columns: Sequence[Any]) -> Ref:
        rows, name = len(columns[0]), _name(function)
        size = group_size(rows, self._seconds.get(name), self._threads())
        groups = [[list(column[i : i + size]) for column in columns] for i in range(0, rows, size)]
        parts = self._map(add_results, [(function, *group) for group in groups], name)
        total = self.sum(parts)
        total.task.timed, total.task.rows = name, rows
        return total

    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        held = [ref for ref in refs if isinstance(ref, Held)]
        self._watch.begin()
        found = iter(self._outcomes(held) if held else [])
        return [next(found).value if isinstance(ref, Held) else ref.value() for ref in refs]

    @property
    def counts(self) -> Counts:
        again = self._resubmitted + self._tries
        return Counts(self._finished, again, self._watch.restarts, self._watch.lost)

    def close(self) -> None:
        if not self._owned:
            return
        cluster = self.client.cluster
        with _quietly():
            self.client.close(timeout=5)
            if cluster is not None:
                cluster.close()

    def _map(self, function: Callable[..., Any], rows: list[tuple], name: str, priority: int = 0) -> list[Held]:
        return self._submit(
            [
                Task(function, recipes(row), name, place=f" (call {i + 1} of {len(rows)})", priority=priority)
                for i, row in enumerate(rows)
            ]
        )

    def _submit(self, tasks: Sequence[Task], broken: tuple[str, ...] = _LOST) -> list[Held]:
        """Submit tasks, and before them those they need whose future is `broken` or that nobody holds any more."""
        depths: dict[Task, int] = {}
        for task in tasks:
            _plan(task, depths, broken)
        kept: list[Held] = []
        for _, level in itertools.groupby(sorted(depths, key=lambda t: _rank(t, depths)), lambda t: _rank(t, depths)):
            kept += self._send(list(level))
        if len(kept) > len(tasks):
            self._resubmitted += len(kept) - len(tasks)
        held = {one.task: one for one in kept}
        return [held[task] for task in tasks]

    def _send(self, tasks: list[Task]) -> list[Held]:
        """One graph of tasks that do not need each other."""
        self._require_cluster()
        stem = f"{tasks[0].name}-{next(self._calls)}-{self._run}"
        keys = [(stem, i) for i in range(len(tasks))]
        calls, inputs = zip(*(_as_call(task, self._terms) for task in tasks), strict=True)
        with dask.config.set(_LARGE):
            futures = self.client.map(
                perform, calls, inputs, key=keys, priority=tasks[0].priority, retries=self.limits.attempts - 1
            )
        for task, key in zip(tasks, keys, strict=True):
            task.key = key
            self._tasks[key] = task
        return [_hold(task, future) for task, future in zip(tasks, futures, strict=True)]

    def _outcomes(self, held: list[Held]) -> list[Outcome]:
        while True:
            self._require_cluster()
            outcomes, error = self._wait([one.future for one in held])
            if error is None:
                break
            self._recover(held, error)
        for one, outcome in zip(held, outcomes, strict=True):
            if outcome.error is not None:
                raise outcome.error
            self._note(one.task, outcome)
        return outcomes

    def _wait(self, futures: list[Any]) -> tuple[list[Outcome], BaseException | None]:
        """What came, or the error that came instead; looks at the workers meanwhile."""
        loop = self.client.loop.asyncio_loop
        waiting = asyncio.run_coroutine_threadsafe(_gather(self.client, futures), loop)
        try:
            while not concurrent.futures.wait([waiting], timeout=self.limits.period).done:
                self._require_cluster()
                awaited = any(future.status == "pending" for future in futures)
                for key, times in self._watch.look(awaited).items():
                    self._resubmitted += 1
                    if times >= self.limits.attempts and key in self._tasks:
                        raise stuck(self._tasks[key], times, self.limits.stuck_after)
        finally:
            waiting.cancel()
        outcomes, error = waiting.result()
        if error is not None:
            # Its frames hold it and all that was awaited: results that nobody asks for would stay on the cluster.
            traceback.clear_frames(error.__traceback__)
        return outcomes, error

    def _recover(self, held: list[Held], error: BaseException) -> None:
        """Begin again what is broken, or raise what there is to raise."""
        self._require_cluster()
        broken = [one.task for one in held if one.future.status in _BROKEN]
        first = self._tasks.get(_key(error)) or (broken[0] if broken else held[0].task)
        # Several may be at fault at once, though one error comes first: none is begun again without being judged.
        for task, fault in {first: error, **_faults(broken)}.items():
            judged = verdict(fault, task, self.limits)
            if judged is not None:
                raise judged
            logger.warning("%s was lost (%s) and is begun again", describe(task), type(fault).__name__)
        self._resubmitted += len(broken)
        self._submit(broken, _BROKEN)

    def _require_cluster(self) -> None:
        """Raise :class:`ClusterLostError` unless the scheduler is there, or comes back within the grace."""
        told = ("running", "closed", "closing")
        wait_until(lambda: self.client.status in told, time.monotonic() + self.limits.grace, pause=0.05)
        if self.client.status != "running":
            raise scheduler_gone(self._address)

    def _note(self, task: Task, outcome: Outcome) -> None:
        """Remember what finished and how long a row of a sum took."""
        if task.timed is not None:
            self._seconds[task.timed] = outcome.seconds / task.rows
        for each in ancestry(task):
            self._finished += not each.counted
            each.counted = True

    def _note_try(self, event: tuple[float, dict[str, Any]]) -> None:
        """Called where a worker tells of a try that failed, on the client's own thread."""
        told = event[1]
        self._tries += 1
        task = self._tasks.get(told["key"])
        logger.warning("%s failed with %s and is tried again", describe(task) if task else "a task", told["told"])

    def _own(self, future: Future) -> Future:
        """The same result as a future of our client."""
        there, here = (client.scheduler.address for client in (future.client, self.client))
        if there != here:
            raise InputError(
                f"the data are persisted on the Dask cluster at {there}, and the work is for the one at {here}. Give "
                "the data as they were before that, or use that cluster."
            )
        return future if future.client is self.client else Future(future.key, self.client)

    def _threads(self) -> int:
        return sum((ask(self.client, self.client.scheduler.ncores(workers=None)) or {}).values())

    def _is_ours(self, key: Any) -> bool:
        return isinstance(key, tuple) and str(key[0]).endswith(self._run)


def _plan(task: Task, depths: dict[Task, int], broken: tuple[str, ...]) -> int:
    """Note the task, and those of its inputs that have to be submitted before it, with their depths."""
    if task not in depths:
        needed = [each for each in task.inputs() if not _stands(each, broken)]
        depths[task] = max((_plan(each, depths, broken) + 1 for each in needed), default=0)
    return depths[task]


def _faults(tasks: Sequence[Task]) -> dict[Task, BaseException]:
    """Those of the tasks, and of what they need, whose own error broke them, with that error."""
    depths: dict[Task, int] = {}
    for task in tasks:
        _plan(task, depths, _BROKEN)
    erred = [
        (task, held.future.exception()) for task in depths if (held := task.held()) and held.future.status == "error"
    ]
    return {task: error for task, error in erred if _key(error) == task.key}


def _stands(task: Task, broken: tuple[str, ...]) -> bool:
    held = task.held()
    return held is not None and held.future.status not in broken


def _rank(task: Task, depths: dict[Task, int]) -> tuple[int, int, str]:
    return depths[task], task.priority, task.name


def _hold(task: Task, future: Any) -> Held:
    """Who holds the task already goes on with the new future."""
    held = task.held()
    if held is None:
        return Held(task, future)
    held.future = future
    return held


def _as_call(task: Task, terms: Terms) -> tuple[bytes, list[Any]]:
    """The call with slots for what the cluster brings, and the futures of that."""
    slots: dict[Task | Future, Slot] = {}

    def place(argument: Any) -> Any:
        if isinstance(argument, list):
            return [place(each) for each in argument]
        return slots.setdefault(argument, Slot(len(slots))) if isinstance(argument, Task | Future) else argument

    call = Call(terms, task.function, tuple(place(argument) for argument in task.arguments))
    return bytes(call), [future for future in map(_future, slots) if future is not None]


def _future(needed: Task | Future) -> Future | None:
    """What brings the value of a task, if anybody holds it; a future of others' work brings its own."""
    if isinstance(needed, Future):
        return needed
    held = needed.held()
    return None if held is None else held.future


def _key(error: BaseException) -> Any:
    """The key of the task that an error tells of, if it does."""
    if isinstance(error, KilledWorker):
        return error.task
    return error.key if isinstance(error, TaskFault | FutureCancelledError) else None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "call").strip("_")


async def _gather(client: Client, futures: list[Any]) -> tuple[list[Outcome], BaseException | None]:
    try:
        return await client.gather(futures, asynchronous=True), None
    except (Exception, asyncio.CancelledError) as error:
        return [], error


def _refuse_other_versions(client: Client) -> None:
    ours = code_versions()
    for told in client.run(probe(VERSIONED), on_error="return").values():
        error = refusal(told, ours, told["host"]) if isinstance(told, dict) else None
        if error is not None:
            raise error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep Dask from telling of each connection that an orderly end closes."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
