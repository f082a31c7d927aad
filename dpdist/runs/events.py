"""Events of a run that a person watches, as plain serialisable values: batches, laps and notes.

A coordinator turns its steps into events and gives them to a :class:`Broadcast`. This stamps each event with the run,
its session and a sequence number, and sends it from a separate thread, for example to the event topics of a Dask
scheduler. A reader who connects late reads the stored events; sequence numbers reveal gaps and duplicates.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PlainSerializer, TypeAdapter, ValidationError

from dpdist.execution.base import Counts
from dpdist.inference.loop import Step
from dpdist.inference.moves.accept import Reason
from dpdist.inference.state import Info, State
from dpdist.runs.methods.base import AnyMethod
from dpdist.runs.run import Run
from dpdist.storage.history import LapRow

#: Topic of laps and notes; a scheduler stores the last thousand events of a topic.
TOPIC = "dpdist"
#: Topic of batches. It is separate because many batches would displace the laps from what the scheduler stores.
BATCH_TOPIC = "dpdist-batches"
TOPICS = (TOPIC, BATCH_TOPIC)


def _written(value: float) -> float | str:
    """A number for JSON, which has no infinities and no NaN: these become "inf", "-inf" and "nan"."""
    return value if math.isfinite(value) else str(value)


Number = Annotated[float, PlainSerializer(_written)]
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """The origin of an event, filled in by :class:`Broadcast`.

    Parameters
    ----------
    run : label of the run
    session : identity of the coordinator process; a resumed run has another
    sequence : number within the session, from 1
    """

    run: str = ""
    session: str = ""
    sequence: int = 0


@dataclass(frozen=True, kw_only=True)
class BatchEvent(Stamp):
    """A batch was completed.

    Parameters
    ----------
    lap : the current lap, from 1
    done : completed batches of the lap
    of : batches in the lap
    rows : rows of the lap visited so far; None if unknown
    rows_per_second : rate since the lap began or the run was resumed; None if unknown
    """

    kind: Literal["batch"] = "batch"
    lap: int
    done: int
    of: Count
    rows: int | None = None
    rows_per_second: Number | None = None


@dataclass(frozen=True, kw_only=True)
class LapEvent(Stamp):
    """A lap, or a round of a sequential pass, has ended.

    Parameters
    ----------
    lap : its number, from 1
    of : number of laps in all, if known in advance
    rows : all rows or documents; for a sequential pass, those passed so far
    n_components : components after the moves of the lap
    seconds : wall time of the lap
    elbo : after the moves, nats, whole data; None if the method has none
    per_unit : ELBO per row, or per token of a topic model's documents
    unit : row or token
    holdout : mean log predictive density of held-out rows, nats; None if they were not scored
    accepted : accepted moves, by kind
    refining : proposals that are refined in further laps before they are evaluated
    new, gone : number of components added and removed since the end of the previous lap; None if unknown
    batches : batches in the next lap
    rows_per_second : as in :class:`BatchEvent`
    """

    kind: Literal["lap"] = "lap"
    lap: int
    of: Count | None = None
    rows: Annotated[int, Field(ge=0)]
    n_components: int
    seconds: Number
    elbo: Number | None = None
    per_unit: Number | None = None
    unit: str = "row"
    holdout: Number | None = None
    accepted: dict[str, int] = field(default_factory=dict)
    refining: int = 0
    batches: int = 1
    new: int | None = None
    gone: int | None = None
    rows_per_second: Number | None = None


class Happening(StrEnum):
    """The subject of a note."""

    NOTE = "note"
    RESUBMITTED = "resubmitted"  # tasks that the cluster lost are submitted again
    STUCK = "stuck"  # unresponsive workers are restarted
    RESTARTED = "restarted"  # the run continues on a new cluster
    CHECKPOINT = "checkpoint"  # written
    ENDED = "ended"  # the last event of a session that was not killed


@dataclass(frozen=True, kw_only=True)
class NoteEvent(Stamp):
    """A message in a sentence.

    Parameters
    ----------
    sentence : the message
    about : a :class:`Happening`, or a subject that only a newer version knows
    count : number of things concerned, such as tasks
    time : seconds since 1970
    """

    kind: Literal["note"] = "note"
    sentence: str
    about: str = Happening.NOTE.value
    count: Count = 1
    time: Number


Event = BatchEvent | LapEvent | NoteEvent

_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def to_dict(event: Event) -> dict[str, Any]:
    """The event as plain values that JSON and msgpack can store."""
    plain: dict[str, Any] = _EVENTS.dump_python(event, mode="json")
    return plain


def from_dict(plain: object) -> Event | None:
    """The event written by :func:`to_dict`; None if this version cannot read it, such as a kind added later."""
    try:
        return _EVENTS.validate_python(plain)
    except ValidationError:
        return None


class Pace:
    """Counts visited rows, rows a second, and new and removed components, from step to step of a run.

    Parameters
    ----------
    batch_rows : rows of each batch of a lap
    state : of the run, before its first step in this process
    ids : of the components at the end of the previous lap; None if unknown
    clock : returns seconds
    """

    def __init__(
        self,
        batch_rows: Sequence[int],
        state: State,
        ids: np.ndarray | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rows, self._clock, self._ids = batch_rows, clock, ids
        self._began, self._before = clock(), self._visited(state)

    @classmethod
    def of(cls, run: Run) -> Pace:
        """The pace of a run from now on. Within the first lap, the components at its start may be unknown."""
        begun = None if run.state.visited else run.state.ids
        ids = begun if run.fitted is None else run.fitted.ids
        return cls(run.method.batch_rows(run.problem, run.source), run.state, ids)

    def after(self, step: Step) -> tuple[int, float]:
        """Rows of the lap visited after `step`, and rows a second since the lap began or the run went on."""
        now, visited = self._clock(), self._visited(step.state)
        rows = visited or sum(self._rows)  # after a lap no row of the next is visited, after a round of a pass all are
        pace = (rows - self._before) / max(now - self._began, 1e-9)
        if step.info is not None:
            self._began, self._before = now, visited
        return rows, pace

    def turnover(self, info: Info) -> tuple[int | None, int | None]:
        """Number of components added and removed since the end of the previous lap; None if unknown."""
        before, self._ids = self._ids, info.ids
        if before is None:
            return None, None
        return len(np.setdiff1d(info.ids, before)), len(np.setdiff1d(before, info.ids))

    def _visited(self, state: State) -> int:
        return sum(self._rows[batch] for batch in state.order[: state.visited])


def event_of_step(method: AnyMethod, step: Step, pace: Pace | None = None) -> BatchEvent | LapEvent:
    """The event of a step of a run; with `pace`, it includes the rates."""
    rows, speed = (None, None) if pace is None else pace.after(step)
    state, info = step.state, step.info
    if info is None:
        return BatchEvent(lap=state.lap, done=state.visited, of=len(state.order), rows=rows, rows_per_second=speed)
    new, gone = (None, None) if pace is None else pace.turnover(info)
    accepted = Counter(record.kind for record in info.records if record.reason.taken)
    refining = sum(record.reason is Reason.REFINING for record in info.records)
    event = event_of_lap(method, LapRow.of(info), accepted)
    return replace(
        event, of=info.of, refining=refining, batches=len(state.order), new=new, gone=gone, rows_per_second=speed
    )


def event_of_lap(method: AnyMethod, row: LapRow, accepted: Mapping[str, int]) -> LapEvent:
    """The event of a lap in the history."""
    has_bound = not math.isnan(row.elbo)
    return LapEvent(
        lap=row.lap,
        rows=int(row.rows),
        n_components=row.n_components,
        seconds=float(row.seconds),
        elbo=float(row.elbo) if has_bound else None,
        per_unit=float(row.per_unit) if has_bound else None,
        unit=method.unit,
        holdout=None if math.isnan(row.holdout_score) else float(row.holdout_score),
        accepted=dict(accepted),
    )


def note(about: Happening, sentence: str, count: int = 1) -> NoteEvent:
    """A note with the current time."""
    return NoteEvent(about=about.value, sentence=sentence, count=count, time=time.time())


def plan_note(run: Run) -> NoteEvent:
    """A note of how many workers can work at a time, and whether there are more."""
    partitions, workers = len(run.source.partitions), run.backend.threads
    useful = run.method.useful_workers(run.problem, partitions)
    told = (
        f"{count_of(run.source.shape[0], run.method.row)} in {count_of(partitions, 'partition')}: at most "
        f"{count_of(useful, 'worker')} can work at a time"
    )
    if workers > useful:
        told += f"; {workers:,} are available"
    return note(Happening.NOTE, f"{told}.{run.method.wider if useful < min(workers, partitions) else ''}")


def count_of(number: int, thing: str) -> str:
    """A number with its noun in singular or plural."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def notes_of_counts(before: Counts, now: Counts) -> list[NoteEvent]:
    """Notes of resubmitted tasks, restarted workers and lost workers between two readings of a backend's counts."""
    told = [
        (Happening.RESUBMITTED, now.resubmissions - before.resubmissions, "task", "submitted again: the cluster lost"),
        (Happening.STUCK, now.restarts - before.restarts, "worker", "restarted: no response from"),
    ]
    notes = [
        note(about, f"{count} {thing} {done} it." if count == 1 else f"{count} {thing}s {done} them.", count)
        for about, count, thing, done in told
        if count > 0
    ]
    lost = now.lost - before.lost
    if lost > 0:
        notes.append(note(Happening.NOTE, f"{lost} worker{'s' if lost > 1 else ''} lost.", lost))
    return notes


