"""Groups of components whose search found nothing; they are not searched again until a member changes."""

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
    """Groups, one per row of both arrays (R, G), padded with -1 and 0."""

    ids: Annotated[np.ndarray, Stored(("searched", "searched_member"), "ids of a group in which nothing was found")] = (
        field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    )
    sizes: Annotated[
        np.ndarray, Stored(("searched", "searched_member"), "counts of its components when it was searched")
    ] = field(default_factory=lambda: np.zeros((0, 0)))

    @cached_property
    def members(self) -> dict[frozenset[int], dict[int, float]]:
        """The set of members of every group -> their counts."""
        found = {}
        for ids, sizes in zip(self.ids.tolist(), self.sizes.tolist(), strict=True):
            group = {i: size for i, size in zip(ids, sizes, strict=True) if i >= 0}
            found[frozenset(group)] = group
        return found

    @cached_property
    def covered(self) -> dict[int, set[int]]:
        """Number of members -> components that are in a group of that size."""
        found = dict[int, set[int]]()
        for group in self.members:
            found.setdefault(len(group), set()).update(group)
        return found

    def holds(self, ids: Iterable[int]) -> bool:
        """Whether exactly this group of component ids was searched; a subset of a searched group does not count."""
        return frozenset(ids) in self.members

    def without(self, larger: Sequence[set[int]]) -> SearchedGroups:
        """Searched groups without those contained in one of the sets of ids `larger`."""
        kept = [group for group in self.members.values() if not any(group.keys() <= each for each in larger)]
        return _stored(kept) if len(kept) < len(self.members) else self

    def after(self, end: LapEnd, groups: Iterable[tuple[int, ...]]) -> SearchedGroups:
        """Searched groups whose members no move touched and whose counts hardly changed, and the new `groups`.

        Parameters
        ----------
        end : of the lap
        groups : positions of untouched components, of each group searched without success
        """
        counts = end.summary.counts
        sizes = {int(i): float(n) for i, n, origin in zip(end.ids, counts, end.origins, strict=True) if origin >= 0}
        kept = [group for group in self.members.values() if all(_like(sizes.get(i), n) for i, n in group.items())]
        fresh = [{int(end.ids[k]): float(counts[k]) for k in group} for group in groups]
        return _stored({frozenset(group): group for group in (*kept, *fresh)}.values())


def _like(size: float | None, before: float) -> bool:
    """Whether the component exists and its count has hardly changed."""
    return size is not None and abs(size - before) <= CHANGED * before


def _stored(groups: Iterable[dict[int, float]]) -> SearchedGroups:
    listed = list(groups)
    shape = len(listed), max(map(len, listed), default=0)
    ids, sizes = np.full(shape, -1, dtype=np.int64), np.zeros(shape)
    for row, group in enumerate(listed):
        ids[row, : len(group)], sizes[row, : len(group)] = list(group), list(group.values())
    return SearchedGroups(ids, sizes)
