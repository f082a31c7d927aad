"""Where a run is kept: a folder of small files and Zarr groups, on local disk or in an object store.

Nothing here is ever changed half-way: files appear whole or not at all, and a group counts only once a file that names
it was created. Everything else (generations, leases, requests) is built from these calls alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import zarr
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import MemoryStore

from dpdist.core.digests import digest_of
from dpdist.core.errors import CheckpointError


class Place(ABC):
    """A folder that holds one run. Any call, or a group it gave, may raise :class:`OSError`.

    Names are relative and use ``/``; what they need above them is made by the calls that write.

    Attributes
    ----------
    label : the path or URL as a person gave it
    """

    label: str

    @property
    def where(self) -> str:
        """The path or URL as it holds wherever it is read."""
        return self.label

    @property
    def identity(self) -> str:
        """The one path or URL of a place that has several, by which it is told from its copies."""
        return self.where.rstrip("/")

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The file `name`, or None if there is none."""

    @abstractmethod
    def create(self, name: str, data: bytes | memoryview) -> bool:
        """Write a file that must not exist, in one atomic and durable step; False if it exists, which is left as it is.

        Of several writers at most one is told True.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Write or replace a file in one atomic step."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Sorted names of the files and folders directly in `folder`, without it; empty if there is no such folder.

        Names that begin with a dot are left out: they are of files that are being written.
        """

    @abstractmethod
    def remove(self, *names: str) -> None:
        """Remove files, and folders with all that is in them; nothing happens to what is not there."""

    @abstractmethod
    def files(self, folder: str) -> dict[str, bytes]:
        """Every file below `folder`, by its name below it, but for those whose name begins with a dot; empty if there
        is no such folder."""

    def fill(self, name: str, write: Callable[[zarr.Group], None]) -> dict[str, str]:
        """Make folder `name`, which is not there yet, the Zarr v3 group that `write` fills, durable when this returns.

        It is filled in memory, then written: Zarr asks a store many times for each small array, and waits each time.

        Returns
        -------
        digests : of each file, by its name below the folder, without which :meth:`group` does not believe it
        """
        parts: dict[str, Buffer] = {}
        write(zarr.open_group(MemoryStore(parts), mode="w", zarr_format=3))
        views = {key: memoryview(part.as_buffer_like()) for key, part in parts.items()}
        self._put(name, views)
        return {key: digest_of(view) for key, view in sorted(views.items())}

    def group(self, name: str, digests: Mapping[str, str]) -> zarr.Group:
        """The Zarr v3 group in folder `name`, to read, once all of it is in memory and found to be what was written.

        Parameters
        ----------
        digests : of each file, as :meth:`fill` gave them; for a group within its group, of those below it

        Raises
        ------
        CheckpointError
            If a file is missing, damaged or none of those.
        """
        files = self.files(name)
        for file in sorted({*files, *digests}):
            told = _judged(files.get(file), digests.get(file))
            if told is not None:
                raise CheckpointError(f"{self.label}/{name}/{file} {told}")
        buffer = default_buffer_prototype().buffer
        store = _Read(f"{self.label}/{name}", {file: buffer.from_bytes(data) for file, data in files.items()})
        return zarr.open_group(store, mode="r", zarr_format=3)

    @abstractmethod
    def _put(self, folder: str, parts: Mapping[str, memoryview]) -> None:
        """Write files, by name below `folder`, that are not there yet; all are durable when this returns."""

    def sweep(self, folder: str) -> None:  # noqa: B027 (most leave nothing)
        """Remove what writers of files in `folder` left when they were killed; nobody else may write there now."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether anything is stored here."""


class _Read(MemoryStore):
    """Files in memory, which sentences name as where they were read from."""

    def __init__(self, label: str, files: dict[str, Buffer]) -> None:
        super().__init__(files, read_only=True)
        self._label = label

    def __str__(self) -> str:
        return self._label


def _judged(data: bytes | None, digest: str | None) -> str | None:
    """What is wrong with a file, given what is there and the digest of what was written; None if nothing is."""
    if data is None:
        return "is missing; restore it from a copy."
    if digest is None:
        return "is no part of what was written; remove it."
    return None if digest_of(data) == digest else "is damaged; restore it from a copy."
