"""Documents as word counts, in a Zarr group on disk or in an object store.

A corpus of D documents over W words is a group with

    partitions/000000  the counts of the first documents as CSR: ``indptr`` (n + 1,), ``indices`` and ``data``
    partitions/000001  those of the next, and so on
    bounds             the first document of each partition, and D at the end
    vocabulary         optional: the words of all columns

Strings are an array of UTF-8 and an array of ``offsets`` into it. Every chunk is stored with a checksum, so that a
missing or damaged one is detected, never read as other counts. ``dpdist corpus`` writes such a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import zarr
from scipy import sparse

from dpdist.core.errors import CorruptDataError, DpdistError, InputError
from dpdist.core.strings import part_strings
from dpdist.data.base import Partition, Partitioning, Source
from dpdist.data.columns import Names
from dpdist.data.zarr import COMPLETE, open_array, open_node, read_stored, told_of_damage

#: Attribute of a corpus with the version of its layout; readers refuse newer ones.
FORMAT, LAYOUT = "dpdist_corpus", 1
#: Names of the arrays of strings.
TEXT, OFFSETS = "text", "offsets"
_RESTORE = "Write the corpus again from its source, for example with: dpdist corpus FILE --overwrite --out PATH"


def partition_name(index: int) -> str:
    """Path of a partition in the group."""
    return f"partitions/{index:06d}"


@dataclass(frozen=True, eq=False)
class CorpusPartition(Partition):
    """A range of documents of a corpus, which is opened by its path or URL when it is loaded."""

    path: str
    words: int

    def read(self) -> tuple[sparse.csr_array, None]:
        """The counts (n, W) int32 as CSR with sorted, unique indices; no weights. Raises :class:`CorruptDataError` if a
        chunk is damaged or missing, and :class:`OSError` if the store cannot be read at present."""
        place = f"{self.path}/{partition_name(self.index)}"
        indptr, indices, data = (_read(f"{place}/{name}", self.label) for name in ("indptr", "indices", "data"))
        whole = len(indptr) == self.rows + 1 and indptr[-1] == len(indices) == len(data)
        if not whole or indices.min(initial=0) < 0 or indices.max(initial=0) >= self.words:
            raise CorruptDataError(f"{self.label} is damaged: its arrays do not fit together. {_RESTORE}")
        return sparse.csr_array((data, indices, indptr), shape=(self.rows, self.words)), None

    @property
    def label(self) -> str:
        return f"partition {self.index} (documents {self.start} to {self.stop}) of {self.path}"


class CorpusSource(Source):
    """The documents of a corpus; partitions load as SciPy CSR, including documents without words.

    Parameters
    ----------
    path : absolute path or URL, which workers open
    label : name in messages
    bounds : first document of each partition, and the number of documents
    words : W, size of the vocabulary
    digest : hash of all counts, computed when they were written

    Attributes
    ----------
    cut : Partitioning
        Boundaries of the partitions, fixed when the corpus was written.
    """

    sparse = True

    def __init__(self, path: str, label: str, bounds: tuple[int, ...], words: int, digest: str) -> None:
        self.path, self.label, self.cut, self._digest = path, label, Partitioning(bounds), digest
        self.shape, self.weights = (bounds[-1], words), None

    @classmethod
    def open(cls, path: str) -> CorpusSource:
        """Open the corpus at a path or URL. Raises :class:`InputError` if there is none, or its layout is newer, and
        :class:`CorruptDataError` if it is damaged."""
        group = _corpus_group(path)
        if group is None:
            raise InputError(
                f"there is no corpus at {path}. Check the path, or create one with: dpdist corpus FILE --out {path}"
            )
        told = dict(group.attrs)
        if told[FORMAT] > LAYOUT:
            raise InputError(
                f"{path} is a corpus of layout {told[FORMAT]}; this dpdist reads only {LAYOUT}. Install a newer one."
            )
        if told.get(COMPLETE) is not True:
            raise CorruptDataError(f"{path} is incomplete: writing it was interrupted. {_RESTORE}")
        where = path.rstrip("/") if "://" in path else str(Path(path).absolute())
        bounds = tuple(_read(f"{where}/bounds", str(path)).tolist())
        return cls(where, str(path), bounds, int(told["words"]), str(told["sha256"]))

    @property
    def partitions(self) -> list[Partition]:
        return [CorpusPartition(i, a, b, self.path, self.shape[1]) for i, a, b in self.cut.ranges()]

    @cached_property
    def vocabulary(self) -> list[str] | None:
        """The word of each column; None if it has no vocabulary."""
        return self._strings("vocabulary")

    @cached_property
    def names(self) -> Names | None:  # type: ignore[override]
        """The words as names of the columns."""
        return None if self.vocabulary is None else tuple(self.vocabulary)

    def identity(self) -> dict[str, object]:
        return {
            "shape": list(self.shape),
            "dtype": "int32",
            "kind": "corpus",
            "cut": self.cut.digest(),
            "written": self._digest,
        }

    @property
    def _group(self) -> zarr.Group:
        with told_of_damage(self.label, _RESTORE):
            group = _corpus_group(self.path)
            if group is None:
                raise FileNotFoundError(f"the corpus at {self.path} was removed, or this machine cannot see it.")
            return group

    def _strings(self, name: str) -> list[str] | None:
        if name not in self._group:
            return None
        label = f"{name} of {self.label}"
        text, offsets = (_read(f"{self.path}/{name}/{part}", label) for part in (TEXT, OFFSETS))
        return part_strings(text, offsets)


def holds_corpus(path: str) -> bool:
    """Whether there is a corpus at a path or URL."""
    return _corpus_group(path) is not None


def _corpus_group(path: str) -> zarr.Group | None:
    """The group of a corpus, or None."""
    try:
        node = open_node(path)
    except DpdistError:
        raise
    except (FileNotFoundError, KeyError, ValueError):
        return None
    return node if isinstance(node, zarr.Group) and FORMAT in node.attrs else None


def _read(path: str, label: str) -> np.ndarray:
    """The contents of an array, verified to be complete."""
    with told_of_damage(label, _RESTORE):
        return read_stored(open_array(path), f"{path.rpartition('/')[2]} of {label}", _RESTORE)
