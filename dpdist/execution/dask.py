"""The backend that runs calls as tasks on a Dask cluster.

Tasks are pure, and shared values either travel inside tasks or are results of tasks. Therefore Dask can compute again
what was lost with a worker, and retry tasks whose reading failed. If Dask gives up (results cancelled by others, or the
scheduler is gone), the batch in progress is lost; the run continues from the last completed batch.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

import dask
from dask._task_spec import List, Task, TaskRef
from dask.typing import Key
from distributed import Client, Future, Scheduler
from distributed.client import AllExit
from distributed.scheduler import KilledWorker

from dpdist.core.errors import InputError
from dpdist.core.phases import Phase, add, phase, present
from dpdist.core.versions import VERSIONED
from dpdist.core.waiting import try_until, wait_until
from dpdist.execution.base import Backend, Counts, Ref, Remote, Value, add_results
from dpdist.execution.faults import TaskLimits, deadly, described, judged, scheduler_gone, stuck
from dpdist.execution.grouping import group_size
from dpdist.execution.tasks import Call, Outcome, Packed, Slot, Terms, hold, pack, perform
from dpdist.execution.versions import code_versions, refusal
from dpdist.execution.watch import Watch, ask

logger = logging.getLogger("dpdist")

#: Disables Dask's warning about large graphs, as the inputs of tasks are sent with them.
_LARGE = {"distributed.admin.large-graph-warning-threshold": "1TiB"}
#: Calls submitted within this many seconds have equal priority: 0, so that an earlier batch finishes first.
_ONE_TURN = 0
#: Seconds to wait for a replacement if a scheduler dies while it is asked.
_REPLACED = 30.0
#: Largest number of labels in the description of a task.
_NAMED = 2


@dataclass(eq=False)
class Held(Generic[Value]):
    """A value on the cluster, kept there as long as this object lives.

    Parameters
    ----------
    future : of the :class:`Outcome`
    label : name of the value in messages, if it has one
    rows, timed : for a sum over rows, their number and the name of their function
    """

    future: Future
    label: str | None = None
    rows: int = 0
    timed: str | None = None


class DaskBackend(Backend):
    """Tasks on the cluster behind `client`.

    Parameters
    ----------
    client : distributed.Client
    owned : whether :meth:`close` closes the client and its cluster
    limits : of waiting times and tries
    workers : desired number, if the client's own cluster does not replace workers that end; 0 if it does
    ending : called last in :meth:`close`, if `owned`

    Raises
    ------
    InputError
        If a worker runs other versions than this process, or the client is asynchronous.
    """

    def __init__(
        self,
        client: Client,
        owned: bool = False,
        limits: TaskLimits | None = None,
        workers: int = 0,
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        if client.asynchronous:
            raise InputError(
                "a Dask client should be synchronous; got an asynchronous one. Use Client(address) in another thread, "
                "for example with asyncio.to_thread, or iter_fit(x, backend=dpdist.execution.SerialBackend())."
            )
        self._ending = ending
        self.client, self._owned, self.limits = client, owned, limits or TaskLimits()
        self._run, self._calls = uuid.uuid4().hex[:12], itertools.count()
        topic = f"dpdist-tries-{self._run}"
        self._terms = Terms(topic, code_versions(), self.limits)
        self._watch = Watch(client, self.limits, workers)
        self._address = client.scheduler.address
        self._tries = self._restarts = 0
        self._stuck = Counter[tuple[str, str]]()  # by key and label, of the tasks in progress
        self._seconds: dict[str, float] = {}
        self._require_cluster()
        refuse_other_versions(client)
        if (loop := client.loop.asyncio_loop).get_exception_handler() is None:
            loop.set_exception_handler(_told_but_for_ended_waits)
        client.subscribe_topic(topic, self._heard)

    def share(self, value: Value, label: str | None = None) -> Ref[Value]:
        if isinstance(value, Remote):
            return self._submit(value.completion, [(self._own(value.future),)], "shared value", label)[0]
        return pack(value, label) or self._submit(hold, [(value,)], "shared value", label)[0]

    def map(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        return [*self._submit(function, list(zip(*columns, strict=True)), _name(function))]

    def promptly(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        return [*self._submit(function, list(zip(*columns, strict=True)), _name(function), prompt=True)]

    def apply(self, function: Callable[..., Value], ref: Ref[Any], *arguments: object) -> Ref[Value]:
        found = super().apply(function, ref, *arguments)
        assert isinstance(found, Held), "a call is made there"
        if isinstance(ref, Held):  # its seconds count as those of the values it completes
            found.timed, found.rows = ref.timed, ref.rows
        return found

    def _join(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        """With higher priority than other tasks, so that partial results do not accumulate."""
        return [*self._submit(function, list(zip(*columns, strict=True)), _name(function), joins=True, prompt=True)]

    def total(self, function: Callable[..., Value], *columns: Sequence[object]) -> Ref[Value]:
        self._require_cluster()
        rows, name = len(columns[0]), _name(function)
        size = group_size(rows, self._seconds.get(name), self.threads)
        groups = [[list(column[i : i + size]) for column in columns] for i in range(0, rows, size)]
        parts: list[Held[Value]] = self._submit(add_results, [(function, *group) for group in groups], name)
        total: Ref[Value] = self.sum(parts)
        assert isinstance(total, Held), "a sum of rows is made there"
        total.timed, total.rows = name, rows
        return total

    def fetch(self, refs: Sequence[Ref[Value]]) -> list[Value]:
        held = [ref for ref in refs if isinstance(ref, Held)]
        found = iter(self._counted(held) if held else [])
        return [ref.value() if isinstance(ref, Packed) else next(found).value for ref in refs]

    @property
    def threads(self) -> int:
        return sum((ask(self.client, self.client.scheduler.ncores(workers=None)) or {}).values())

    @property
    def counts(self) -> Counts:
        return Counts(self._tries + self._restarts, self._restarts, self._watch.lost)

    def close(self) -> None:
        if not self._owned:
            return
        cluster = self.client.cluster
        with _quietly():
            self.client.close(timeout=5)
            if cluster is not None:
                cluster.close()
            self._ending()

    def _submit(
        self,
        function: Callable[..., Value],
        rows: Sequence[tuple[object, ...]],
        name: str,
        label: str | None = None,
        joins: bool = False,
        prompt: bool = False,
    ) -> list[Held[Value]]:
        """Submit calls as one graph. Keys contain labels, so that errors that name a key name the call."""
        self._require_cluster()
        if not rows:
            return []
        stem = f"{name}-{next(self._calls)}-{self._run}"
        keys = [
            (stem, i, label or _described(name, row, f" (call {i + 1} of {len(rows)})")) for i, row in enumerate(rows)
        ]
        calls, inputs = zip(*(_as_call(self._terms, function, row, joins) for row in rows), strict=True)
        spread = not joins and _alike(inputs)
        graph = {
            key: Task(key, perform, call.sent(f"{stem}-{i}"), List(*own), _data_producer=spread)
            for i, (key, call, own) in enumerate(zip(keys, calls, inputs, strict=True))
        }
        with dask.config.set(_LARGE), phase(Phase.WAITING):
            futures = self.client.get(
                graph, keys, sync=False, priority=int(prompt), retries=self.limits.attempts - 1, fifo_timeout=_ONE_TURN
            )
        return [Held(future, label) for future in futures]

    def _counted(self, held: Sequence[Held[Value]]) -> list[Outcome]:
        """The outcomes of values; adds the seconds of waiting and of workers to the times of this thread."""
        with phase(Phase.WAITING):
            outcomes = self._outcomes(held)
        for outcome in outcomes:
            add({**outcome.spent, Phase.WORKERS: sum(outcome.spent.values())})
        return outcomes

    def _outcomes(self, held: Sequence[Held[Value]]) -> list[Outcome]:
        """The outcomes of values, once all are available."""
        futures = [one.future for one in held]
        outcomes, error = self._wait(futures)
        while isinstance(error, KilledWorker):
            try:
                self._try_one_by_one(error)
            except OSError as gone:
                raise judged(gone) from gone
            outcomes, error = self._wait(futures)
        if error is not None:
            raise judged(error) from error
        for one, outcome in zip(held, outcomes, strict=True):
            if outcome.error is not None:
                raise outcome.error
            if one.timed is not None:
                self._seconds[one.timed] = outcome.seconds / one.rows
        return outcomes

    def _wait(self, futures: list[Future]) -> tuple[list[Outcome], BaseException | None]:
        """The outcomes, or the error in their place; checks the workers while waiting."""
        self._require_cluster()
        self._watch.begin()
        waiting = asyncio.run_coroutine_threadsafe(_gather(self.client, futures), self.client.loop.asyncio_loop)
        try:
            while not concurrent.futures.wait([waiting], timeout=self.limits.period).done:
                self._require_cluster()
                self._watch.look(any(future.status == "pending" for future in futures))
                for (_, task), times in list(self._stuck.items()):
                    if times >= self.limits.attempts:
                        self._stuck.clear()  # later calls have their own tries
                        raise stuck(task, times, self.limits.stuck_after)
        finally:
            waiting.cancel()
        outcomes, error = waiting.result()
        if error is not None:
            self._require_cluster()
        return outcomes, error

    def _try_one_by_one(self, error: KilledWorker) -> None:
        """Retry the tasks that Dask gave up because workers died, one at a time; raises for the one that kills a
        worker.

        Dask blames all tasks that a dead worker had, so harmless tasks are given up together with a deadly one.
        """
        suspects = self.client.run_on_scheduler(_given_up(self._run))
        for key in suspects:
            future = Future(key, self.client)
            _, fault = self._wait([future])  # this client must know of the failure before the scheduler forgets it
            if len(suspects) > 1:
                self.client.retry([future])
                _, fault = self._wait([future])
            if fault is not None:
                raise deadly(described(key)) if isinstance(fault, KilledWorker) else judged(fault)
        if not suspects:  # a task of another client, on which ours depend
            raise deadly(described(error.task))

    def _require_cluster(self) -> None:
        """Raise :class:`ClusterLostError` unless the scheduler is connected, or reconnects within the grace period."""
        told = ("running", "closed", "closing")
        wait_until(lambda: self.client.status in told, time.monotonic() + self.limits.grace, pause=0.05)
        if self.client.status != "running":
            raise scheduler_gone(self._address)

    def _heard(self, event: tuple[float, dict[str, str]]) -> None:
        """Handle a worker's message about a failed try; called in the client's own thread."""
        told = event[1]
        if "stuck" in told:
            self._restarts += 1
            self._stuck[told["key"], told["stuck"]] += 1
            logger.warning("%s does not finish; its worker is restarted", told["stuck"])
        else:
            self._tries += 1
            logger.warning("%s failed with %s and will be tried again", told["failed"], told["reason"])

    def _own(self, future: Future) -> Future:
        """The same result as a future of this backend's client."""
        there, here = (client.scheduler.address for client in (require_held(future).client, self.client))
        if there != here:
            raise InputError(
                f"the data are persisted on the Dask cluster at {there}, but the work runs on the cluster at {here}. "
                f"Pass the data that were not persisted, or use the cluster at {there}."
            )
        return future if future.client is self.client else Future(future.key, self.client)


