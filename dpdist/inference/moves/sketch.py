"""Components as searches on samples would have them, before any of it was measured on all rows.

What a search finds in one group may be what lets the next find something beside it. So groups are searched in waves,
each on what the waves before have found, and only in the end is all that changed together proposed as one division.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dpdist.inference.moves.base import LapEnd
from dpdist.inference.moves.pairs import losses_after
from dpdist.models.families.base import Rows
from dpdist.models.sufficient_statistics import Summary


class Found(NamedTuple):
    """Components that a search puts in the place of a group.

    Parameters
    ----------
    stats : (M, F), of the whole data
    samples : of each, rows and their weights
    """

    stats: np.ndarray
    samples: Sequence[tuple[Rows, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Sketch:
    """How things would stand.

    Parameters
    ----------
    end : of the lap, with components as they would be; new ones have ids that no other component has
    replaced : for each component, those of the lap's end that its change replaces; itself where nothing changed
    there : (K,) bool, components of the lap's end
    free : (K,) bool, components that may be searched
    """

    end: LapEnd
    replaced: tuple[frozenset[int], ...]
    there: np.ndarray
    free: np.ndarray

    @classmethod
    def of(cls, end: LapEnd, free: np.ndarray) -> Sketch:
        """As things stand."""
        places = np.arange(len(end.ids))
        every = np.ones(len(places), dtype=bool)
        return cls(replace(end, origins=places), tuple(frozenset([k]) for k in places.tolist()), every, free)

    def places(self, group: Sequence[int]) -> tuple[int, ...]:
        """Where the components of a group stand at the lap's end; nothing if one of them is new."""
        return tuple(sorted(union_of([self.replaced[k] for k in group]))) if self.there[list(group)].all() else ()

    def after(self, groups: Sequence[tuple[int, ...]], found: Sequence[Found]) -> Sketch:
        """With disjoint `groups` replaced."""
        gone = {k for group in groups for k in group}
        kept = [k for k in range(len(self.end.ids)) if k not in gone]
        stats = np.concatenate([self.end.summary.stats[kept], *(each.stats for each in found)])
        samples = [self.end.samples.get(k) for k in kept] + [part for each in found for part in each.samples]
        fresh = int(self.end.ids.max()) + 1 + np.arange(sum(len(each.stats) for each in found))
        together = self.replaced
        for group in groups:
            together = joined(together, union_of([together[k] for k in group]))
        new = [together[group[0]] for group, each in zip(groups, found, strict=True) for _ in each.stats]
        replaced = [*(together[k] for k in kept), *new]
        components = len(replaced)
        end = replace(
            self.end,
            ids=np.concatenate([self.end.ids[kept], fresh]),
            summary=Summary(stats, np.zeros(components)),
            origins=np.arange(components),
            samples={k: part for k, part in enumerate(samples) if part is not None and len(part[1])},
            losses=losses_after(self.end.model, self.end.pair_losses, kept, stats, self.end.backend),
        )
        there = np.append(self.there[kept], np.zeros(len(fresh), dtype=bool))
        free = np.append(self.free[kept], np.ones(len(fresh), dtype=bool))
        return Sketch(end, tuple(replaced), there, free & end.sampled)

    def standing(self) -> Sketch:
        """The same, in which only components may be searched that are there already."""
        return replace(self, free=self.free & self.there)

    def divisions(self) -> dict[tuple[int, ...], np.ndarray]:
        """What changed since the lap's end: components of it, and statistics (M, F) of those in their place."""
        changed = {self.replaced[k]: None for k in np.flatnonzero(~self.there).tolist()}
        return {
            tuple(sorted(group)): self.end.summary.stats[[k for k, own in enumerate(self.replaced) if own == group]]
            for group in changed
        }


def union_of(groups: Iterable[frozenset[int]]) -> frozenset[int]:
    """All that is in any of them."""
    return frozenset().union(*groups)


def joined(groups: Sequence[frozenset[int]], union: frozenset[int]) -> tuple[frozenset[int], ...]:
    """The same, but for those that have something in common with a union, in the place of which it stands."""
    return tuple(group if group.isdisjoint(union) else union for group in groups)
