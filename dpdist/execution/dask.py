"""The same calls as tasks on a Dask cluster.

Tasks are pure, and shared values are small enough to travel inside tasks or are held by tasks of their own: Dask makes
again what was lost with a worker, and tries again what could not be read. What Dask gives up (results cancelled by
others, a scheduler that is gone) loses the batch under way; whoever drives the run goes on from the last one.
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

#: What tasks need is sent with them; Dask would call that a large graph.
_LARGE = {"distributed.admin.large-graph-warning-threshold": "1TiB"}
#: Calls within so many seconds have one turn: none, so that a batch ends before one that started later.
_ONE_TURN = 0
#: Seconds in which a scheduler that dies as it is asked may be followed by another.
_REPLACED = 30.0
#: Labels named in the description of a task.
_NAMED = 2


@dataclass(eq=False)
class Held(Generic[Value]):
    """A value on the cluster, kept there for as long as this object lives.

    Parameters
    ----------
    future : of the :class:`Outcome`
    label : what a person calls the value, if it has a name of its own
    rows, timed : of a sum over rows, their number and the name of their function
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
    limits : how long to wait and how often to try
    workers : that the client's own cluster should have, where it does not replace those that end; 0: it does
    ending : called when it is closed, last, where it is owned

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
                "a Dask client should wait for its answers; got an asynchronous one. Use Client(address) in another "
                "thread, as with asyncio.to_thread, or iter_fit(x, backend=dpdist.execution.SerialBackend())."
            )
        self._ending = ending
        self.client, self._owned, self.limits = client, owned, limits or TaskLimits()
        self._run, self._calls = uuid.uuid4().hex[:12], itertools.count()
        topic = f"dpdist-tries-{self._run}"
        self._terms = Terms(topic, code_versions(), self.limits)
        self._watch = Watch(client, self.limits, workers)
        self._address = client.scheduler.address
        self._tries = self._restarts = 0
        self._stuck = Counter[tuple[str, str]]()  # by key and what a person calls it, of the work under way
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
        if isinstance(ref, Held):  # its seconds are those of what it ends
            found.timed, found.rows = ref.timed, ref.rows
        return found

    def _join(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        """Before other tasks, so that partial results do not pile up."""
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
        """One graph of calls. Their keys say what a person calls them, for the errors that name a key."""
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
        """What came of values, with the seconds of waiting for them, and of workers."""
        with phase(Phase.WAITING):
            outcomes = self._outcomes(held)
        for outcome in outcomes:
            add({**outcome.spent, Phase.WORKERS: sum(outcome.spent.values())})
        return outcomes

    def _outcomes(self, held: Sequence[Held[Value]]) -> list[Outcome]:
        """What came of values, once all are there."""
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
        """What came, or the error that came instead; looks at the workers meanwhile."""
        self._require_cluster()
        self._watch.begin()
        waiting = asyncio.run_coroutine_threadsafe(_gather(self.client, futures), self.client.loop.asyncio_loop)
        try:
            while not concurrent.futures.wait([waiting], timeout=self.limits.period).done:
                self._require_cluster()
                self._watch.look(any(future.status == "pending" for future in futures))
                for (_, task), times in list(self._stuck.items()):
                    if times >= self.limits.attempts:
                        self._stuck.clear()  # what is asked for next has its own tries
                        raise stuck(task, times, self.limits.stuck_after)
        finally:
            waiting.cancel()
        outcomes, error = waiting.result()
        if error is not None:
            self._require_cluster()
        return outcomes, error

    def _try_one_by_one(self, error: KilledWorker) -> None:
        """Begin again what Dask gave up for the deaths of workers, and raise for the task that kills one by itself.

        Dask blames all that a worker was given: what was there by chance is given up together with a deadly task.
        """
        suspects = self.client.run_on_scheduler(_given_up(self._run))
        for key in suspects:
            future = Future(key, self.client)
            _, fault = self._wait([future])  # its end so far has to be known here before it is forgotten there
            if len(suspects) > 1:
                self.client.retry([future])
                _, fault = self._wait([future])
            if fault is not None:
                raise deadly(described(key)) if isinstance(fault, KilledWorker) else judged(fault)
        if not suspects:  # a task of others, on whose result ours depend
            raise deadly(described(error.task))

    def _require_cluster(self) -> None:
        """Raise :class:`ClusterLostError` unless the scheduler is there, or comes back within the grace."""
        told = ("running", "closed", "closing")
        wait_until(lambda: self.client.status in told, time.monotonic() + self.limits.grace, pause=0.05)
        if self.client.status != "running":
            raise scheduler_gone(self._address)

    def _heard(self, event: tuple[float, dict[str, str]]) -> None:
        """Called where a worker tells of a try that failed, on the client's own thread."""
        told = event[1]
        if "stuck" in told:
            self._restarts += 1
            self._stuck[told["key"], told["stuck"]] += 1
            logger.warning("%s does not come forward; its worker is restarted", told["stuck"])
        else:
            self._tries += 1
            logger.warning("%s failed with %s and is tried again", told["failed"], told["reason"])

    def _own(self, future: Future) -> Future:
        """The same result as a future of our client."""
        there, here = (client.scheduler.address for client in (require_held(future).client, self.client))
        if there != here:
            raise InputError(
                f"the data are persisted on the Dask cluster at {there}, and the work is for the one at {here}. Give "
                "the data as they were before that, or use that cluster."
            )
        return future if future.client is self.client else Future(future.key, self.client)


def require_held(future: Future) -> Future:
    """A future of data that a cluster holds; raises :class:`InputError` if they went with its client or cluster."""
    client = future.client
    if client.status != "running" or future.cancelled():
        raise InputError(
            "the data were persisted on a Dask cluster that is gone, restarted, or no longer connected by the client "
            "that persisted them, and with that they went. Give the data as they were before that, persisted anew."
        )
    return future


def _given_up(run: str) -> Callable[[Scheduler], list[Key]]:
    """What lists the tasks of a run that its scheduler, which need not have dpdist, gave up: it is sent as code."""

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
    """The call with slots for what the cluster brings, and references to that."""
    slots: dict[Future, Slot] = {}

    def place(argument: object) -> object:
        if isinstance(argument, list):
            return [place(each) for each in argument]
        future = argument.future if isinstance(argument, Held) else argument
        return slots.setdefault(future, Slot(len(slots))) if isinstance(future, Future) else argument

    call = Call(terms, function, tuple(place(argument) for argument in arguments), present(), joins)
    return call, [TaskRef(future.key) for future in slots]


def _alike(inputs: Sequence[Sequence[TaskRef]]) -> bool:
    """Whether calls need the same of the cluster, so that it should not matter where that is.

    Dask would give them all to the workers that hold it, from which others then steal twice a second.
    """
    return len(inputs) > 1 and len({frozenset(each.key for each in own) for own in inputs}) == 1


def _described(name: str, arguments: Sequence[object], place: str) -> str:
    """A call by its name and the labels of what it works on, or else its place."""
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
    """As an event loop tells what nobody waits for; what Dask's waits end each other with is of no interest then."""
    if not isinstance(context.get("exception"), AllExit):
        loop.default_exception_handler(context)


async def _gather(client: Client, futures: list[Future]) -> tuple[list[Outcome], BaseException | None]:
    try:
        return await client.gather(futures, asynchronous=True), None
    except (Exception, asyncio.CancelledError) as error:
        return [], error


def refuse_other_versions(client: Client) -> None:
    """Raise :class:`InputError` if a worker runs other versions than this process.

    A scheduler that dies as it is asked may be followed by another at its address, which is asked again.
    """
    ask_all, ours = partial(client.get_versions, packages=list(VERSIONED)), code_versions()
    found = try_until(ask_all, time.monotonic() + _REPLACED, pause=0.1, may_pass=lambda _: True)
    for address, told in found["workers"].items():
        if told is not None and (error := refusal(told["packages"], ours, address)) is not None:
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
