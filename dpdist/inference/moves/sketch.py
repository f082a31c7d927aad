"""The components as searches on samples propose them, before they are measured on all rows.

What a search finds in one group may let the next search find something in a neighbouring group. So groups are searched
in waves, each on the results of the earlier waves; at the end, changes that depend on each other are proposed as one
division.
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
    """Components that a search puts in place of a group.

    Parameters
    ----------
    stats : (M, F), scaled to the whole data
    samples : rows and their weights, of each component
    """

    stats: np.ndarray
    samples: Sequence[tuple[Rows, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Sketch:
    """The components if all changes found so far were accepted.

    Parameters
    ----------
    end : of the lap, with the changed components; new ones have unused ids
    replaced : for each component, the components of the lap end that its change replaces; itself if unchanged
    there : (K,) bool, components that exist at the lap end
    free : (K,) bool, components that may be searched
    """

    end: LapEnd
    replaced: tuple[frozenset[int], ...]
    there: np.ndarray
    free: np.ndarray

    @classmethod
    def of(cls, end: LapEnd, free: np.ndarray) -> Sketch:
        """The components as they are at the lap end."""
        places = np.arange(len(end.ids))
        every = np.ones(len(places), dtype=bool)
        return cls(replace(end, origins=places), tuple(frozenset([k]) for k in places.tolist()), every, free)

    def places(self, group: Sequence[int]) -> tuple[int, ...]:
        """Positions at the lap end of the components of a group; empty if one of them is new."""
        return tuple(sorted(union_of([self.replaced[k] for k in group]))) if self.there[list(group)].all() else ()

    def after(self, groups: Sequence[tuple[int, ...]], found: Sequence[Found]) -> Sketch:
        """The sketch with the disjoint `groups` replaced."""
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
        """The same sketch, in which only components of the lap end may be searched."""
        return replace(self, free=self.free & self.there)

    def divisions(self) -> dict[tuple[int, ...], np.ndarray]:
        """The changes since the lap end: components it had -> statistics (M, F) of their replacements."""
        changed = {self.replaced[k]: None for k in np.flatnonzero(~self.there).tolist()}
        return {
            tuple(sorted(group)): self.end.summary.stats[[k for k, own in enumerate(self.replaced) if own == group]]
            for group in changed
        }


def union_of(groups: Iterable[frozenset[int]]) -> frozenset[int]:
    """Union of the sets."""
    return frozenset().union(*groups)


def joined(groups: Sequence[frozenset[int]], union: frozenset[int]) -> tuple[frozenset[int], ...]:
    """The groups, with each one that overlaps `union` replaced by it."""
    return tuple(group if group.isdisjoint(union) else union for group in groups)
