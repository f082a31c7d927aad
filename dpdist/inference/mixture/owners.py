"""Owners of a batch's rows between two visits: with its summary, or in files that workers write, one a partition.

Two bytes a row are little beside the row, and much where the rows of all batches are counted in hundreds of millions:
then workers keep them where the run is stored, and the batch summary says where.
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
    folder : of the files that their last visit wrote
    partitions : those of a batch, in order
    heirs : where the rows of the owners of then are now; None: as then
    """

    folder: str
    partitions: tuple[KeptFile, ...]
    heirs: Heirs | None = None

    def __add__(self, other: KeptOwners) -> KeptOwners:
        return replace(self, partitions=self.partitions + other.partitions)

    @property
    def files(self) -> dict[str, dict[str, str]]:
        """Digests of files by name, by folder."""
        return {self.folder: {kept.name: kept.digest for kept in self.partitions}}

    def read(self, files: RunFiles) -> np.ndarray:
        """(n,) owners as they are now; raises :class:`CheckpointError` if a file is missing or damaged."""
        read = (files.read(self.folder, kept.name, kept.digest) for kept in self.partitions)
        found: np.ndarray = np.concatenate([np.load(io.BytesIO(data)) for data in read])
        return found if self.heirs is None else self.heirs.owners(found)


#: Owners of rows, here or in files; None where candidates do not go by them.
AnyOwners = np.ndarray | KeptOwners | None


def keep_owners(files: RunFiles, lap: int, partition: int, owners: np.ndarray) -> KeptOwners:
    """Put the owners (n,) that a visit found in a file; a task that is made again writes the same."""
    stream, folder = io.BytesIO(), files.folder_of(lap, "owners")
    np.save(stream, owners)
    return KeptOwners(folder, (files.write(folder, f"{partition:06d}.npy", stream.getbuffer()),))


def join_owners(first: AnyOwners, second: AnyOwners) -> AnyOwners:
    """Owners of rows and those that follow; None unless both are known, in the same way."""
    if isinstance(first, KeptOwners) and isinstance(second, KeptOwners):
        return first + second
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.concatenate([first, second])
    return None


def owners_after(owners: AnyOwners, heirs: Heirs) -> AnyOwners:
    """The owners after a lap's end; those in files once they are read."""
    if isinstance(owners, KeptOwners):
        assert owners.heirs is None, "every lap visits every batch"
        return replace(owners, heirs=heirs)
    return None if owners is None else heirs.owners(owners)


def owners_of_partitions(owners: AnyOwners, rows: Sequence[int]) -> list[AnyOwners]:
    """What the owners of a batch's rows are in its partitions, of so many `rows` each."""
    if isinstance(owners, KeptOwners):
        return [replace(owners, partitions=(kept,)) for kept in owners.partitions]
    return [None] * len(rows) if owners is None else list(np.split(owners, np.cumsum(rows[:-1])))


def read_owners(owners: AnyOwners, files: RunFiles) -> np.ndarray | None:
    """Owners of a partition's rows, wherever they are."""
    return owners.read(files) if isinstance(owners, KeptOwners) else owners
