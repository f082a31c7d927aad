"""Driving a run to its end despite lost clusters, and ending it properly on signals.

If a cluster is lost (its scheduler died), only the batches in progress are lost: the state is in this process, a new
cluster is started, and the run continues to the same bits. SIGTERM, SIGUSR1, a closed terminal and Ctrl-C end the run
with a last checkpoint.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from dpdist.core.errors import CheckpointError, ClusterLostError, InputError
from dpdist.core.waiting import try_until
from dpdist.execution import Backend
from dpdist.runs.events import Event, Happening, NoteEvent, Pace, event_of_step, note, notes_of_counts, plan_note
from dpdist.runs.run import Run

#: Exit statuses of a coordinator: failed; to be started again; asked to end.
FAILED, AGAIN, CANCELLED = 1, 75, 143
#: Number of clusters lost in a row, without a step in between, after which a run gives up.
LOSSES = 10
#: Seconds for which a new cluster is tried, and between two tries.
PATIENCE, PAUSE = 600.0, 2.0

Launch = Callable[[], Backend]


class Sink(Protocol):
    """A destination of the events of a run."""

    def tell(self, event: Event) -> None:
        """Show or send one event."""

    def end(self, sentence: str, happening: Happening = Happening.ENDED) -> None:
        """Show or send the final sentence, and send queued events, while the cluster still exists."""


class OrderedToEnd(BaseException):
    """A signal asks the run to end. It is not an Exception, so that no handler catches it by accident.

    Parameters
    ----------
    status : exit status of the process
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@contextlib.contextmanager
def obeying_signals() -> Iterator[None]:
    """A context in which the first signal raises :class:`OrderedToEnd` or KeyboardInterrupt; later ones are ignored, so
    that they cannot disturb the last checkpoint.

    Signals that were ignored before, such as SIGHUP under nohup, remain ignored.
    """
    statuses = {signal.SIGTERM: CANCELLED, signal.SIGUSR1: AGAIN, signal.SIGHUP: CANCELLED, signal.SIGINT: None}
    heard = [each for each in statuses if signal.getsignal(each) is not signal.SIG_IGN]

    def obey(number: int, _frame: object) -> None:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        status = statuses[signal.Signals(number)]
        raise KeyboardInterrupt if status is None else OrderedToEnd(status)

    before = {each: signal.signal(each, obey) for each in heard}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def events_of(run: Run) -> Iterator[Event]:
    """The events of a run as it is iterated to its end, including retries of its backend."""
    pace, store, seen = Pace.of(run), run.store, run.backend.counts
    saved = store.number if store is not None else 0
    if run.fitted is None or run.fitted.stop is None:
        yield plan_note(run)
    for step in run:
        before, seen = seen, run.backend.counts
        yield from notes_of_counts(before, seen)
        yield event_of_step(run.method, step, pace)
        if store is not None and store.number > saved:
            saved = store.number
            yield note(Happening.CHECKPOINT, f"checkpoint {saved} written")


def outcome_of(run: Run) -> str:
    """The result of a finished run, in a sentence."""
    assert run.fitted is not None and run.fitted.stop is not None, "a run ends after a lap, for a reason"
    return run.method.outcome(run.fitted)


def drive(prepare: Callable[[Backend], Run], launch: Launch, sink: Sink) -> Run:
    """Drive a run to its end, on several clusters if needed.

    Parameters
    ----------
    prepare : returns the run; called again if the cluster is lost meanwhile
    launch : starts or connects to a cluster
    sink : receives every event

    Returns
    -------
    run : at its end

    Raises
    ------
    ClusterLostError
        If too many clusters are lost in a row without a step in between.
    OrderedToEnd, KeyboardInterrupt
        After the last checkpoint.
    """
    run: Run | None = None
    lost: list[str] = []  # messages, because errors would keep results alive in their frames
    while True:
        backend: Backend | None = None
        try:
            backend = launch() if not lost else _relaunch(launch)
            if lost:
                sink.tell(note(Happening.RESTARTED, f"{lost[-1]} Continuing from the last batch with a new cluster."))
            run = prepare(backend) if run is None else run
            run.backend = backend
            for event in events_of(run):
                if not isinstance(event, NoteEvent):  # a step, which the cluster made
                    lost.clear()
                sink.tell(event)
            sink.end(outcome_of(run))
            return run
        except ClusterLostError as error:
            lost.append(str(error))
            if len(lost) > LOSSES:
                _give_up(run, sink, error)
                raise
            wait = f"a new one is started, or met at the same address, within {PATIENCE / 60:g} minutes."
            sink.tell(note(Happening.NOTE, f"the cluster was lost; {wait}"))
        except (KeyboardInterrupt, OrderedToEnd) as order:
            if run is not None:
                run.leave()
            if isinstance(order, OrderedToEnd) and order.status == AGAIN:
                sink.end("the job's time is nearly over; the job is queued again to continue.", Happening.NOTE)
            else:
                sink.end("stopped on request; nothing is lost.")
            raise
        except Exception as error:
            _give_up(run, sink, error)
            raise
        finally:
            if backend is not None:
                backend.close()


def _give_up(run: Run | None, sink: Sink, error: Exception) -> None:
    """Report the error, save the run unless saving is what failed, and release its store."""
    sink.end(str(error))
    if run is not None:
        try:
            if not isinstance(error, CheckpointError):
                run.save()
        finally:
            run.close()


def _relaunch(launch: Launch) -> Backend:
    """A new cluster, retried for some time, as a scheduler started elsewhere may need it."""
    return try_until(launch, time.monotonic() + PATIENCE, PAUSE, (InputError, OSError))
