"""Stochastic online variational inference: each batch's summary is scaled up and averaged into the total.

    total <- (1 - rho_t) total + rho_t (N / n_batch) summary,  rho_t = (tau + t)^-kappa

Sources: Hoffman et al. (2013); the "SO" of Hughes & Sudderth (2013).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpdist.core.checks import COUNT, number
from dpdist.core.settings import check_settings, documented, setting
from dpdist.inference.schedules.base import Ledger, Schedule
from dpdist.inference.schedules.memoized import AHEAD, LOOKAHEAD
from dpdist.inference.schedules.tree import Sums
from dpdist.inference.state import State


@documented
@dataclass(frozen=True)
class Stochastic(Schedule):
    """Stochastic inference; the number of components stays that of the start."""

    batches: int = setting(40, COUNT, "Number of mini-batches into which the data are divided.")
    lookahead: int = setting(0, LOOKAHEAD, AHEAD)
    delay: float = setting(1.0, number(least=0), "tau of the learning rate (tau + t)^-kappa.")
    forgetting: float = setting(
        0.6, number(above=0, most=1), "kappa of the learning rate; in (0.5, 1] for convergence."
    )

    name = "stochastic"
    moves = False

    def __post_init__(self) -> None:
        check_settings(self)

    def open(self, state: State, batch_rows: Sequence[float], sums: Sums[Any]) -> Ledger:
        return _Average(self, state, batch_rows, sums)

    def rate(self, step: int) -> float:
        """rho_t of the step with index `step`, counted from 0: (tau + step + 1)^-kappa."""
        return float((self.delay + step + 1) ** -self.forgetting)


class _Average(Ledger):
    def __init__(self, schedule: Stochastic, state: State, batch_rows: Sequence[float], sums: Sums[Any]) -> None:
        super().__init__(sums)
        self._schedule, self._rows = schedule, batch_rows
        self._step = (state.lap - 1) * len(batch_rows) + state.visited
        running = state.running if state.running is not None else state.start
        self._running = running if running is not None else self.sums.root

    def fold(self, batch: int, batch_summary: Any) -> None:
        rate = self._schedule.rate(self._step)
        if self._rows[batch] > 0:  # skip batches of zero weight
            amplified = self.sums.numbers(batch_summary).scaled(rate * sum(self._rows) / self._rows[batch])
            self._running = self._running.scaled(1 - rate) + amplified
        self.sums.replace(batch, batch_summary)
        self._step += 1

    def total(self) -> Any:
        return self._running

    def running(self) -> Any:
        return self._running
