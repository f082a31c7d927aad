"""Rows that workers draw in a lap, from which moves and starts make components."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Annotated

import numpy as np

from dpdist.core.stored import Stored
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.models.families.base import Rows, stack_rows


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows drawn for components, and how many they were drawn from.

    Parameters
    ----------
    keys : (m,) random, in [0, 1)
    owners : (m,) components
    weights : (m,)
    rows : (m, D)
    most : rows kept of a component, those of smallest key; None for all
    seen : the rows that were there to draw, each counted once whatever its weight, of every component and of every
        proposal's replacements: a batch summary of one column; None where rows have no weights, so that counts say it
    held : (K, K) how much of the rows of each owner the components hold, where candidates are to be told by it
    """

    keys: Annotated[np.ndarray, Stored(("draw",), "random key of a sampled row")]
    owners: Annotated[np.ndarray, Stored(("draw",), "component a sampled row was drawn for")]
    weights: Annotated[np.ndarray, Stored(("draw",), "row weight of a sampled row")]
    rows: Annotated[Rows, Stored(("draw", "column"), "sampled rows, prepared")]
    most: int | None = None
    seen: BatchSummary | None = None
    held: Annotated[
        np.ndarray | None, Stored(("component", "holder"), "what components hold of the rows of an owner")
    ] = None

    def __add__(self, other: Sample) -> Sample:
        return join_samples([self, other])

    def take(self, chosen: np.ndarray) -> Sample:
        """Some of the rows, as many seen."""
        return replace(
            self,
            keys=self.keys[chosen],
            owners=self.owners[chosen],
            weights=self.weights[chosen],
            rows=self.rows[chosen],
        )

    def bounded(self) -> Sample:
        """The sample without the rows of a component beyond `most`, the order kept."""
        if self.most is None or not len(self.keys) or np.bincount(self.owners).max() <= self.most:
            return self
        order = np.lexsort((self.keys, self.owners))
        sorted_owners = self.owners[order]
        rank = np.arange(len(order)) - np.searchsorted(sorted_owners, sorted_owners)
        return self.take(np.sort(order[rank < self.most]))

    def of(self, component: int, limit: int) -> tuple[Rows, np.ndarray]:
        """The at most `limit` rows of smallest key drawn for a component, with their weights."""
        mine = np.flatnonzero(self.owners == component)
        mine = np.sort(mine[np.argsort(self.keys[mine], kind="stable")[:limit]])
        return self.rows[mine], self.weights[mine]


def append_part(parts: tuple[Sample, ...], sample: Sample) -> tuple[Sample, ...]:
    """Parts of a sample with another part after them, few whatever their number was.

    Parts that hold no more rows than what comes after them are joined with it, so that a row is copied some times and
    not with every part that comes.
    """
    while parts and len(parts[-1].keys) <= len(sample.keys):
        sample, parts = parts[-1] + sample, parts[:-1]
    return *parts, sample


def join_samples(samples: Sequence[Sample]) -> Sample:
    """Samples one after the other, within their bound; those without rows cost nothing, and one alone is not copied."""
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
