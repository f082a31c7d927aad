"""The coordinator as a background process of this host, in a session of its own.

It outlives the shell that started it. Where systemd ends the processes of users who log out (``KillUserProcesses``),
``loginctl enable-linger`` keeps it. A process is known by its id and its start time together, so that an id that was
given to another process is never taken for the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dpdist.cluster.kinds.base import ClusterConfig
from dpdist.cluster.submission.base import (
    Job,
    JobState,
    Submitter,
    checked_name,
    made_folder,
    open_private,
)
from dpdist.core.errors import InputError
from dpdist.storage.lease import process_began

#: Handled by the coordinator, whatever the process that starts it does with them.
_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE]


class ProcessSubmitter(Submitter[ClusterConfig]):
    """Starts detached processes that append to a log."""

    kind: ClassVar[str] = "process"

    def submit(self, command: Sequence[str], name: str, folder: Path) -> Job:
        log = made_folder(folder) / f"{checked_name(name)}.log"
        output = open_private(log, os.O_APPEND)
        try:
            number = _start(list(command), output)
        finally:
            os.close(output)
        return Job(self.kind, _Identity(socket.gethostname(), number, process_began(number)).text(), str(log))

    def state(self, job: Job) -> tuple[JobState, str]:
        process = _Identity.parse(job)
        if process.host != socket.gethostname():
            return JobState.UNKNOWN, f"runs on {process.host}: ask there"
        if process.lives():
            return JobState.RUNNING, f"process {process.number}"
        return JobState.ENDED, _ending(process)

    def cancel(self, job: Job) -> None:
        process = _Identity.parse(job)
        if process.host != socket.gethostname():
            raise InputError(
                f"the run is a process on {process.host}, and this is {socket.gethostname()}: cancel it there."
            )
        with contextlib.suppress(ProcessLookupError), process.held() as descriptor:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)


@dataclass(frozen=True)
class _Identity:
    """A process: host, id, and start in clock ticks since that host's start."""

    host: str
    number: int
    start: int

    @classmethod
    def parse(cls, job: Job) -> _Identity:
        """What :meth:`text` wrote."""
        host, number, start = job.identity.split(" ")
        return cls(host, int(number), int(start))

    def text(self) -> str:
        """As a job's identity."""
        return f"{self.host} {self.number} {self.start}"

    def lives(self) -> bool:
        """Whether it runs on this host; one that ended and was not waited for does not."""
        return self.start != 0 and process_began(self.number) == self.start

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """A descriptor that stays this process's, even if its id is given away."""
        descriptor = os.pidfd_open(self.number)
        try:
            if not self.lives():
                raise ProcessLookupError(self.number)
            yield descriptor
        finally:
            os.close(descriptor)


def _start(command: list[str], output: int) -> int:
    """Id of a new process, leader of its own session."""
    try:
        return os.posix_spawn(
            command[0],
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setsid=True,
            setsigdef=_SIGNALS,
            setsigmask=[],
        )
    except OSError as error:
        raise InputError(f"{command[0]} cannot be started ({error.strerror}); check its path.") from error


def _ending(process: _Identity) -> str:
    """How a process ended: its parent knows, once, and nobody else does."""
    with contextlib.suppress(ChildProcessError):
        number, status = os.waitpid(process.number, os.WNOHANG)
        if number:
            return f"exit {os.waitstatus_to_exitcode(status)}"
    return "no such process any more"