def require_held(future: Future) -> Future:
    """`future`, checked to be of data on a cluster; raises :class:`InputError` if its client or cluster is gone."""
    client = future.client
    if client.status != "running" or future.cancelled():
        raise InputError(
            "the data were persisted on a Dask cluster that ended, was restarted, or is no longer connected to the "
            "client that persisted them, so they are lost. Persist the original data again, and pass the result."
        )
    return future


def _given_up(run: str) -> Callable[[Scheduler], list[Key]]:
    """A function that lists the tasks of a run that the scheduler gave up; it is sent as code, because the scheduler
    need not have dpdist."""

    def keys(dask_scheduler: Scheduler) -> list[Key]:
        return [
            task.key
            for task in dask_scheduler.tasks.values()
            if task.suspicious > dask_scheduler.allowed_failures
            and task.state == "erred"
            and isinstance(task.key, tuple)
            and str(task.key[0]).endswith(run)
        ]

    return keys


def _as_call(
    terms: Terms, function: Callable[..., object], arguments: Sequence[object], joins: bool
) -> tuple[Call, list[TaskRef]]:
    """The call with slots for inputs on the cluster, and references to these inputs."""
    slots: dict[Future, Slot] = {}

    def place(argument: object) -> object:
        if isinstance(argument, list):
            return [place(each) for each in argument]
        future = argument.future if isinstance(argument, Held) else argument
        return slots.setdefault(future, Slot(len(slots))) if isinstance(future, Future) else argument

    call = Call(terms, function, tuple(place(argument) for argument in arguments), present(), joins)
    return call, [TaskRef(future.key) for future in slots]


