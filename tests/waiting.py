"""Waiting for what another process does: as long as a starved machine may need, and no longer than it takes."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Seconds after which what is waited for is given up.
PATIENCE = 600.0


def wait_until(
    ready: Callable[[], object],
    trouble: Callable[[], object],
    process: subprocess.Popen | None = None,
    pause: float = 0.05,
) -> Any:
    """Wait until `ready` gives something true, and give it.

    Parameters
    ----------
    ready : looked at every `pause` seconds
    trouble : what to say if it takes too long, or `process` ends meanwhile
    process : that is to go on
    """
    end = time.monotonic() + PATIENCE
    while True:
        assert process is None or process.poll() is None, f"the process ended: {trouble()}"
        if found := ready():
            return found
        assert time.monotonic() < end, f"it did not happen: {trouble()}"
        time.sleep(pause)


def free_port() -> int:
    """A port of the loopback interface on which nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(port: int) -> bool:
    """Whether something listens on a port of the loopback interface."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def scheduler_address(file: Path, process: subprocess.Popen | None = None) -> str:
    """The address in a file that a scheduler writes when it is up."""
    return str(wait_until(lambda: _address_in(file), lambda: "the scheduler did not start", process))


def _address_in(file: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        return str(json.loads(file.read_text())["address"])
    return None
