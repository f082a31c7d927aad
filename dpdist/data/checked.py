"""Rows that are found to be those a run began with, partition by partition, when they are first read again."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from dpdist.data.base import Expected, Partition, Source


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
        self.digests, session = tuple(digests), uuid.uuid4().hex
        self._source, self._expected = source, [Expected(each, session, run) for each in digests]

    @cached_property
    def partitions(self) -> list[Partition]:
        pairs = zip(self._source.partitions, self._expected, strict=True)
        return [replace(partition, expected=expected) for partition, expected in pairs]

    def identity(self) -> dict[str, object]:
        return self._source.identity()

    def prepare_for_laps(self) -> None:
        self._source.prepare_for_laps()
