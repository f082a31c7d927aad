"""Seconds of a run by phase: each thread keeps its own account, to which the seconds of other processes can be added.

    with phase(Phase.MOVES):
        ...

Time within an inner phase does not count to the outer one. The seconds are reported only, and decide nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum


class Phase(StrEnum):
    """Activities that time is counted by."""

    LOAD = "load"  # reading partitions
    LOCAL_STEP = "local_step"
    SUMS = "sums"
    GLOBAL_STEP = "global_step"
    MOVES = "moves"  # proposing, measuring in samples, evaluating, applying
    SCORE = "score"  # held-out rows
    WAITING = "waiting"  # of the coordinator, for workers, including sending tasks to them
    WORKERS = "workers"  # all time of workers, counted a second time


#: Seconds by phase.
Spent = Mapping[Phase, float]


class _Account(threading.local):
    """The account of one thread: seconds spent, its nested phases, and the time of the last change."""

    def __init__(self) -> None:
        self.spent: Counter[Phase] = Counter()
        self.within: list[Phase] = []
        self.since = 0.0

    def turn(self) -> None:
        now = time.perf_counter()
        if self.within:
            self.spent[self.within[-1]] += now - self.since  # type: ignore[assignment]
        self.since = now


_ACCOUNT = _Account()


@contextmanager
def phase(name: Phase | None) -> Iterator[None]:
    """Count time within the context to phase `name`; None changes nothing."""
    if name is None:
        yield
        return
    _ACCOUNT.turn()
    _ACCOUNT.within.append(name)
    try:
        yield
    finally:
        _ACCOUNT.turn()
        _ACCOUNT.within.pop()


def present() -> Phase | None:
    """The current phase of this thread."""
    return _ACCOUNT.within[-1] if _ACCOUNT.within else None


def spent() -> Spent:
    """Seconds of this thread so far by phase, including phases in progress and added seconds."""
    _ACCOUNT.turn()
    return Counter(_ACCOUNT.spent)


def since(before: Spent) -> Spent:
    """Seconds of this thread since it had spent `before`."""
    return {name: seconds - before.get(name, 0.0) for name, seconds in spent().items()}


def add(others: Spent) -> None:
    """Add seconds spent by others to this thread's account."""
    for name, seconds in others.items():
        _ACCOUNT.spent[name] += seconds  # type: ignore[assignment]
