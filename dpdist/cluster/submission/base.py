"""What every way of submission has: a job as plain values, its state, and three things that can be asked.

The coordinator that is submitted keeps to this contract, whatever runs it. On SIGTERM it writes a last checkpoint and
exits with 143; it may get the signal twice. On SIGUSR1, the notice that its time is nearly over, it writes a last
checkpoint and exits with 75 if it got further since it started: whatever runs it then starts it again. Any other status
is final, and its log says why.
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
    """One submitted coordinator.

    Parameters
    ----------
    kind : ``process``, ``slurm`` or ``kubernetes``
    identity : what finds it again: host, process id and start time; job number; namespace and name
    log : file of its output; empty if only the cluster has it
    """

    kind: str
    identity: str
    log: str = ""


class JobState(Enum):
    """Where a job is; its value is the word that a person is shown."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


Config = TypeVar("Config", bound=ClusterConfig)


class Submitter(ABC, Generic[Config]):
    """Starts coordinators in one way, and finds them again.

    Parameters
    ----------
    cluster : whose settings shape the jobs; none to ask for jobs there are

    Attributes
    ----------
    kind : of the jobs it makes
    """

    kind: ClassVar[str]

    def __init__(self, cluster: Config | None = None) -> None:
        self.cluster = cluster

    @abstractmethod
    def submit(self, command: Sequence[str], name: str, folder: Path) -> Job:
        """Start `command` as a job; returns once it is accepted.

        Parameters
        ----------
        command : program, by its absolute path, and arguments; no secrets, for everybody can read them
        name : of the job and of its files
        folder : where its script and log go; made if it is missing

        Raises
        ------
        InputError
            If the job was not accepted: why, and what to do.
        """

    @abstractmethod
    def state(self, job: Job) -> tuple[JobState, str]:
        """The state of a job, and a few words on it."""

    @abstractmethod
    def cancel(self, job: Job) -> None:
        """Ask a job to write a last checkpoint and end, or drop it if it still waits; nothing if it ended already."""


def checked_name(name: str) -> str:
    """A job's name itself, if it can be part of file names and of a queue's names; else :class:`InputError`."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise InputError(f"the name of a job should be letters, digits, dots, - and _, at most 100; got {name!r}.")
    return name


def made_folder(folder: Path) -> Path:
    """The folder as an absolute path, made for its owner alone if it is missing."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} for jobs cannot be made ({error.strerror}); choose another.") from error
    return folder.absolute()


def open_private(path: Path, flags: int) -> int:
    """File descriptor of a file that only its owner can read, made if it is missing."""
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_WRONLY, 0o600)
        os.fchmod(descriptor, 0o600)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); choose another folder.") from error
    return descriptor
