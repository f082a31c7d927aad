"""Where a run is kept: a folder of small files and Zarr groups, on local disk or in an object store.

Nothing here is ever changed half-way: files appear whole or not at all, and a group counts only once a file that names
it was created. Everything else (generations, leases, requests) is built from these calls alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import zarr


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
    def group(self, name: str, mode: Literal["r", "w"] = "r") -> zarr.Group:
        """The Zarr v3 group in folder `name` (``""`` for the place itself): to read, or a new empty one to fill.

        Raises
        ------
        FileNotFoundError
            To read, if there is none.
        """

    @abstractmethod
    def settle(self, name: str) -> None:
        """Make what was written into the group at `name` durable."""

    def sweep(self, folder: str) -> None:  # noqa: B027 (most leave nothing)
        """Remove what writers of files in `folder` left when they were killed; nobody else may write there now."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether anything is stored here."""
