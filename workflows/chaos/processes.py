"""Processes of a disturbed run: found by their sessions and parents, signalled, and never left behind."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from dpdist.cli.root import app
from dpdist.core.errors import DpdistError

COMMAND = [sys.executable, "-m", "dpdist"]
#: Seconds after which a disturbed run counts as hanging.
PATIENCE = 420.0


class ChaosError(Exception):
    """A run did not go on as it should."""


@dataclass
class Sessions:
    """The sessions of processes that were begun here, and what is done to them."""

    leaders: set[int] = field(default_factory=set)
    began: float = field(default_factory=time.time)

    def start(self, command: Sequence[str], log: Path, **variables: str) -> psutil.Popen:
        """A command in a session of its own."""
        with open(log, "ab") as output:
            process = psutil.Popen(
                command, stdout=output, stderr=output, start_new_session=True, env={**os.environ, **variables}
            )
        self.leaders.add(process.pid)
        return process

    def living(self) -> list[psutil.Process]:
        """Processes of the sessions that have not ended."""
        return [each for each in psutil.process_iter() if self._is_ours(each)]

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            ours = os.getsid(process.pid) in self.leaders and process.create_time() > self.began - 1
            return ours and process.status() != psutil.STATUS_ZOMBIE
        return False

    def wait(self, seconds: float = 30.0) -> None:
        """Wait until all have ended by themselves; an error names those that did not."""
        until(lambda: not self.living(), seconds, lambda: f"left running: {self.living()}")

    def end(self) -> None:
        """End whatever is left."""
        for process in self.living():
            kill(process)
        psutil.wait_procs(psutil.Process().children(recursive=True), timeout=10)


def kill(process: psutil.Process, number: int = signal.SIGKILL) -> bool:
    """Send a signal; whether the process was there."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Worker processes that belong to a coordinator or a nanny."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any("spawn_main" in part for part in child.cmdline()):
                    found.append(child)
    return found


def until(ready: Callable[[], bool], seconds: float, told: Callable[[], str]) -> None:
    """Wait for something; :class:`ChaosError` if it takes longer than that."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise ChaosError(told())
        time.sleep(0.05)


def dpdist(*arguments: object) -> None:
    """Run a command of dpdist's in this process; :class:`ChaosError` with its sentence if it fails."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            app([str(each) for each in arguments], standalone_mode=False)
        except DpdistError as error:
            raise ChaosError(str(error)) from error


def at_once(times: int, *arguments: object) -> list[str]:
    """Run a command of dpdist's in several processes at the same moment; what those that failed said."""
    command = [*COMMAND, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = [subprocess.Popen(command, env={**os.environ, "NO_COLOR": "1"}, **pipes) for _ in range(times)]  # type: ignore[call-overload]
    texts = [each.communicate(timeout=PATIENCE)[0].strip() for each in started]
    return [text for text, each in zip(texts, started, strict=True) if each.returncode]
