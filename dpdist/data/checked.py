"""Rows that are found to be those a run began with, partition by partition, when they are first read again."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.core.digests import digest_of_rows
from dpdist.core.errors import CheckpointError
from dpdist.data.base import Partition, Source
from dpdist.execution.base import Remote
from dpdist.models.families.base import Rows

#: Partitions that this process has checked: session and index.
_CHECKED: set[tuple[str, int]] = set()


@dataclass(frozen=True, eq=False)
class CheckedPartition(Partition):
    """A partition that is compared with what it was, once a session in each process that reads it.

    Parameters
    ----------
    index, start, stop : of the partition
    inner : the partition as its source gives it
    expected : digest of what it was
    session : tells one resumption from another, for the data may change between two
    run : how messages name the run
    """

    inner: Partition
    expected: str
    session: str
    run: str

    def load(self) -> tuple[Rows, np.ndarray | None]:
        """The rows and their weights.

        Raises
        ------
        CheckpointError
            If they are not those that the run began with.
        """
        rows, weights = self.inner.load()
        seen = (self.session, self.index)
        if seen not in _CHECKED:
            if digest_of_rows(rows, weights) != self.expected:
                raise CheckpointError(
                    f"the data changed since the checkpoint in {self.run}: {self.label} does not hold the rows and "
                    "weights that the run began with; restore them, or start a new run."
                )
            _CHECKED.add(seen)
        return rows, weights

    def digest(self) -> str:
        """See :meth:`Partition.digest`; taken when they are checked."""
        self.load()
        return self.expected

    @property
    def label(self) -> str:
        return self.inner.label


class RemoteCheckedPartition(CheckedPartition, Remote):
    """A checked partition whose rows a cluster holds."""

    @property
    def future(self) -> object:  # type: ignore[override]
        """Of the rows."""
        return self.inner.future  # type: ignore[attr-defined]

    @property
    def completion(self) -> Callable[[Rows], Partition]:
        complete = self.inner.completion  # type: ignore[attr-defined]
        return functools.partial(_completed, complete, self.expected, self.session, self.run)


class CheckedSource(Source):
    """The data of a run that is resumed.

    Parameters
    ----------
    source : as it is now, cut as it was
    digests : of each partition when the run began
    run : how messages name the run
    """

    def __init__(self, source: Source, digests: Sequence[str], run: str) -> None:
        self.shape, self.label, self.sparse, self.weights = source.shape, source.label, source.sparse, source.weights
        self.names = source.names
        self._expected = self.digests = tuple(digests)
        self._source, self._run, self._session = source, run, uuid.uuid4().hex

    @property
    def partitions(self) -> list[Partition]:
        return [
            _checked(each, digest, self._session, self._run)
            for each, digest in zip(self._source.partitions, self._expected, strict=True)
        ]

    def identity(self) -> dict[str, object]:
        return self._source.identity()

    def prepare_for_laps(self) -> None:
        self._source.prepare_for_laps()


def _checked(inner: Partition, expected: str, session: str, run: str) -> CheckedPartition:
    kind = RemoteCheckedPartition if isinstance(inner, Remote) else CheckedPartition
    return kind(inner.index, inner.start, inner.stop, inner, expected, session, run)


def _completed(complete: Callable[[Rows], Partition], expected: str, session: str, run: str, bulk: Rows) -> Partition:
    """A checked partition made where the rows of it are."""
    return _checked(complete(bulk), expected, session, run)
