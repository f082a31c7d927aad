"""The interface of submission: jobs as plain values, their state, and how to submit, query and cancel them.

The submitted coordinator follows this contract for all kinds of jobs. On SIGTERM it writes a last checkpoint and exits
with 143; it may get the signal twice. On SIGUSR1, which announces the end of its time, it writes a last checkpoint and
exits with 75 if it made progress since its start; the job then starts it again. Any other status is final, and the log
contains the reason.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from dpdist.cluster.kinds.base import ClusterConfig
from dpdist.core.errors import InputError


@dataclass(frozen=True)
class Job:
    """A submitted coordinator.

    Parameters
    ----------
    kind : ``process``, ``slurm`` or ``kubernetes``
    identity : host, process id and start time; or job number; or namespace and name
    log : file of its output; empty if only the cluster has it
    """

    kind: str
    identity: str
    log: str = ""


class JobState(Enum):
    """The state of a job; the value is the word shown to users."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


Config = TypeVar("Config", bound=ClusterConfig)


class Submitter(ABC, Generic[Config]):
    """Submits coordinators as one kind of job, and finds the jobs again.

    Parameters
    ----------
    cluster : configuration of the jobs; None if jobs are only queried

    Attributes
    ----------
    kind : of its jobs
    """

    kind: ClassVar[str]

    def __init__(self, cluster: Config | None = None) -> None:
        self.cluster = cluster

    @abstractmethod
    def submit(self, command: Sequence[str], name: str, folder: Path) -> Job:
        """Start `command` as a job; returns when it is accepted.

        Parameters
        ----------
        command : absolute path of the program, and arguments; without secrets, because all users can read them
        name : of the job and of its files
        folder : of its script and log; created if missing

        Raises
        ------
        InputError
            If the job was not accepted.
        """

    @abstractmethod
    def state(self, job: Job) -> tuple[JobState, str]:
        """The state of a job, with details in a few words."""

    @abstractmethod
    def cancel(self, job: Job) -> None:
        """Ask a job to write a last checkpoint and end, or remove it if it is waiting; a job that has ended is
        ignored."""


def checked_name(name: str) -> str:
    """The name of a job, if it is valid in file names and queues; else raises :class:`InputError`."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise InputError(f"the name of a job should be at most 100 letters, digits, dots, - and _; got {name!r}.")
    return name


def made_folder(folder: Path) -> Path:
    """The absolute path of a folder, which is created with access for its owner only, if missing."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder {folder} for jobs cannot be created ({error.strerror}); choose another."
        ) from error
    return folder.absolute()


def open_private(path: Path, flags: int) -> int:
    """File descriptor of a file that only its owner can read, created if missing."""
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_WRONLY, 0o600)
        os.fchmod(descriptor, 0o600)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); choose another folder.") from error
    return descriptor
