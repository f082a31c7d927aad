"""The interface of sources, which cut their rows into fixed partitions that workers load one at a time."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpdist.core.digests import digest_of_rows
from dpdist.core.errors import CheckpointError, InputError
from dpdist.core.phases import Phase, phase
from dpdist.data.columns import Names
from dpdist.data.soundness import require_block, require_shape, require_weights
from dpdist.models.families.base import Rows

#: Least number of partitions of a large source, if its chunks allow, so that each batch has several.
TARGET_PARTITIONS = 80
#: Bounds of the rows of a partition: fewer rows cost more overhead than work, more rows need much memory.
FEWEST_ROWS, MOST_ROWS = 256, 262_144
#: Largest bytes of a partition, as stored.
PARTITION_BYTES = 64 * 2**20
#: Bytes that a task may read for its work when it reads a whole chunk for a part of it; larger chunks get larger parts.
READ_BYTES = 2**22
#: Number of partitions that a quick check reads.
GLANCED = 3
#: Row weights as users give them.
Weights: TypeAlias = npt.ArrayLike | None
#: Keys of a fingerprint: digests of the partitions, and the bound of the rows of a partition, if there is one.
DIGESTS, PARTITION_ROWS = "partitions", "partition_rows"


#: Partitions that this process has verified: session and index.
_CHECKED: set[tuple[str, int]] = set()


class Expected(NamedTuple):
    """The expected contents of a partition that was read before.

    Parameters
    ----------
    digest : of the original rows
    session : identifies the use of the data since then, because they may change between two
    since : when the digest was taken, in messages
    """

    digest: str
    session: str
    since: str


@dataclass(frozen=True, eq=False)
class Partition(ABC):
    """A fixed range of rows; picklable, and small unless the rows are in memory."""

    index: int
    start: int
    stop: int
    expected: Expected | None = field(default=None, kw_only=True)

    @abstractmethod
    def read(self) -> tuple[Rows, np.ndarray | None]:
        """The rows (n, D) as stored, and their weights (n,) if they have any."""

    def load(self) -> tuple[Rows, np.ndarray | None]:
        """The result of :meth:`read`, verified against the expected digest, once per session in each process.

        Raises
        ------
        InputError
            If it is not a block of the right number of rows of real numbers, with non-negative weights if any.
        CheckpointError
            If it is not what is expected.
        """
        with phase(Phase.LOAD):
            rows, weights = require_block(self.read(), self.rows, self.label, self.start)
            # Sums follow the order in memory, which is made unique, so that the same rows give the same bits.
            rows = np.ascontiguousarray(rows) if isinstance(rows, np.ndarray) else rows
        expected = self.expected
        if expected is not None and (expected.session, self.index) not in _CHECKED:
            if digest_of_rows(rows, weights) != expected.digest:
                raise CheckpointError(
                    f"the data changed since {expected.since}: {self.label} has other rows or weights than before. "
                    "Restore the data, or start a new run."
                )
            _CHECKED.add((expected.session, self.index))
        return rows, weights

    def loaded(self) -> Partition:
        """The same partition with its rows in memory, for repeated loading."""
        return Loaded(self.index, self.start, self.stop, *self.load(), self.label, expected=self.expected)

    def digest(self) -> str:
        """Digest of the rows and their weights, which are read again and verified if a digest is expected."""
        rows, weights = self.load()
        return digest_of_rows(rows, weights) if self.expected is None else self.expected.digest

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    @property
    def label(self) -> str:
        """Name of the partition in messages."""
        return f"partition {self.index} (rows {self.start} to {self.stop})"


@dataclass(frozen=True, eq=False)
class Loaded(Partition):
    """A partition whose rows were already read, with the same label."""

    held: Rows
    weights: np.ndarray | None
    name: str

    def read(self) -> tuple[Rows, np.ndarray | None]:
        return self.held, self.weights

    @property
    def label(self) -> str:
        return self.name


class Source(ABC):
    """Rows in a fixed order, cut into fixed partitions."""

    #: (rows, columns)
    shape: tuple[int, int]
    #: Name in messages.
    label: str
    #: Whether partitions load as SciPy CSR.
    sparse: bool = False
    #: (rows,) row weights, or None
    weights: np.ndarray | None
    #: Names of the columns, if they have any.
    names: Names | None = None
    #: Digest of each partition's rows and weights, from the first pass over them; None before.
    digests: tuple[str, ...] | None = None

    @property
    @abstractmethod
    def partitions(self) -> list[Partition]:
        """The partitions, in row order."""

    @abstractmethod
    def identity(self) -> dict[str, object]:
        """Shape, dtype and chunking, as plain values."""

    def fingerprint(self) -> dict[str, object]:
        """Identity of the data: :meth:`identity` and the digest of each partition, which is read if no pass was made
        yet."""
        digests = self.digests or [partition.digest() for partition in self.partitions]
        return {**self.identity(), DIGESTS: list(digests)}

    def in_partitions_of(self, rows: int | None) -> Source:
        """The same rows in partitions of at most about `rows` rows, as far as chunks allow; unchanged for None, or if
        the partitions are fixed."""
        return self

    def prepare_for_laps(self) -> None:  # noqa: B027 (most sources are read again at no other cost)
        """Called before repeated passes over the rows; a source that is slow to read repeatedly warns."""

    def glance(self) -> str:
        """The digests of a few evenly spread partitions, which are read now."""
        partitions = self.partitions
        return " ".join(partitions[place].digest() for place in spread_over(len(partitions), GLANCED))


def cut_as_before(source: Source, fingerprint: Mapping[str, object]) -> Source:
    """The same rows in partitions of the size stored in a fingerprint."""
    rows = fingerprint.get(PARTITION_ROWS)
    return source.in_partitions_of(rows if isinstance(rows, int) else None)


def partitions_of(fingerprint: Mapping[str, object]) -> int:
    """The number of partitions in a fingerprint; 0 if unknown."""
    digests = fingerprint.get(DIGESTS)
    return len(digests) if isinstance(digests, list) else 0


def weight_of(source: Source, part: Partition) -> float:
    """Sum of the row weights of a partition; without weights, its number of rows."""
    return part.rows if source.weights is None else float(source.weights[part.start : part.stop].sum())


def total_weight(source: Source) -> float:
    """Sum of all row weights; without weights, the number of rows."""
    return float(source.shape[0] if source.weights is None else source.weights.sum())


def rows_with_weight(source: Source, part: Partition | None = None) -> int:
    """Number of rows with positive weight, of a partition or of all."""
    start, stop = (0, source.shape[0]) if part is None else (part.start, part.stop)
    return stop - start if source.weights is None else int(np.count_nonzero(source.weights[start:stop]))


def spread_over(count: int, most: int) -> list[int]:
    """At most `most` evenly spread positions from 0 to ``count - 1``, including both ends."""
    return sorted({int(place) for place in np.linspace(0, count - 1, min(count, most)).round()})


@dataclass(frozen=True)
class Partitioning:
    """Boundaries of partitions: rows ``bounds[i]`` to ``bounds[i + 1]``."""

    bounds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def ranges(self) -> list[tuple[int, int, int]]:
        """(index, start, stop) of each partition."""
        return [(i, a, b) for i, (a, b) in enumerate(zip(self.bounds[:-1], self.bounds[1:], strict=True))]

    def digest(self) -> str:
        """A short hash of the boundaries."""
        return hashlib.sha256(np.array(self.bounds, dtype=np.int64).tobytes()).hexdigest()[:16]


def cut_rows(rows: int, row_bytes: int, chunk: int | None = None, work_rows: int | None = None) -> Partitioning:
    """Cut `rows` into partitions, by a rule that depends on the data and the model, but never on the workers.

    Parameters
    ----------
    rows : total number
    row_bytes : size of one row as stored
    chunk : rows of a storage chunk; partitions are whole chunks, or equal parts of a chunk that is too large
    work_rows : rows that are suitable work for a task, for the model in question; None if unknown
    """
    most = min(MOST_ROWS, max(1, PARTITION_BYTES // max(row_bytes, 1)))
    if work_rows is not None:
        read = 0 if chunk is None else min(chunk, rows) * row_bytes
        most = min(most, max(FEWEST_ROWS, work_rows * max(1, -(-read // READ_BYTES))))
    wanted = max(1, min(max(-(-rows // TARGET_PARTITIONS), FEWEST_ROWS), most))
    if chunk is None or chunk >= rows:
        return Partitioning((*_even(0, rows, wanted), rows))
    if chunk <= wanted:
        step = chunk * max(1, wanted // chunk)
        return Partitioning((*range(0, rows, step), rows))
    bounds: list[int] = []
    for start in range(0, rows, chunk):
        bounds += _even(start, min(start + chunk, rows), wanted)
    return Partitioning((*bounds, rows))


def _even(start: int, stop: int, wanted: int) -> list[int]:
    """Starts of nearly equal parts of at most `wanted` rows."""
    parts = -(-(stop - start) // wanted)
    return [start + (stop - start) * p // parts for p in range(parts)]


class TableSource(Source):
    """Rows of a two-dimensional table of real numbers, with partitions given by `cut`.

    Parameters
    ----------
    shape, dtype : of the table
    label : name in messages
    weights : (N,) row weights, optional
    names : of the columns, if they have any

    Raises
    ------
    InputError
        If the table is not two-dimensional and real, or the weights are invalid.
    """

    cut: Partitioning
    #: The bound of the rows of a partition, if one was given.
    most_rows: int | None = None

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype, label: str, weights: Weights, names: Names | None
    ) -> None:
        self.label, self.names, self.dtype = label, names, dtype
        require_shape(shape, label)
        if dtype.kind not in "biuf":
            kind = "Complex data not supported" if dtype.kind == "c" else f"got dtype {dtype}"
            raise InputError(f"{label} should contain real numbers; {kind}. Convert them to float first.")
        self.shape = (int(shape[0]), int(shape[1]))
        self.weights = require_weights(weights, self.shape[0])

    @cached_property
    def partitions(self) -> list[Partition]:
        weights = self.weights
        return [self.partition(i, a, b, None if weights is None else weights[a:b]) for i, a, b in self.cut.ranges()]

    @abstractmethod
    def partition(self, index: int, start: int, stop: int, weights: np.ndarray | None) -> Partition:
        """Rows `start` to `stop` with their weights."""

    def in_partitions_of(self, rows: int | None) -> Source:
        if rows is None or self.sparse or (cut := self.cut_for(rows)) is None:
            return self
        again = copy.copy(self)
        again.__dict__.pop("partitions", None)
        again.cut, again.most_rows, again.digests = cut, rows, None
        return again

    def cut_for(self, work_rows: int | None) -> Partitioning | None:
        """The partitions of at most about `work_rows` rows; None if the partitions are fixed."""
        return None

    def identity(self) -> dict[str, object]:
        kind = "csr" if self.sparse else "dense"
        told: dict[str, object] = {
            "shape": list(self.shape),
            "dtype": str(self.dtype),
            "kind": kind,
            "cut": self.cut.digest(),
        }
        return told if self.most_rows is None else {**told, PARTITION_ROWS: self.most_rows}
