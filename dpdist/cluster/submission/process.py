"""The coordinator as a background process on this host, in its own session.

It outlives the shell that started it. If systemd ends the processes of users who log out (``KillUserProcesses``),
``loginctl enable-linger`` prevents this. A process is identified by its id and start time together, so that an id that
was reused is never taken for the run. submitit is not used: it starts such processes too, but pickles a function and
its result, and kills what it cancels, while a run has to write a last checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from dpdist.cluster.kinds.base import ClusterConfig
from dpdist.cluster.submission.base import Job, JobState, Submitter, checked_name, made_folder, open_private
from dpdist.core.errors import InputError
from dpdist.core.lease import is_hidden, process_began

#: Signals that are reset to their defaults in the coordinator.
_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE]


class ProcessSubmitter(Submitter[ClusterConfig]):
    """Starts detached processes that append to a log."""

    kind: ClassVar[str] = "process"

    def submit(self, command: Sequence[str], name: str, folder: Path) -> Job:
        log = made_folder(folder) / f"{checked_name(name)}.log"
        output = open_private(log, os.O_APPEND)
        streams: list[tuple[object, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        streams += [(os.POSIX_SPAWN_DUP2, output, each) for each in (1, 2)]
        try:
            number = os.posix_spawn(
                command[0],
                list(command),
                os.environ,
                file_actions=streams,
                setsid=True,
                setsigdef=_SIGNALS,
                setsigmask=[],
            )
        except OSError as error:
            raise InputError(f"{command[0]} cannot be started ({error.strerror}); check its path.") from error
        finally:
            os.close(output)
        return process_job(socket.gethostname(), number, process_began(number), str(log))

    def state(self, job: Job) -> tuple[JobState, str]:
        host, number, began = _identity(job)
        if host != socket.gethostname():
            return JobState.UNKNOWN, f"runs on {host}: check it there"
        if _lives(number, began):
            return JobState.RUNNING, f"process {number}"
        if is_hidden(number):
            return JobState.UNKNOWN, f"process {number} belongs to another user: check it as that user"
        with contextlib.suppress(ChildProcessError):  # only the parent process can read the exit status, and only once
            found, status = os.waitpid(number, os.WNOHANG)
            if found:
                return JobState.ENDED, f"exit {os.waitstatus_to_exitcode(status)}"
        return JobState.ENDED, "the process no longer exists"

    def cancel(self, job: Job) -> None:
        host, number, began = _identity(job)
        if host != socket.gethostname():
            raise InputError(f"the run is a process on {host}, but this is {socket.gethostname()}: cancel it there.")
        with contextlib.suppress(ProcessLookupError):
            held = os.pidfd_open(number)  # refers to this process even if its id is reused
            try:
                if _lives(number, began):
                    signal.pidfd_send_signal(held, signal.SIGTERM)
            finally:
                os.close(held)


def process_job(host: str, number: int, began: int, log: str = "") -> Job:
    """The job of a process, by host, process id, and start time as from :func:`process_began`."""
    return Job(ProcessSubmitter.kind, f"{host} {number} {began}", log)


def _identity(job: Job) -> tuple[str, int, int]:
    """Host, process id, and start time in clock ticks since the boot of the host."""
    host, number, began = job.identity.split(" ")
    return host, int(number), int(began)


def _lives(number: int, began: int) -> bool:
    """Whether a process runs on this host; a zombie does not."""
    return began != 0 and process_began(number) == began
