"""Rows that were read before, verified partition by partition when they are first read again."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from dpdist.data.base import Expected, Partition, Source


class CheckedSource(Source):
    """Data that were read before, and are verified when they are read again.

    Parameters
    ----------
    source : the current data, cut as before
    digests : of all partitions at that time, or of some of them, by index
    since : what the data may have changed since, in messages
    """

    def __init__(self, source: Source, digests: Sequence[str] | Mapping[int, str], since: str) -> None:
        self.shape, self.label, self.sparse, self.weights = source.shape, source.label, source.sparse, source.weights
        self.names = source.names
        known, session = digests if isinstance(digests, Mapping) else dict(enumerate(digests)), uuid.uuid4().hex
        self.digests = None if isinstance(digests, Mapping) else tuple(digests)
        self._source, self._expected = source, {i: Expected(each, session, since) for i, each in known.items()}

    @cached_property
    def partitions(self) -> list[Partition]:
        return [replace(each, expected=self._expected.get(each.index)) for each in self._source.partitions]

    def identity(self) -> dict[str, object]:
        return self._source.identity()

    def prepare_for_laps(self) -> None:
        self._source.prepare_for_laps()
