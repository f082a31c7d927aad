"""Progress of a run on a console: a bar with the time left, and a line for each lap."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dpdist.inference.loop import Step
from dpdist.runs.events import BatchEvent, Event, Happening, LapEvent, NoteEvent, Pace, event_of_step, plan_note
from dpdist.runs.run import Run


class LiveProgress:
    """A context that draws the events of a run on `console`: a line for each completed lap and, in a terminal or
    notebook, a bar for the current lap, or for the whole run if its number of laps is known.

    Parameters
    ----------
    console : where to draw
    most_laps : largest number of laps, for a second bar; None for no such bar
    """

    def __init__(self, console: Console, most_laps: int | None = None) -> None:
        self._console = console
        # rich needs ipywidgets to draw in notebooks
        widgets = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        self._alive = console.is_interactive or widgets
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._laps = None if most_laps is None else self._bar.add_task("laps, at most", total=most_laps)

    def __enter__(self) -> Self:
        if self._alive:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._alive:
            self._bar.stop()

    @property
    def description(self) -> str:
        """The text beside the bar."""
        return self._bar.tasks[0].description

    def tell(self, event: Event) -> None:
        """Draw one event; checkpoint notes are not drawn, as they would be as many as laps."""
        if isinstance(event, BatchEvent):
            told = f"lap {event.lap}, batches"
            self._bar.update(self._task, total=event.of, completed=event.done, description=told)
        elif isinstance(event, NoteEvent):
            if event.about != Happening.CHECKPOINT.value:
                say(self._console, event.sentence)
        else:
            self._draw_lap(event)

    def end(self, sentence: str, happening: Happening = Happening.ENDED) -> None:
        """Does nothing: the caller prints the final sentence."""

    def _draw_lap(self, event: LapEvent) -> None:
        say(self._console, event_line(event))
        if event.of is None:
            self._bar.reset(self._task, total=event.batches, description=f"lap {event.lap + 1}, batches")
            if self._laps is not None:
                self._bar.update(self._laps, completed=event.lap)
        else:
            self._bar.update(self._task, total=event.of, completed=event.lap, description="rounds")


@contextmanager
def shown(run: Run, wanted: bool) -> Iterator[Callable[[Step], None]]:
    """A function that takes the steps of a run and, if `wanted`, draws them."""
    if not wanted:
        yield lambda step: None
        return
    pace = Pace.of(run)
    with LiveProgress(Console(), run.limits.max_laps) as progress:
        progress.tell(plan_note(run))
        yield lambda step: progress.tell(event_of_step(run.method, step, pace))


def event_line(event: Event) -> str:
    """An event as a line of a log."""
    if isinstance(event, LapEvent):
        return lap_line(event)
    if isinstance(event, NoteEvent):
        return event.sentence
    return f"lap {event.lap}: {event.done} of {event.of} batches"


def lap_line(event: LapEvent) -> str:
    """A lap, or a round of a sequential pass, as a line."""
    moves = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in sorted(event.accepted.items()))
    turnover = ", ".join(f"{count} {what}" for count, what in ((event.new, "new"), (event.gone, "gone")) if count)
    parts = [
        f"lap {event.lap:4d}" if event.of is None else f"round {event.lap:4d} of {event.of}   rows {event.rows:12d}",
        f"K {event.n_components:5d}",
        "" if event.per_unit is None else f"ELBO/{event.unit} {event.per_unit:12.6f}",
        f"{event.seconds:7.2f} s",
        "" if event.holdout is None else f"held out {event.holdout:12.6f}",
        ": ".join(part for part in (moves, turnover) if part),
        f"{event.refining} being refined" if event.refining and not moves else "",
    ]
    return "   ".join(part for part in parts if part)


def say(console: Console, sentence: str) -> None:
    """Print a line without markup; only the terminal wraps it."""
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)