def in_order(kept: Iterable[tuple[float, object]]) -> list[Event]:
    """The events that a scheduler stored under several topics, in their order, from pairs of the time of arrival and a
    message; unreadable messages are left out."""
    read = [from_dict(message) for _, message in sorted(kept, key=lambda pair: pair[0])]
    events = [event for event in read if event is not None]
    rank = {session: place for place, session in enumerate(dict.fromkeys(event.session for event in events))}
    return sorted(events, key=lambda event: (rank[event.session], event.sequence))


class Broadcast:
    """Sends the events of one session of a run in a separate thread, so that the run never waits.

    A batch event is dropped if the previous one was sent less than `interval` seconds ago or other events are still
    queued. No other event is dropped.

    Parameters
    ----------
    run : label
    send : sends one event, and returns whether this succeeded; called from one thread, may block, and must not raise on
        network errors
    interval : least seconds between two batch events

    Attributes
    ----------
    dropped : batch events not sent
    lost : events whose sending failed
    """

    def __init__(self, run: str, send: Callable[[Event], bool], interval: float = 0.3) -> None:
        self._run, self._send, self._interval = run, send, interval
        self._session, self._numbers, self._last_batch = uuid.uuid4().hex[:12], itertools.count(1), -math.inf
        self._waiting: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.dropped = self.lost = 0
        self._thread = threading.Thread(target=self._send_all, name="dpdist-events", daemon=True)
        self._thread.start()

    def tell(self, event: Event) -> None:
        """Queue one event for sending; may be called from any thread."""
        if isinstance(event, BatchEvent):
            now = time.monotonic()
            if now - self._last_batch < self._interval or not self._waiting.empty():
                self.dropped += 1
                return
            self._last_batch = now
        self._waiting.put(event)

    def close(self, timeout: float = 10.0) -> None:
        """Send the queued events, within `timeout` seconds, as a scheduler may have to import dpdist first."""
        self._waiting.put(None)
        self._thread.join(timeout)

    def _send_all(self) -> None:
        while (event := self._waiting.get()) is not None:
            stamped = replace(event, run=self._run, session=self._session, sequence=next(self._numbers))
            self.lost += not self._send(stamped)
