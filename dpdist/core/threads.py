"""One BLAS thread inside the numerical steps: two thread counts give different bits.

How many threads a BLAS has is a matter of the whole process for most, and of the thread that asks for those built on
OpenMP. threadpoolctl lets one Python thread alone decide for the former, and what others ask for goes unheard; here any
of them may, and the threads that there were are given back by the last one within, whoever that is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


class _Limit:
    """Who is within, and the threads of each BLAS before the first was."""

    def __init__(self) -> None:
        self._lock, self._within = threading.Lock(), 0
        self._before: list[int] = []
        os.register_at_fork(after_in_child=self._begin_again)

    def _begin_again(self) -> None:
        """In a copy of the process that was made while another thread held the lock, nobody would release it."""
        self._lock = threading.Lock()

    def enter(self) -> list[int]:
        """Limit this thread and the process; gives the threads of each BLAS that were found."""
        with self._lock:
            found = [library.get_num_threads() for library in _libraries()]
            if not self._within:
                self._before = found
            self._within += 1
            for library in _libraries():
                _set(library, 1)
        return found

    def leave(self, found: list[int]) -> None:
        """Give back what this thread `found`, and, if it is the last, what the process had."""
        with self._lock:
            self._within -= 1
            for library, own, before in zip(_libraries(), found, self._before, strict=True):
                if _is_own(library):
                    _set(library, own)
                elif not self._within:
                    _set(library, before)


_LIMIT = _Limit()


@cache
def _libraries() -> tuple[Any, ...]:
    """Every BLAS of this process, as threadpoolctl sees it."""
    return tuple(each for each in ThreadpoolController().lib_controllers if each.user_api == "blas")


def _is_own(library: Any) -> bool:
    """Whether each thread has a number of its own."""
    return getattr(library, "threading_layer", None) == "openmp"


def _set(library: Any, threads: int) -> None:
    """Have it heard, whichever thread threadpoolctl listens to."""
    take_control = getattr(library, "clear_controlling_thread", None)
    if take_control is not None:
        take_control(force=True)
    library.set_num_threads(threads)
    if take_control is not None:
        take_control(force=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which every BLAS of this process runs on one thread, whichever of its threads are within."""
    found = _LIMIT.enter()
    try:
        yield
    finally:
        _LIMIT.leave(found)
