"""A run driven to its end, whatever becomes of its cluster, and ended in good order when it is told to.

A cluster that is lost (its scheduler died) costs the batches under way: the state is in this process, a new cluster is
started, and the work goes on from there to the same bits. SIGTERM, SIGUSR1, a closed terminal and Ctrl-C end it with a
last checkpoint.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from dpdist.core.errors import CheckpointError, ClusterLostError, InputError
from dpdist.execution import Backend
from dpdist.runs.events import Event, Happening, NoteEvent, Pace, event_of_step, note, notes_of_counts, plan_note
from dpdist.runs.run import Run

#: Exit statuses of a coordinator: I failed; start me again; I was asked to end.
FAILED, AGAIN, CANCELLED = 1, 75, 143
#: Clusters lost in a row, without a step between, after which a run gives up.
LOSSES = 10
#: Seconds to go on trying to reach a new cluster, and between two tries.
PATIENCE, PAUSE = 600.0, 2.0

Launch = Callable[[], Backend]


class Sink(Protocol):
    """Where the events of a run are shown or sent."""

    def tell(self, event: Event) -> None:
        """Take one event."""

    def end(self, sentence: str, happening: Happening = Happening.ENDED) -> None:
        """Take the last word, and send what waits, while the cluster is still there."""


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
    """Within it signals raise :class:`OrderedToEnd`, or KeyboardInterrupt, once: the last checkpoint is not disturbed.

    Those that were ignored before, as a closed terminal is under nohup, still are.
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
    """What a run shows, step by step, as it goes to its end, with what its backend had to do again."""
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
    """What a finished run found."""
    assert run.fitted is not None and run.fitted.stop is not None, "a run ends after a lap, for a reason"
    return run.method.outcome(run.fitted)


def drive(prepare: Callable[[Backend], Run], launch: Launch, sink: Sink) -> Run:
    """Run to the end on as many clusters as it takes.

    Parameters
    ----------
    prepare : gives the run; called again if the cluster is lost meanwhile
    launch : starts or connects to a cluster
    sink : is told every event

    Returns
    -------
    run : at its end

    Raises
    ------
    ClusterLostError
        If clusters are lost over and over without a step between.
    OrderedToEnd, KeyboardInterrupt
        After the last checkpoint.
    """
    run: Run | None = None
    lost: list[str] = []  # sentences, not errors, whose frames hold results
    while True:
        backend: Backend | None = None
        try:
            backend = launch() if not lost else _relaunch(launch)
            if lost:
                sink.tell(note(Happening.RESTARTED, f"{lost[-1]} Going on from the last batch with a new cluster."))
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
        except (KeyboardInterrupt, OrderedToEnd) as order:
            if run is not None:
                run.leave()
            if isinstance(order, OrderedToEnd) and order.status == AGAIN:
                sink.end("the job's time is nearly over; it is queued again to go on.", Happening.NOTE)
            else:
                sink.end("stopped as it was told; nothing is lost.")
            raise
        except Exception as error:
            _give_up(run, sink, error)
            raise
        finally:
            if backend is not None:
                backend.close()


def _give_up(run: Run | None, sink: Sink, error: Exception) -> None:
    """Say why, keep what was done unless keeping it is what failed, and let others write."""
    sink.end(str(error))
    if run is not None:
        try:
            if not isinstance(error, CheckpointError):
                run.save()
        finally:
            run.close()


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
