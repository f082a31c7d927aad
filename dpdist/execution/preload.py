"""Start-up of a local worker process: ignore Ctrl-C, as the coordinator handles it and ends the workers, and leave out
what Dask logs, with tracebacks, of a worker that is ended in the middle of a task or of a heartbeat."""

from __future__ import annotations

import logging
import signal

#: By logger, a part of its messages about a regular end.
ENDINGS = {
    "distributed.worker": "Failed to communicate with scheduler during heartbeat",
    "distributed.worker.state_machine": "ended with CancelledError",
}


def dask_setup(worker: object) -> None:
    """Called by Dask in the worker process before it accepts tasks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ENDINGS:
        logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a message is not about a regular end."""
    return ENDINGS[record.name] not in record.getMessage()
