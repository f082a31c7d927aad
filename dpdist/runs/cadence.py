"""When a checkpoint is due: often where it is cheap, seldom where it is dear, so that it never costs much of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Share of a run's time that its checkpoints may take.
SHARE = 0.03
#: Seconds between two checkpoints at most, whatever they cost, unless told otherwise.
CHECKPOINT_SECONDS = 600.0


class Cadence:
    """Follows what checkpoints cost.

    The next is due when one as dear as the last would leave all of them within their share of the time so far, and the
    last within its share of the time since it began, so that they do not come in a row where there was time to spare.
    When checkpoints are made depends on time; what is found does not.

    Parameters
    ----------
    clock : seconds

    Attributes
    ----------
    spent : seconds that writing took, of all checkpoints so far
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.spent = 0.0
        self._start = clock()
        self._began, self._cost = self._start, 0.0  # of the last; infinite until it is written

    def due(self, longest: float) -> bool:
        """Whether it is time for a checkpoint, `longest` seconds after the last began in any case; the first is."""
        now, cost = self._clock(), self._cost
        cheap = cost <= SHARE * (now - self._began) and self.spent + cost <= SHARE * (now - self._start)
        return cheap or now - self._began >= longest

    def begin(self) -> None:
        """A checkpoint is begun."""
        self._began, self._cost = self._clock(), math.inf

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Within it the checkpoint begun last is written, in whatever thread."""
        before = self._clock()
        try:
            yield
        finally:
            self._cost = self._clock() - before
            self.spent += self._cost
