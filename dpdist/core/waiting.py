"""Waiting for other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")
_Errors = type[Exception] | tuple[type[Exception], ...]


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


def try_until(
    action: Callable[[], _Found], until: float, pause: float, passing: _Errors, final: _Errors = ()
) -> _Found:
    """The result of `action`, which is retried every `pause` seconds while it fails with an error that may pass.

    Parameters
    ----------
    until : value of :func:`time.monotonic` after which its error is raised
    passing, final : kinds of errors that may pass, and kinds among them that never do
    """
    while True:
        try:
            return action()
        except final:
            raise
        except passing:
            if time.monotonic() > until:
                raise
        time.sleep(pause)
