"""Owners of a batch's rows, kept from one visit to the next: in memory with the batch summary, or in files.

An owner takes two bytes, little for one row but much for hundreds of millions. Then workers write the owners to one
file per partition where the run is stored, and the batch summary names the files.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpdist.inference.files import KeptFile, RunFiles
from dpdist.inference.mixture.candidates import Heirs


@dataclass(frozen=True, eq=False)
class KeptOwners:
    """Owners of the rows of partitions, in files.

    Parameters
    ----------
    folder : of the files that the last visit wrote
    partitions : the files of a batch's partitions, in order
    heirs : map from the stored owners to the present components; None if they are the same
    """

    folder: str
    partitions: tuple[KeptFile, ...]
    heirs: Heirs | None = None

    def __add__(self, other: KeptOwners) -> KeptOwners:
        return replace(self, partitions=self.partitions + other.partitions)

    @property
    def files(self) -> dict[str, dict[str, str]]:
        """Folder -> file name -> digest."""
        return {self.folder: {kept.name: kept.digest for kept in self.partitions}}

    def read(self, files: RunFiles) -> np.ndarray:
        """(n,) present owners; raises :class:`CheckpointError` if a file is missing or damaged."""
        read = (files.read(self.folder, kept.name, kept.digest) for kept in self.partitions)
        found: np.ndarray = np.concatenate([np.load(io.BytesIO(data)) for data in read])
        return found if self.heirs is None else self.heirs.owners(found)


#: Owners of rows, in memory or in files; None if candidates are not used.
AnyOwners = np.ndarray | KeptOwners | None


def keep_owners(files: RunFiles, lap: int, partition: int, owners: np.ndarray) -> KeptOwners:
    """Write the owners (n,) found in a visit to a file; a repeated task writes the same file."""
    stream, folder = io.BytesIO(), files.folder_of(lap, "owners")
    np.save(stream, owners)
    return KeptOwners(folder, (files.write(folder, f"{partition:06d}.npy", stream.getbuffer()),))


def join_owners(first: AnyOwners, second: AnyOwners) -> AnyOwners:
    """Owners of two consecutive parts of the rows; None unless both are known and stored in the same way."""
    if isinstance(first, KeptOwners) and isinstance(second, KeptOwners):
        return first + second
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.concatenate([first, second])
    return None


def owners_after(owners: AnyOwners, heirs: Heirs) -> AnyOwners:
    """The owners after a lap end; owners in files are mapped when they are read."""
    if isinstance(owners, KeptOwners):
        assert owners.heirs is None, "every lap visits every batch"
        return replace(owners, heirs=heirs)
    return None if owners is None else heirs.owners(owners)


def owners_of_partitions(owners: AnyOwners, rows: Sequence[int]) -> list[AnyOwners]:
    """The owners of a batch's rows by partition; `rows` are the partitions' numbers of rows."""
    if isinstance(owners, KeptOwners):
        return [replace(owners, partitions=(kept,)) for kept in owners.partitions]
    return [None] * len(rows) if owners is None else list(np.split(owners, np.cumsum(rows[:-1])))


def read_owners(owners: AnyOwners, files: RunFiles) -> np.ndarray | None:
    """Owners of a partition's rows, from memory or files."""
    return owners.read(files) if isinstance(owners, KeptOwners) else owners
