"""The coordinator as a background process of this host, in a session of its own.

It outlives the shell that started it. Where systemd ends the processes of users who log out (``KillUserProcesses``),
``loginctl enable-linger`` keeps it. A process is known by its id and its start time together, so that an id that was
given to another process is never taken for the run. submitit, which starts such processes too, pickles a function and
its result and kills what it cancels, where a run has to write a last checkpoint.
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
from dpdist.core.lease import process_began

#: Handled by the coordinator, whatever the process that starts it does with them.
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
            return JobState.UNKNOWN, f"runs on {host}: ask there"
        if _lives(number, began):
            return JobState.RUNNING, f"process {number}"
        with contextlib.suppress(ChildProcessError):  # its parent knows how it ended, once, and nobody else does
            found, status = os.waitpid(number, os.WNOHANG)
            if found:
                return JobState.ENDED, f"exit {os.waitstatus_to_exitcode(status)}"
        return JobState.ENDED, "no such process any more"

    def cancel(self, job: Job) -> None:
        host, number, began = _identity(job)
        if host != socket.gethostname():
            raise InputError(f"the run is a process on {host}, and this is {socket.gethostname()}: cancel it there.")
        with contextlib.suppress(ProcessLookupError):
            held = os.pidfd_open(number)  # stays this process's, even if its id is given away
            try:
                if _lives(number, began):
                    signal.pidfd_send_signal(held, signal.SIGTERM)
            finally:
                os.close(held)


def process_job(host: str, number: int, began: int, log: str = "") -> Job:
    """The job that a process of a host is, by its id and when it began, as :func:`process_began` tells that."""
    return Job(ProcessSubmitter.kind, f"{host} {number} {began}", log)


def _identity(job: Job) -> tuple[str, int, int]:
    """Host, process id, and start in clock ticks since that host's start."""
    host, number, began = job.identity.split(" ")
    return host, int(number), int(began)


def _lives(number: int, began: int) -> bool:
    """Whether a process runs on this host; one that ended and was not waited for does not."""
    return began != 0 and process_began(number) == began
