"""What a person sees while a run goes on: a bar with its time left, and a line a lap or a round."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dpdist.engine import Step
from dpdist.moves.base import Reason
from dpdist.sequence import SequentialInfo
from dpdist.state import Info


class _Drawn:
    """A context in which a bar is drawn."""

    _bar: Progress

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


class LiveProgress(_Drawn):
    """A context that draws the steps of a fit on `console`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("waves"),
            TimeElapsedColumn(),
            TextColumn("left in lap"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("lap 1", total=None)

    def show(self, step: Step) -> None:
        """Draw one step."""
        state = step.state
        if step.info is not None:
            self._console.print(lap_line(step.info), highlight=False)
            self._bar.reset(self._task, total=len(state.order), description=f"lap {state.lap}")
        else:
            self._bar.update(self._task, total=len(state.order), completed=state.visit, description=f"lap {state.lap}")


def lap_line(info: Info) -> str:
    """One lap in a line."""
    accepted = Counter(record.kind for record in info.records if record.reason is Reason.ACCEPTED)
    moves = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in sorted(accepted.items()))
    return (
        f"lap {info.lap:4d}   K {info.n_components:5d}   ELBO/row {info.elbo / info.rows:12.6f}   "
        f"{info.seconds:7.2f} s   {moves}"
    ).rstrip()


class PassProgress(_Drawn):
    """A context that draws the rounds of a pass on `console`."""

    def __init__(self, console: Console) -> None:
        self._console, self._before = console, (0, 0.0)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("pass", total=None)

    def show(self, info: SequentialInfo) -> None:
        """Draw one round."""
        self._console.print(round_line(info, *self._before), highlight=False)
        self._before = (info.rows, info.seconds)
        self._bar.update(self._task, total=info.of, completed=info.round)


def round_line(info: SequentialInfo, rows: int = 0, seconds: float = 0.0) -> str:
    """One round in a line; `rows` and `seconds` as of the round before."""
    pace = (info.rows - rows) / max(info.seconds - seconds, 1e-9)
    held = "" if np.isnan(info.holdout) else f"   held out {info.holdout:12.6f}"
    return f"round {info.round:4d}   rows {info.rows:12d}   K {info.n_components:5d}   {pace:10.0f} rows/s{held}"
