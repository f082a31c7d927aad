"""Where the seconds of a run go, by phase: each thread keeps its own account, and what others did for it is added.

    with phase(Phase.MOVES):
        ...

What is done within an inner phase is not counted to the outer one. Seconds are told, and decide nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum


class Phase(StrEnum):
    """What a thread is at."""

    LOAD = "load"  # reading partitions
    LOCAL_STEP = "local_step"
    SUMS = "sums"
    GLOBAL_STEP = "global_step"
    MOVES = "moves"  # proposing, measuring in samples, judging, applying
    SCORE = "score"  # held-out rows
    WAITING = "waiting"  # of the coordinator, for workers, and to send them what they need
    WORKERS = "workers"  # all that workers did, counted a second time


#: Seconds by phase.
Spent = Mapping[Phase, float]


class _Account(threading.local):
    """Of one thread: what it spent, the phases that it is in, and when it last turned to another."""

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
    """Within it this thread is at `name`; None leaves it at what it is at."""
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
    """What this thread is at."""
    return _ACCOUNT.within[-1] if _ACCOUNT.within else None


def spent() -> Spent:
    """What this thread spent so far, phases that it is still in included, with what was added."""
    _ACCOUNT.turn()
    return Counter(_ACCOUNT.spent)


def since(before: Spent) -> Spent:
    """What this thread spent since it had spent `before`."""
    return {name: seconds - before.get(name, 0.0) for name, seconds in spent().items()}


def add(others: Spent) -> None:
    """Count what others spent for this thread."""
    for name, seconds in others.items():
        _ACCOUNT.spent[name] += seconds  # type: ignore[assignment]
