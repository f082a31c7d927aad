"""Rows that workers draw during a lap; moves and starts use them to create components."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Annotated, Any

import numpy as np

from dpdist.core.stored import Stored
from dpdist.models.families.base import Rows, stack_rows


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows drawn for components, and the number of rows they were drawn from.

    Parameters
    ----------
    keys : (m,) random, in [0, 1)
    owners : (m,) components
    weights : (m,)
    rows : (m, D)
    most : largest number of rows kept per component, those with the smallest keys; None for all
    seen : number of rows available, each counted once regardless of its weight, for every component and every
        proposal's replacements: a batch summary with one column; None if rows have no weights, because counts are the
        same
    held : (K, K) total responsibility of each component for the rows of each owner, if candidates are computed from it
    """

    keys: Annotated[np.ndarray, Stored(("draw",), "random key of a sampled row")]
    owners: Annotated[np.ndarray, Stored(("draw",), "component for which a sampled row was drawn")]
    weights: Annotated[np.ndarray, Stored(("draw",), "weight of a sampled row")]
    rows: Annotated[Rows, Stored(("draw", "column"), "sampled rows, prepared")]
    most: int | None = None
    seen: Any = None
    held: Annotated[
        np.ndarray | None,
        Stored(("component", "holder"), "total responsibility of a component for the rows of an owner"),
    ] = None

    def __add__(self, other: Sample) -> Sample:
        return join_samples([self, other])

    def take(self, chosen: np.ndarray) -> Sample:
        """The sample with the `chosen` rows only; `seen` is unchanged."""
        return replace(
            self,
            keys=self.keys[chosen],
            owners=self.owners[chosen],
            weights=self.weights[chosen],
            rows=self.rows[chosen],
        )

    def bounded(self) -> Sample:
        """The sample with at most `most` rows per component, in unchanged order."""
        if self.most is None or not len(self.keys) or np.bincount(self.owners).max() <= self.most:
            return self
        order = np.lexsort((self.keys, self.owners))
        sorted_owners = self.owners[order]
        rank = np.arange(len(order)) - np.searchsorted(sorted_owners, sorted_owners)
        return self.take(np.sort(order[rank < self.most]))

    def of(self, component: int, limit: int) -> tuple[Rows, np.ndarray]:
        """At most `limit` rows drawn for a component, those with the smallest keys, and their weights."""
        mine = np.flatnonzero(self.owners == component)
        mine = np.sort(mine[np.argsort(self.keys[mine], kind="stable")[:limit]])
        return self.rows[mine], self.weights[mine]


def append_part(parts: tuple[Sample, ...], sample: Sample) -> tuple[Sample, ...]:
    """Parts of a sample with another part appended; the number of parts stays small.

    Parts with no more rows than the part after them are joined with it, so a row is copied only a few times, not once
    per appended part.
    """
    while parts and len(parts[-1].keys) <= len(sample.keys):
        sample, parts = parts[-1] + sample, parts[:-1]
    return *parts, sample


def join_samples(samples: Sequence[Sample]) -> Sample:
    """Concatenated samples, bounded; samples without rows cost nothing, and a single sample is not copied."""
    if len(samples) == 1:
        return samples[0].bounded()
    drawn = [sample for sample in samples if len(sample.keys)] or samples[:1]
    seen = [sample.seen for sample in samples if sample.seen is not None]
    held = [sample.held for sample in samples if sample.held is not None]
    return Sample(
        np.concatenate([sample.keys for sample in drawn]),
        np.concatenate([sample.owners for sample in drawn]),
        np.concatenate([sample.weights for sample in drawn]),
        stack_rows([sample.rows for sample in drawn]),
        samples[0].most,
        reduce(operator.add, seen) if seen else None,
        reduce(operator.add, held) if held else None,
    ).bounded()
