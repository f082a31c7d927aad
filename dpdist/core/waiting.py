"""Waiting for other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")


def wait_until(ready: Callable[[], _Found], until: float, pause: float = 0.2) -> _Found:
    """The first true result of `ready`, or its last result if the time is over.

    Parameters
    ----------
    ready : called at least once, then every `pause` seconds
    until : value of :func:`time.monotonic` after which it is not called again
    """
    while not (found := ready()) and time.monotonic() < until:
        time.sleep(pause)
    return found


def try_until(action: Callable[[], _Found], until: float, pause: float, may_pass: Callable[[OSError], bool]) -> _Found:
    """The result of `action`, which is retried every `pause` seconds while it fails with an error that `may_pass`
    accepts.

    Parameters
    ----------
    until : value of :func:`time.monotonic` after which its error is raised
    """
    while True:
        try:
            return action()
        except OSError as error:
            if not may_pass(error) or time.monotonic() > until:
                raise
        time.sleep(pause)
