"""Groups of components that were searched in vain: as long as they are as they were, nothing else is found in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """Groups, one in each row of both arrays; where a group has fewer members there is -1 and 0.

    Parameters
    ----------
    ids : (R, G) int64, of their members
    sizes : (R, G) float64, what these held when the group was searched
    """

    ids: Annotated[np.ndarray, Stored(("searched", "searched_member"), "components of a group searched in vain")] = (
        field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    )
    sizes: Annotated[np.ndarray, Stored(("searched", "searched_member"), "their expected counts at that time")] = field(
        default_factory=lambda: np.zeros((0, 0))
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

    def holds(self, ids: Iterable[int]) -> bool:
        """Whether the group of these components is among them; what is within one of them may still be searched."""
        return frozenset(ids) in self.members

    def without(self, larger: Sequence[set[int]]) -> SearchedGroups:
        """Those but for the groups within one of some `larger` ones, which are sets of ids."""
        kept = [group for group in self.members.values() if not any(group.keys() <= each for each in larger)]
        return _stored(kept) if len(kept) < len(self.members) else self

    def after(self, end: LapEnd, groups: Iterable[tuple[int, ...]]) -> SearchedGroups:
        """Those of which no move touched a member and no member's count changed much, and further `groups`.

        Parameters
        ----------
        end : of the lap
        groups : of positions, untouched, that were searched in vain
        """
        counts = end.summary.counts
        sizes = {int(i): float(n) for i, n, origin in zip(end.ids, counts, end.origins, strict=True) if origin >= 0}
        kept = [group for group in self.members.values() if all(_like(sizes.get(i), n) for i, n in group.items())]
        fresh = [{int(end.ids[k]): float(counts[k]) for k in group} for group in groups]
        return _stored({frozenset(group): group for group in (*kept, *fresh)}.values())


def _like(size: float | None, before: float) -> bool:
    """Whether a component is there, of about its size before."""
    return size is not None and abs(size - before) <= CHANGED * before


def _stored(groups: Iterable[dict[int, float]]) -> SearchedGroups:
    listed = list(groups)
    shape = len(listed), max(map(len, listed), default=0)
    ids, sizes = np.full(shape, -1, dtype=np.int64), np.zeros(shape)
    for row, group in enumerate(listed):
        ids[row, : len(group)], sizes[row, : len(group)] = list(group), list(group.values())
    return SearchedGroups(ids, sizes)
