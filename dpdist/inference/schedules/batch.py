"""Batch inference: every update uses all the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpdist.inference.schedules.base import Ledger, Schedule
from dpdist.inference.schedules.memoized import Memoized
from dpdist.inference.schedules.tree import Sums
from dpdist.inference.state import State


@dataclass(frozen=True)
class Batch(Schedule):
    """Batch inference.

    Equal to ``Memoized(batches=1)``. For topic models with a point estimate of their global weights
    (``weights="point"``) it is the bHDP of Bryant & Sudderth (NeurIPS 2012).
    """

    name = "batch"
    batches = 1
    lookahead = 0

    def open(self, state: State, batch_rows: Sequence[float], sums: Sums) -> Ledger:
        return Memoized(batches=1).open(state, batch_rows, sums)
