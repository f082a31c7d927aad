"""Files that workers write at the place where a run is stored, beside its checkpoint.

What a visit leaves and the coordinator need not see stays in a file: what comes back are its name and digest, which a
checkpoint names. Names are used once by each coordinator of a run, and a task that is made again writes the same.
A run that is stored nowhere, or at a place that its workers do not reach, has none.
"""

from __future__ import annotations

import errno
import uuid
from dataclasses import dataclass
from typing import ClassVar, Self

from dpdist.core.digests import digest_of
from dpdist.core.errors import CheckpointError
from dpdist.core.places import place_of
from dpdist.execution.base import Backend


@dataclass(frozen=True, eq=False)
class KeptFile:
    """Name and digest of a file in a folder that is known."""

    name: str
    digest: str


@dataclass(frozen=True)
class RunFiles:
    """Where the workers of a run keep what they leave.

    Parameters
    ----------
    path : of the run; None for nowhere
    session : sets apart what different coordinators of one run had written
    """

    path: str | None = None
    session: str = ""

    #: What they hold, in sentences.
    holding: ClassVar[str] = "sums of its batches"

    @classmethod
    def at(cls, path: str | None, backend: Backend) -> Self:
        """Those of the run at `path`, if workers reach it; else, or without a path, none."""
        if path is None or backend.fetch(backend.map(_problems_at, [path]))[0] != _problems_at(path):
            return cls()
        return cls(path, uuid.uuid4().hex[:6])

    def folder_of(self, lap: int, what: str) -> str:
        """Of the files of one kind that the visits of a lap write."""
        return f"objects/{lap:06d}-{what}-{self.session}"

    def write(self, folder: str, name: str, data: bytes | memoryview) -> KeptFile:
        """Keep some bytes; raises :class:`CheckpointError` where there is no room for them."""
        assert self.path is not None, "workers reach the run's place"
        try:
            place_of(self.path).create(f"{folder}/{name}", data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise  # another try may mend it
            raise CheckpointError(
                f"{self.path}/{folder}/{name} could not be written ({error.strerror}); the checkpoint is intact. Make "
                f"room, then: dpdist resume {self.path}"
            ) from error
        return KeptFile(name, digest_of(data))

    def read(self, folder: str, name: str, digest: str) -> bytes:
        """What was kept.

        Raises
        ------
        CheckpointError
            If the file is missing or damaged, or is not reached.
        """
        if self.path is None:
            raise CheckpointError(
                f"the run has {self.holding} in files beside its checkpoint, which its workers do not reach; go on "
                "where they do, as where it was begun."
            )
        data = place_of(self.path).read(f"{folder}/{name}")
        if data is None or digest_of(data) != digest:
            told = "missing" if data is None else "damaged"
            raise CheckpointError(f"{self.path}/{folder}/{name} is {told}; restore it from a copy.")
        return data


def _problems_at(path: str) -> list[str]:
    """Random names that no two runs share."""
    return place_of(path).names("problems")
