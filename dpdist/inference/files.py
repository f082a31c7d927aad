"""Files that workers write at the place of a run, beside its checkpoint.

Results of a visit that the coordinator does not need are written to files; only their names and digests are returned,
and the checkpoint lists them. Each coordinator of a run uses each name once, and a repeated task writes the same
content. A run without a place, or whose workers cannot reach it, has no such files.
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
    """Name and digest of a file; the folder is stored elsewhere."""

    name: str
    digest: str


@dataclass(frozen=True)
class RunFiles:
    """Where the workers of a run write their files.

    Parameters
    ----------
    path : of the run; None if it has no place
    session : distinguishes the files of different coordinators of one run
    """

    path: str | None = None
    session: str = ""

    #: Content of the files, as named in messages.
    holding: ClassVar[str] = "sums of its batches"

    @classmethod
    def at(cls, path: str | None, backend: Backend) -> Self:
        """The files of the run at `path` if workers reach it; otherwise, or without a path, no files."""
        if path is None or backend.fetch(backend.map(_problems_at, [path]))[0] != _problems_at(path):
            return cls()
        return cls(path, uuid.uuid4().hex[:6])

    def folder_of(self, lap: int, what: str) -> str:
        """Folder of the files of one kind that the visits of a lap write."""
        return f"objects/{lap:06d}-{what}-{self.session}"

    def write(self, folder: str, name: str, data: bytes | memoryview) -> KeptFile:
        """Write bytes to a file; raises :class:`CheckpointError` if there is no space."""
        assert self.path is not None, "workers reach the run's place"
        try:
            place_of(self.path).create(f"{folder}/{name}", data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise  # a retry may succeed
            raise CheckpointError(
                f"{self.path}/{folder}/{name} could not be written ({error.strerror}); the checkpoint is intact. Free "
                f"some space, then run: dpdist resume {self.path}"
            ) from error
        return KeptFile(name, digest_of(data))

    def read(self, folder: str, name: str, digest: str) -> bytes:
        """The bytes of a file; raises :class:`CheckpointError` if the file is missing or damaged, or workers cannot
        reach it."""
        if self.path is None:
            raise CheckpointError(
                f"the run stores {self.holding} in files beside its checkpoint, which its workers cannot read. "
                "Continue it on workers that can, such as those on which it was started."
            )
        data = place_of(self.path).read(f"{folder}/{name}")
        if data is None or digest_of(data) != digest:
            told = "missing" if data is None else "damaged"
            raise CheckpointError(f"{self.path}/{folder}/{name} is {told}; restore it from a copy.")
        return data


def _problems_at(path: str) -> list[str]:
    """Random names at the path; no two runs share them."""
    return place_of(path).names("problems")
