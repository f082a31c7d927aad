"""A fit or a pass driven to its end, whatever becomes of its cluster, and ended in good order when it is told to.

A cluster that is lost (its scheduler died) costs the batches under way: the state is in this process, a new cluster is
started, and the work goes on from there to the same bits. SIGTERM, SIGUSR1 and Ctrl-C end it with a last checkpoint.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dpdist.cluster.statuses import AGAIN, CANCELLED
from dpdist.core.errors import CheckpointError, ClusterLostError, InputError
from dpdist.execution import Backend
from dpdist.inference.sva.sequence import SequentialState
from dpdist.runs.events import (
    Event,
    Happening,
    Pace,
    event_of_round,
    event_of_step,
    note,
    notes_of_counts,
)
from dpdist.runs.passing import PassFit
from dpdist.runs.progress import LiveProgress, PassProgress
from dpdist.runs.run import Run
from dpdist.runs.units import per_unit, tokens_of
from dpdist.storage.checkpoint import Fitted
from dpdist.storage.history import History, RoundRow, seconds_passed

#: Clusters lost in a row, without a step between, after which a run gives up.
LOSSES = 10
#: Seconds to go on trying to reach a new cluster, and between two tries.
PATIENCE, PAUSE = 600.0, 2.0

Launch = Callable[[], Backend]


class Teller(Protocol):
    """Where the events of a run are shown or sent."""

    def tell(self, event: Event) -> None:
        """Take one event."""

    def end(self, sentence: str) -> None:
        """Take the last word, while the cluster is still there."""


class Shown:
    """Shows the events of a run on a screen."""

    def __init__(self, progress: LiveProgress | PassProgress) -> None:
        self._progress = progress

    def tell(self, event: Event) -> None:
        """Draw one event."""
        self._progress.show(event)

    def end(self, sentence: str) -> None:
        """The last word is for the caller."""


class OrderedToEnd(BaseException):
    """A signal asks the run to end; no error, so nothing on the way catches it by chance.

    Parameters
    ----------
    status : with which the process should exit
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@contextlib.contextmanager
def obeying_signals() -> Iterator[None]:
    """Within it SIGTERM and SIGUSR1 raise :class:`OrderedToEnd`, once: the last checkpoint is not disturbed."""
    statuses = {signal.SIGTERM: CANCELLED, signal.SIGUSR1: AGAIN}

    def obey(number: int, _frame: Any) -> None:
        for each in statuses:
            signal.signal(each, signal.SIG_IGN)
        raise OrderedToEnd(statuses[signal.Signals(number)])

    before = {each: signal.signal(each, obey) for each in statuses}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class Work(Protocol):
    """What :class:`Run` and :class:`PassFit` have in common."""

    backend: Backend

    def __iter__(self) -> Iterator[Any]: ...

    def save(self) -> None:
        """Write a checkpoint."""

    def close(self) -> None:
        """Wait for what is being written, and let others write."""


Kind = TypeVar("Kind", bound=Work)


@dataclass(frozen=True)
class Course(Generic[Kind]):
    """How work of one kind goes: prepared on a backend, run event by event, summed up in a sentence."""

    prepare: Callable[[Backend], Kind]
    events: Callable[[Kind], Iterator[Event]]
    outcome: Callable[[Kind], str]


def fit_course(prepare: Callable[[Backend], Run[Any]]) -> Course[Run[Any]]:
    """The course of a fit."""
    return Course(prepare, _fit_events, lambda fit: fit_outcome(fit.fitted))


def pass_course(prepare: Callable[[Backend], PassFit]) -> Course[PassFit]:
    """The course of a sequential pass."""
    return Course(prepare, _pass_events, lambda work: pass_outcome(work.state, work.history))


def pace_of(fit: Run[Any]) -> Pace:
    """How a fit goes from here on."""
    return Pace(fit.problem, fit.source, fit.state, fit.state.ids if fit.fitted is None else fit.fitted.ids)


