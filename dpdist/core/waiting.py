"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")


def wait_until(ready: Callable[[], _Found], until: float, pause: float = 0.2) -> _Found:
    """What `ready` gives as soon as that is true, or what it gave last.

    Parameters
    ----------
    ready : asked once at least, and every `pause` seconds
    until : reading of :func:`time.monotonic` after which it is asked no more
    """
    while not (found := ready()) and time.monotonic() < until:
        time.sleep(pause)
    return found


def try_until(action: Callable[[], _Found], until: float, pause: float, may_pass: Callable[[OSError], bool]) -> _Found:
    """What `action` gives; it is tried again, every `pause` seconds, while it fails by what may pass.

    Parameters
    ----------
    until : reading of :func:`time.monotonic` after which its error is raised
    """
    while True:
        try:
            return action()
        except OSError as error:
            if not may_pass(error) or time.monotonic() > until:
                raise
        time.sleep(pause)