def _alike(inputs: Sequence[Sequence[TaskRef]]) -> bool:
    """Whether all calls have the same inputs on the cluster, so that their place should not decide where they run.

    Dask would assign all of them to the workers that hold the inputs, and other workers would steal them slowly.
    """
    return len(inputs) > 1 and len({frozenset(each.key for each in own) for own in inputs}) == 1


def _described(name: str, arguments: Sequence[object], place: str) -> str:
    """A call's name with the labels of its arguments, or else with `place`."""
    found = (leaf.label for leaf in _leaves(arguments) if isinstance(leaf, Held | Packed) and leaf.label)
    labels = list(dict.fromkeys(found))
    more = "" if len(labels) <= _NAMED else f" and {len(labels) - _NAMED} more"
    return f"{name} of {', '.join(labels[:_NAMED])}{more}" if labels else name + place


def _leaves(arguments: Sequence[object]) -> Iterator[object]:
    for argument in arguments:
        yield from _leaves(argument) if isinstance(argument, list) else (argument,)


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", "call").strip("_")


def _told_but_for_ended_waits(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The default exception handler of an event loop, except that Dask's own AllExit is ignored."""
    if not isinstance(context.get("exception"), AllExit):
        loop.default_exception_handler(context)


async def _gather(client: Client, futures: list[Future]) -> tuple[list[Outcome], BaseException | None]:
    try:
        return await client.gather(futures, asynchronous=True), None
    except (Exception, asyncio.CancelledError) as error:
        return [], error


def refuse_other_versions(client: Client) -> None:
    """Raise :class:`InputError` if a worker runs other versions than this process.

    If the scheduler dies while it is asked, another one at the same address is asked again.
    """
    ask_all, ours = partial(client.get_versions, packages=list(VERSIONED)), code_versions()
    found = try_until(ask_all, time.monotonic() + _REPLACED, 0.1, OSError)
    for address, told in found["workers"].items():
        if told is not None and (error := refusal(told["packages"], ours, address)) is not None:
            raise error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress Dask's log messages about connections closed by a regular end."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
