"""The interface of places: a folder of small files and Zarr groups that holds a run, on local disk or in an object
store.

No change is ever visible half-way: files appear complete or not at all, and a group counts only after a file that names
it was created. Everything else (generations, leases, submissions) uses only these calls.
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
    """A folder that holds one run. Any call, and any group it returns, may raise :class:`OSError`.

    Names are relative and use ``/``; writing calls create missing parent folders.

    Attributes
    ----------
    label : the path or URL as given
    """

    label: str

    @property
    def where(self) -> str:
        """The absolute path, or the URL."""
        return self.label

    @property
    def identity(self) -> str:
        """A unique path or URL for a place with several, which distinguishes it from its copies."""
        return self.where.rstrip("/")

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The file `name`, or None if there is none."""

    @abstractmethod
    def create(self, name: str, data: bytes | memoryview) -> bool:
        """Write a file that must not exist, in one atomic and durable step; returns False, and changes nothing, if it
        exists.

        Among several writers, at most one gets True.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Write or replace a file in one atomic step."""

    def renew(self, name: str, data: bytes) -> None:
        """Replace a file in one atomic step; raises OSError on disk if its folder was removed, which is not created
        again."""
        self.replace(name, data)

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Sorted names of the files and folders directly in `folder`; empty if there is no such folder.

        Names that begin with a dot are left out, because they belong to files being written.
        """

    @abstractmethod
    def remove(self, *names: str) -> None:
        """Remove files, and folders with their contents; missing ones are ignored."""

    @abstractmethod
    def files(self, folder: str) -> dict[str, bytes]:
        """All files below `folder`, by relative name, without those whose name begins with a dot; empty if there is no
        such folder."""

    def fill(self, name: str, write: Callable[[zarr.Group], None]) -> dict[str, str]:
        """Create a new folder `name` with the Zarr v3 group that `write` fills; durable when this returns.

        The group is filled in memory and then written, because Zarr makes many slow requests to a store for each small
        array.

        Returns
        -------
        digests : of each file, by its name below the folder, which :meth:`group` requires
        """
        parts: dict[str, Buffer] = {}
        write(zarr.open_group(MemoryStore(parts), mode="w", zarr_format=3))
        views = {key: memoryview(part.as_buffer_like()) for key, part in parts.items()}
        self._put(name, views)
        return {key: digest_of(view) for key, view in sorted(views.items())}

    def group(self, name: str, digests: Mapping[str, str]) -> zarr.Group:
        """The Zarr v3 group in folder `name`, read-only, after all of it was read into memory and verified.

        Parameters
        ----------
        digests : of each file, as returned by :meth:`fill`; for a nested group, of the files below it

        Raises
        ------
        CheckpointError
            If a file is missing, damaged or not in `digests`.
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
        """Write new files, by name below `folder`; all are durable when this returns."""

    def sweep(self, folder: str) -> None:  # noqa: B027 (most leave nothing)
        """Remove temporary files of killed writers in `folder`; there must be no other writer."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether anything is stored here."""


class _Read(MemoryStore):
    """Files in memory, which messages name by where they were read from."""

    def __init__(self, label: str, files: dict[str, Buffer]) -> None:
        super().__init__(files, read_only=True)
        self._label = label

    def __str__(self) -> str:
        return self._label


def _judged(data: bytes | None, digest: str | None) -> str | None:
    """What is wrong with a file, given its contents and the expected digest; None if it is intact."""
    if data is None:
        return "is missing; restore it from a copy."
    if digest is None:
        return "is not one of the files that dpdist wrote; remove it."
    return None if digest_of(data) == digest else "is damaged; restore it from a copy."