def _fit_events(fit: Run[Any]) -> Iterator[Event]:
    pace = pace_of(fit)
    saved = fit.store.number if fit.store is not None else 0
    for step in fit:
        yield event_of_step(step, pace)
        if fit.store is not None and fit.store.number > saved:
            saved = fit.store.number
            yield note(Happening.CHECKPOINT, f"checkpoint {saved} written")


def fit_outcome(fitted: Fitted | None) -> str:
    """What a finished fit found."""
    assert fitted is not None and fitted.stop is not None, "a fit ends after a lap, for a reason"
    tokens = tokens_of(fitted.total)
    each, parts = per_unit(fitted.elbo, fitted.rows, tokens), "clusters" if tokens is None else "topics"
    told = f"ELBO {fitted.elbo:.4f} ({each.nats:.6f} a {each.unit})"
    return f"{len(fitted.ids)} {parts}, {told}, {fitted.stop}."


def _pass_events(work: PassFit) -> Iterator[Event]:
    saved = work.store.number if work.store is not None else 0
    for _, info in work:
        yield event_of_round(info)
        if work.store is not None and work.store.number > saved:
            saved = work.store.number
            yield note(Happening.CHECKPOINT, f"checkpoint {saved} written")


def pass_outcome(state: SequentialState, history: History[RoundRow]) -> str:
    """What a finished pass found."""
    return f"{len(state.growth.ids)} clusters of {state.growth.rows} rows in {seconds_passed(history):.1f} s."


def drive(course: Course[Kind], launch: Launch, teller: Teller) -> Kind:
    """Run work to its end on as many clusters as it takes.

    Parameters
    ----------
    course : the work; prepared again if the cluster is lost meanwhile
    launch : starts or connects to a cluster
    teller : is told every event

    Returns
    -------
    work : at its end

    Raises
    ------
    ClusterLostError
        If clusters are lost over and over without a step between.
    OrderedToEnd, KeyboardInterrupt
        After the last checkpoint.
    """
    work: Kind | None = None
    lost: list[ClusterLostError] = []
    while True:
        backend: Backend | None = None
        try:
            backend = launch() if not lost else _relaunch(launch)
            if lost:
                teller.tell(note(Happening.RESTARTED, f"{lost[-1]} Going on from the last batch with a new cluster."))
            work = course.prepare(backend) if work is None else work
            work.backend = backend
            for event in _with_mishaps(course.events(work), backend):
                lost.clear()
                teller.tell(event)
            teller.end(course.outcome(work))
            return work
        except ClusterLostError as error:
            lost.append(error)
            if len(lost) > LOSSES:
                _give_up(work, teller, error)
                raise
        except (KeyboardInterrupt, OrderedToEnd) as order:
            if work is not None:
                work.save()
                work.close()
            if isinstance(order, OrderedToEnd) and order.status == AGAIN:
                teller.tell(note(Happening.NOTE, "the job's time is nearly over; it is queued again to go on."))
            else:
                teller.end("stopped as it was told; nothing is lost.")
            raise
        except Exception as error:
            _give_up(work, teller, error)
            raise
        finally:
            if backend is not None:
                backend.close()


def _give_up(work: Work | None, teller: Teller, error: Exception) -> None:
    """Say why, keep what was done unless keeping it is what failed, and let others write."""
    teller.end(str(error))
    if work is not None:
        try:
            if not isinstance(error, CheckpointError):
                work.save()
        finally:
            work.close()


def _with_mishaps(events: Iterator[Event], backend: Backend) -> Iterator[Event]:
    """The events, with notes of what the backend had to do again since the one before."""
    seen = backend.counts
    for event in events:
        before, seen = seen, backend.counts
        yield from notes_of_counts(before, seen)
        yield event


def _relaunch(launch: Launch) -> Backend:
    """A new cluster, tried for a while: a scheduler that somebody else starts takes its time."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return launch()
        except (InputError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE)
