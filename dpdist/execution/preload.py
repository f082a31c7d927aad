"""Start-up of a local worker process: ignore Ctrl-C, as the coordinator handles it and ends the workers."""

from __future__ import annotations

import signal


def dask_setup(worker: object) -> None:
    """Called by Dask in the worker process before it accepts tasks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
