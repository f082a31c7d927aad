"""What a local worker process does first: leave Ctrl-C to the coordinator, which ends the workers itself."""

from __future__ import annotations

import signal


def dask_setup(worker: object) -> None:
    """Called by Dask in the worker process before it takes work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
