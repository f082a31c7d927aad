"""When a checkpoint is due: often if writing is fast, rarely if it is slow, within a fixed share of the run's time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Largest share of a run's time that checkpoints may take.
SHARE = 0.03
#: Default of the longest time between two checkpoints, whatever they cost, in seconds.
CHECKPOINT_SECONDS = 600.0


class Cadence:
    """Decides when checkpoints are due, from what they cost.

    The next checkpoint is due when two conditions hold, assuming that it costs as much as the last one: all checkpoints
    together stay within SHARE of the time since the start, and the last one within SHARE of the time since it began, so
    that checkpoints do not follow each other at once after a quiet time. The times of checkpoints vary; the results of
    the run do not depend on them.

    Parameters
    ----------
    clock : returns seconds

    Attributes
    ----------
    spent : seconds spent on writing all checkpoints so far
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.spent = 0.0
        self._start = clock()
        self._began, self._cost = self._start, 0.0  # of the last checkpoint; the cost is infinite until it is written

    def due(self, longest: float) -> bool:
        """Whether a checkpoint is due, by cost or because the last began `longest` seconds ago. The first always is."""
        now, cost = self._clock(), self._cost
        cheap = cost <= SHARE * (now - self._began) and self.spent + cost <= SHARE * (now - self._start)
        return cheap or now - self._began >= longest

    def begin(self) -> None:
        """Note that a checkpoint begins."""
        self._began, self._cost = self._clock(), math.inf

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the writing of the checkpoint that began last; may be used in another thread."""
        before = self._clock()
        try:
            yield
        finally:
            self._cost = self._clock() - before
            self.spent += self._cost
