"""What a person watching a run sees, as plain values that travel: batches, laps and notes.

A coordinator makes events of its steps and tells them to a :class:`Broadcast`, which stamps them with the run, its own
session and a number, and hands them to an outlet (a Dask scheduler's event topics, for one) from a thread of its own.
Whoever comes late reads what the outlet kept, and by the numbers misses nothing and doubles nothing.
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

#: Topic of laps and notes; a scheduler keeps the last thousand.
TOPIC = "dpdist"
#: Topic of batches, apart so that the many batches of an hour do not push its laps out of what is kept.
BATCH_TOPIC = "dpdist-batches"
TOPICS = (TOPIC, BATCH_TOPIC)


def _written(value: float) -> float | str:
    """JSON has no infinities and no NaN: they are written as "inf", "-inf" and "nan"."""
    return value if math.isfinite(value) else str(value)


Number = Annotated[float, PlainSerializer(_written)]
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """Where an event comes from; filled in by :class:`Broadcast`.

    Parameters
    ----------
    run : label of the run
    session : the coordinator's life in which it happened; a resumed run has another
    sequence : number within the session, from 1
    """

    run: str = ""
    session: str = ""
    sequence: int = 0


@dataclass(frozen=True, kw_only=True)
class BatchEvent(Stamp):
    """A batch is in.

    Parameters
    ----------
    lap : lap under way, from 1
    done : batches of the lap that are in
    of : batches in the lap
    rows : rows of the lap visited so far; None where not known
    rows_per_second : since the lap began or the run went on; None where not known
    """

    kind: Literal["batch"] = "batch"
    lap: int
    done: int
    of: Count
    rows: int | None = None
    rows_per_second: Number | None = None


@dataclass(frozen=True, kw_only=True)
class LapEvent(Stamp):
    """A lap has ended, or a round of a sequential pass.

    Parameters
    ----------
    lap : its number, from 1
    of : laps in all, where it is known how many there will be
    rows : rows in all, or documents; of a pass those passed so far
    n_components : components after its moves
    seconds : wall time of the lap
    elbo : after its moves, nats, whole data; None where the method has none
    per_unit : the same a row, or a token of a topic model's documents
    unit : row or token
    holdout : mean log predictive density of held-out rows, nats; None where they were not scored
    accepted : moves taken, by kind
    refining : proposals that are refined in further laps before they are judged
    new, gone : components that the lap before did not end with, and those it did that are no more; None where not known
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
    """What a note is about."""

    NOTE = "note"
    RESUBMITTED = "resubmitted"  # tasks that the cluster lost are begun again
    STUCK = "stuck"  # workers that did not come forward are restarted
    RESTARTED = "restarted"  # the cluster is a new one
    CHECKPOINT = "checkpoint"  # written
    ENDED = "ended"  # the last event of a session that was not killed


@dataclass(frozen=True, kw_only=True)
class NoteEvent(Stamp):
    """Something that a sentence says.

    Parameters
    ----------
    sentence : for a person
    about : a :class:`Happening`, or one that only a newer version knows
    count : how many things it happened to, such as tasks
    time : when, in seconds since 1970
    """

    kind: Literal["note"] = "note"
    sentence: str
    about: str = Happening.NOTE.value
    count: Count = 1
    time: Number


Event = BatchEvent | LapEvent | NoteEvent

_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def to_dict(event: Event) -> dict[str, Any]:
    """Plain values, fit for JSON and for msgpack."""
    plain: dict[str, Any] = _EVENTS.dump_python(event, mode="json")
    return plain


def from_dict(plain: object) -> Event | None:
    """The event that :func:`to_dict` wrote; None for what this version cannot read, such as a kind made later."""
    try:
        return _EVENTS.validate_python(plain)
    except ValidationError:
        return None


class Pace:
    """Rows visited, rows a second, and components new and gone, from step to step of a run.

    Parameters
    ----------
    batch_rows : rows of each batch of a lap
    state : of the run, before its first step here
    ids : of the components at the end of the lap before; None where it is not known
    clock : seconds
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
        """How a run goes from here on; amid the first lap components may be others than when it began."""
        begun = None if run.state.visited else run.state.ids
        ids = begun if run.fitted is None else run.fitted.ids
        return cls(run.method.batch_rows(run.problem, run.source), run.state, ids)

    def after(self, step: Step) -> tuple[int, float]:
        """Rows of the lap visited after `step`, and rows a second since the lap began or the run went on."""
        now, visited = self._clock(), self._visited(step.state)
        rows = visited or sum(self._rows)  # a lap's end leaves none visited of the next; that of a pass's round, all
        pace = (rows - self._before) / max(now - self._began, 1e-9)
        if step.info is not None:
            self._began, self._before = now, visited
        return rows, pace

    def turnover(self, info: Info) -> tuple[int | None, int | None]:
        """Components of a lap's end that those of the lap before are not, and the other way round, where known."""
        before, self._ids = self._ids, info.ids
        if before is None:
            return None, None
        return len(np.setdiff1d(info.ids, before)), len(np.setdiff1d(before, info.ids))

    def _visited(self, state: State) -> int:
        return sum(self._rows[batch] for batch in state.order[: state.visited])


