"""Groups of components that were searched in vain: as long as they are as they were, nothing else is found in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import numpy as np

from dpdist.core.stored import Stored
from dpdist.inference.moves.cooldown import CHANGED

if TYPE_CHECKING:
    from dpdist.inference.moves.base import LapEnd


@dataclass(frozen=True, eq=False)
class SearchedGroups:
    """Groups, one in each row of all arrays; where a group has fewer members there is -1 and 0.

    Parameters
    ----------
    ids : (R, G) int64, of their members
    sizes : (R, G) float64, what these held when the group was searched
    times : (R,) int64, how often it was
    """

    ids: Annotated[np.ndarray, Stored(("searched", "searched_member"), "components of a group searched in vain")] = (
        field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    )
    sizes: Annotated[np.ndarray, Stored(("searched", "searched_member"), "their expected counts at that time")] = field(
        default_factory=lambda: np.zeros((0, 0))
    )
    times: Annotated[np.ndarray, Stored(("searched",), "how often it was searched")] = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )

    @cached_property
    def members(self) -> dict[frozenset[int], dict[int, float]]:
        """Every group by its members, with their sizes."""
        found = {}
        for ids, sizes in zip(self.ids.tolist(), self.sizes.tolist(), strict=True):
            group = {i: size for i, size in zip(ids, sizes, strict=True) if i >= 0}
            found[frozenset(group)] = group
        return found

    @cached_property
    def covered(self) -> dict[int, set[int]]:
        """Components in groups of a number of members, by that number."""
        found = dict[int, set[int]]()
        for group in self.members:
            found.setdefault(len(group), set()).update(group)
        return found

    def times_of(self, ids: Iterable[int]) -> int:
        """How often the group of these components was searched; what is within one that was may still be."""
        return self._times.get(frozenset(ids), 0)

    @cached_property
    def _times(self) -> dict[frozenset[int], int]:
        return dict(zip(self.members, self.times.tolist(), strict=True))

    def without(self, larger: Sequence[set[int]]) -> SearchedGroups:
        """Those but for the groups within one of some `larger` ones, which are sets of ids."""
        kept = {own: self._times[own] for own in self.members if not any(own <= each for each in larger)}
        return _stored(self.members, kept) if len(kept) < len(self.members) else self

    def after(self, end: LapEnd, groups: Iterable[tuple[int, ...]]) -> SearchedGroups:
        """Those of which no move touched a member and no member's count changed much, and further `groups`.

        Parameters
        ----------
        end : of the lap
        groups : of positions, untouched, that were searched in vain
        """
        counts = end.summary.counts
        sizes = {int(i): float(n) for i, n, origin in zip(end.ids, counts, end.origins, strict=True) if origin >= 0}
        kept = [own for own, held in self.members.items() if all(_like(sizes.get(i), n) for i, n in held.items())]
        fresh = [{int(end.ids[k]): float(counts[k]) for k in group} for group in groups]
        times = {own: self._times[own] for own in kept}
        times |= {frozenset(held): times.get(frozenset(held), 0) + 1 for held in fresh}
        return _stored(self.members | {frozenset(held): held for held in fresh}, times)


def _like(size: float | None, before: float) -> bool:
    """Whether a component is there, of about its size before."""
    return size is not None and abs(size - before) <= CHANGED * before


def _stored(members: Mapping[frozenset[int], dict[int, float]], times: Mapping[frozenset[int], int]) -> SearchedGroups:
    """Of groups, each with its sizes, those of which it is known how often they were searched."""
    shape = len(times), max(map(len, times), default=0)
    ids, sizes = np.full(shape, -1, dtype=np.int64), np.zeros(shape)
    for row, own in enumerate(times):
        ids[row, : len(own)], sizes[row, : len(own)] = list(members[own]), list(members[own].values())
    return SearchedGroups(ids, sizes, np.array(list(times.values()), dtype=np.int64))
