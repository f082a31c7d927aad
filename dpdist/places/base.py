"""Where a run is kept: a folder of small files and Zarr groups, on local disk or in an object store.

Nothing here is ever changed half-way: files appear whole or not at all, and a group counts only once a file that names
it was created. Everything else (generations, leases, requests) is built from these calls alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import zarr
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore


class Place(ABC):
    """A folder that holds one run.

    Names are relative and use ``/``; what they need above them is made by the calls that write.

    Attributes
    ----------
    label : the path or URL as a person gave it
    failures : exceptions that any call, or a group it gave, may raise when the place cannot be read or written
    """

    label: str
    failures: tuple[type[Exception], ...] = (OSError,)

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The file `name`, or None if there is none."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
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
    def group(self, name: str) -> zarr.Group:
        """The Zarr v3 group in folder `name` (``""`` for the place itself), to read.

        Raises
        ------
        FileNotFoundError
            If there is none.
        """

    def fill(self, name: str, write: Callable[[zarr.Group], None]) -> None:
        """Make folder `name` the Zarr v3 group that `write` fills, durable when this returns.

        It is filled in memory, then written: Zarr asks a store many times for each small array, and waits each time.
        """
        parts: dict[str, Buffer] = {}
        write(zarr.open_group(MemoryStore(parts), mode="w", zarr_format=3))
        self.remove(name)
        self._put(name, {key: memoryview(part.as_buffer_like()) for key, part in parts.items()})

    @abstractmethod
    def _put(self, folder: str, parts: Mapping[str, memoryview]) -> None:
        """Write files, by name below `folder`, that are not there yet; all are durable when this returns."""

    def sweep(self, folder: str) -> None:  # noqa: B027 (most leave nothing)
        """Remove what writers of files in `folder` left when they were killed; nobody else may write there now."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether anything is stored here."""
