"""One BLAS thread inside the numerical steps, because the number of threads changes the bits of results.

Most BLAS libraries have one number of threads for the whole process; those built on OpenMP have one for each calling
thread. For the former, threadpoolctl obeys only one Python thread and ignores the others. Here any thread may limit
them, and the last thread to leave restores the original number.
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
    """The number of threads inside the context, and the BLAS threads before the first entered."""

    def __init__(self) -> None:
        self._lock, self._within = threading.Lock(), 0
        self._before: list[int] = []
        os.register_at_fork(after_in_child=self._begin_again)

    def _begin_again(self) -> None:
        """Replace the lock in a forked process, where a lock held by another thread would never be released."""
        self._lock = threading.Lock()

    def enter(self) -> list[int]:
        """Limit BLAS to one thread; returns the previous number of threads of each library."""
        with self._lock:
            found = [library.get_num_threads() for library in _libraries()]
            if not self._within:
                self._before = found
            self._within += 1
            for library in _libraries():
                _set(library, 1)
        return found

    def leave(self, found: list[int]) -> None:
        """Restore the numbers in `found` for this thread, and, if it is the last, those of the process."""
        with self._lock:
            self._within -= 1
            for library, own, before in zip(_libraries(), found, self._before, strict=True):
                if getattr(library, "threading_layer", None) == "openmp":  # every calling thread has its own number
                    _set(library, own)
                elif not self._within:
                    _set(library, before)


_LIMIT = _Limit()


@cache
def _libraries() -> tuple[Any, ...]:
    """All BLAS libraries of this process that threadpoolctl finds."""
    return tuple(each for each in ThreadpoolController().lib_controllers if each.user_api == "blas")


def _set(library: Any, threads: int) -> None:
    """Set the number of threads of a library, even if threadpoolctl obeys another thread."""
    take_control = getattr(library, "clear_controlling_thread", None)
    if take_control is not None:
        take_control(force=True)
    library.set_num_threads(threads)
    if take_control is not None:
        take_control(force=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which every BLAS of this process uses one thread; several threads may be in it."""
    found = _LIMIT.enter()
    try:
        yield
    finally:
        _LIMIT.leave(found)