def event_of_step(method: AnyMethod, step: Step, pace: Pace | None = None) -> BatchEvent | LapEvent:
    """What a step of a run shows; with `pace` also how fast."""
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
    """What the history tells of a lap."""
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
    """A note of this moment."""
    return NoteEvent(about=about.value, sentence=sentence, count=count, time=time.time())


def plan_note(run: Run) -> NoteEvent:
    """How many workers have something to do at a time, and whether there are more."""
    partitions, workers = len(run.source.partitions), run.backend.threads
    useful = run.method.useful_workers(run.problem, partitions)
    told = (
        f"{count_of(run.source.shape[0], run.method.row)} in {count_of(partitions, 'partition')}: at most "
        f"{count_of(useful, 'worker')} at work at a time"
    )
    if workers > useful:
        told += f", of {workers:,}; fewer batches or more look-ahead would give the others something to do"
    return note(Happening.NOTE, f"{told}.")


def count_of(number: int, thing: str) -> str:
    """A number of things."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def notes_of_counts(before: Counts, now: Counts) -> list[NoteEvent]:
    """What a backend went through between two looks at it, each kind in one note."""
    told = [
        (Happening.RESUBMITTED, now.resubmissions - before.resubmissions, "task", "begun again: the cluster lost"),
        (Happening.STUCK, now.restarts - before.restarts, "worker", "restarted: no sign of life from"),
    ]
    notes = [
        note(about, f"{count} {thing} {done} it." if count == 1 else f"{count} {thing}s {done} them.", count)
        for about, count, thing, done in told
        if count > 0
    ]
    lost = now.lost - before.lost
    if lost > 0:
        notes.append(note(Happening.NOTE, f"{lost} worker{'s' if lost > 1 else ''} gone.", lost))
    return notes


def in_order(kept: Iterable[tuple[float, object]]) -> list[Event]:
    """Events as a scheduler keeps them under several topics, as they happened.

    Parameters
    ----------
    kept : (time of arrival, message); what cannot be read is left out
    """
    read = [from_dict(message) for _, message in sorted(kept, key=lambda pair: pair[0])]
    events = [event for event in read if event is not None]
    rank = {session: place for place, session in enumerate(dict.fromkeys(event.session for event in events))}
    return sorted(events, key=lambda event: (rank[event.session], event.sequence))


class Broadcast:
    """Sends the events of one session of a run, without ever keeping the run waiting.

    A batch is dropped if the last one was sent less than `interval` seconds ago or others are still waiting to be
    sent; nothing else is.

    Parameters
    ----------
    run : label
    send : sends one event, and says whether it went out; called from one thread, and may take its time. Raises nothing
        that is the network's fault
    interval : seconds between batches at least

    Attributes
    ----------
    dropped : batches not sent
    lost : events that could not be sent
    """

    def __init__(self, run: str, send: Callable[[Event], bool], interval: float = 0.3) -> None:
        self._run, self._send, self._interval = run, send, interval
        self._session, self._numbers, self._last_batch = uuid.uuid4().hex[:12], itertools.count(1), -math.inf
        self._waiting: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.dropped = self.lost = 0
        self._thread = threading.Thread(target=self._send_all, name="dpdist-events", daemon=True)
        self._thread.start()

    def tell(self, event: Event) -> None:
        """Send one event, soon; from any thread."""
        if isinstance(event, BatchEvent):
            now = time.monotonic()
            if now - self._last_batch < self._interval or not self._waiting.empty():
                self.dropped += 1
                return
            self._last_batch = now
        self._waiting.put(event)

    def close(self, timeout: float = 10.0) -> None:
        """Send what waits, for `timeout` seconds at most: a scheduler may have to import dpdist first."""
        self._waiting.put(None)
        self._thread.join(timeout)

    def _send_all(self) -> None:
        while (event := self._waiting.get()) is not None:
            stamped = replace(event, run=self._run, session=self._session, sequence=next(self._numbers))
            self.lost += not self._send(stamped)
