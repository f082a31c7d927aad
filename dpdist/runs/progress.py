"""What a person sees while a run goes on: a bar with its time left, and a line a lap or a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dpdist.runs.events import (
    BatchEvent,
    Event,
    Happening,
    LapEvent,
    NoteEvent,
    RoundEvent,
)
from dpdist.runs.units import per_unit


class _Drawn(ABC):
    """A context in which events are drawn: a line for what is done and, on a terminal, a bar for what goes on."""

    def __init__(self, console: Console, bar: Progress, description: str) -> None:
        self._console, self._bar = console, bar
        self._task = bar.add_task(description, total=None)

    def __enter__(self) -> Self:
        if self._console.is_interactive:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_interactive:
            self._bar.stop()

    @property
    def description(self) -> str:
        """What the bar says goes on."""
        return self._bar.tasks[0].description

    def show(self, event: Event) -> None:
        """Draw one event."""
        if isinstance(event, NoteEvent):
            show_note(self._console, event)
        else:
            self._draw(event)

    @abstractmethod
    def _draw(self, event: Event) -> None:
        """Draw an event that is no note; events of another kind of run are none of its business."""


class LiveProgress(_Drawn):
    """A context that draws the events of a fit on `console`."""

    def __init__(self, console: Console) -> None:
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("batches"),
            TimeElapsedColumn(),
            TextColumn("left in lap"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        super().__init__(console, bar, "beginning")

    def _draw(self, event: Event) -> None:
        if isinstance(event, LapEvent):
            say(self._console, lap_line(event))
            self._bar.reset(self._task, total=event.batches, description=f"lap {event.lap + 1}")
        elif isinstance(event, BatchEvent):
            self._bar.update(self._task, total=event.of, completed=event.done, description=f"lap {event.lap}")


class PassProgress(_Drawn):
    """A context that draws the rounds of a pass on `console`."""

    def __init__(self, console: Console) -> None:
        self._lines = EventLines()
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        super().__init__(console, bar, "pass")

    def _draw(self, event: Event) -> None:
        if isinstance(event, RoundEvent):
            say(self._console, self._lines.line(event))
            self._bar.update(self._task, total=event.of, completed=event.round)


class EventLines:
    """Events as lines of a log."""

    def __init__(self) -> None:
        self._before: RoundEvent | None = None

    def line(self, event: Event) -> str:
        """One event in a line."""
        if isinstance(event, LapEvent):
            return lap_line(event)
        if isinstance(event, RoundEvent):
            before, self._before = self._before, event
            return round_line(event, before)
        if isinstance(event, NoteEvent):
            return event.sentence
        return f"lap {event.lap}: {event.done} of {event.of} batches"


def lap_line(event: LapEvent) -> str:
    """One lap in a line."""
    each = per_unit(event.elbo, event.rows, event.tokens)
    moves = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in sorted(event.accepted.items()))
    turnover = ", ".join(f"{count} {what}" for count, what in ((event.new, "new"), (event.gone, "gone")) if count)
    told = ": ".join(part for part in (moves, turnover) if part)
    return (
        f"lap {event.lap:4d}   K {event.n_components:5d}   ELBO/{each.unit} {each.nats:12.6f}   "
        f"{event.seconds:7.2f} s   {told}"
    ).rstrip()


def round_line(event: RoundEvent, before: RoundEvent | None = None) -> str:
    """One round in a line; `before` is the round before."""
    pace = event.rows_per_second(before)
    held = "" if event.holdout is None else f"   held out {event.holdout:12.6f}"
    return f"round {event.round:4d}   rows {event.rows:12d}   K {event.n_components:5d}   {pace:10.0f} rows/s{held}"


def show_note(console: Console, event: NoteEvent) -> None:
    """A note's sentence in a line of its own; checkpoints are for the metrics, and would be as many as laps."""
    if event.about != Happening.CHECKPOINT.value:
        say(console, event.sentence)


def say(console: Console, sentence: str) -> None:
    """A line as it is: it wraps where a terminal ends and nowhere else."""
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)
