"""Memoized variational inference: the total is the sum of the last visits of all batches.

In the first lap, the statistics of the start take the place of batches not yet seen, in proportion to their rows. With
one batch it is batch variational Bayes. Source: Hughes & Sudderth (2013), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpdist.core.checks import COUNT, FLAG, whole
from dpdist.core.settings import check_settings, documented, setting
from dpdist.inference.schedules.base import Ledger, Schedule
from dpdist.inference.schedules.tree import Sums
from dpdist.inference.state import State

#: Allowed numbers of batches that start before the preceding batch is added.
LOOKAHEAD = whole(0, 8)

AHEAD = "Number of batches that may start before the preceding batch is finished, so that more workers are busy."


@documented
@dataclass(frozen=True)
class Memoized(Schedule):
    """Memoized inference."""

    batches: int | None = setting(
        None,
        COUNT.or_none("an automatic choice"),
        "Number of batches. A batch is a group of partitions after which the model is updated; 1 is batch variational "
        "Bayes. By default as many as keep updates cheap compared with the work on rows: at most 40, for documents 10.",
    )
    lookahead: int = setting(0, LOOKAHEAD, AHEAD)
    keep_start: bool = setting(
        True,
        FLAG,
        "Whether the statistics of the start represent the unvisited batches in the first lap. If not, only visited "
        "batches count, as in the paper.",
    )

    name = "memoized"

    def __post_init__(self) -> None:
        check_settings(self)

    def open(self, state: State, batch_rows: Sequence[float], sums: Sums[Any]) -> Ledger:
        return _Memo(self, state, batch_rows, sums)


class _Memo(Ledger):
    def __init__(self, schedule: Memoized, state: State, batch_rows: Sequence[float], sums: Sums[Any]) -> None:
        super().__init__(sums)
        self._start, self._rows = state.start, batch_rows
        self._unseen = list(state.order[state.visited :])
        self._keep = schedule.keep_start or state.lap > 1

    def fold(self, batch: int, batch_summary: Any) -> None:
        self.sums.replace(batch, batch_summary)
        self._unseen = [each for each in self._unseen if each != batch]  # a visit may be repeated

    def total(self) -> Any:
        # Sum over the remaining batches, not a running sum over those seen, so that a resumed lap gives the same bits.
        unseen = math.fsum(self._rows[batch] for batch in self._unseen) / math.fsum(self._rows)
        stands_in = unseen > 0 and (self._keep or unseen == 1)
        return self.sums.total(self._start if stands_in else None, unseen)


@dataclass(frozen=True)
class Batch(Schedule):
    """Batch inference.

    Equal to ``Memoized(batches=1)``. For topic models with a point estimate of their global weights
    (``weights="point"``) it is the bHDP of Bryant & Sudderth (NeurIPS 2012).
    """

    name = "batch"
    batches = 1
    lookahead = 0

    def open(self, state: State, batch_rows: Sequence[float], sums: Sums[Any]) -> Ledger:
        return Memoized(batches=1).open(state, batch_rows, sums)
