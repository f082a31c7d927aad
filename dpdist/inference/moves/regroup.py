"""Regroup: neighbouring components are replaced by a better arrangement of their rows.

Splits and merges change one thing at a time, and each of these may lose where several together would gain. So the rows
of a few neighbours are arranged anew, on a sample, by merges and splits together, or from many seeds: see
:mod:`dpdist.inference.moves.arrange`. In the following laps what the group holds of every row is divided among the
components found, as a split's rows are.

Groups are searched in waves of disjoint ones, and a wave that finds something is followed by another on what was found
(:mod:`dpdist.inference.moves.sketch`). A group that was searched is not searched again before its members
change. Where laps without moves have come to gain less than a regroup has to, all groups are searched that are left,
and wide ones with them, one for each component, in which a component of what lies outermost in all may be missing.
Where rows are few, so that searches cost little and much hangs on each draw, a vain one is made again.
Searches at the end of a lap stop once they cost a few times as much as the lap's own matrix products: with a smaller
limit a run reaches the same bound in the same time, but in more laps. While most components were split or refused a
split in the last few laps, and will be tried again, they stop much sooner, for what is searched then is about to
change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

import numpy as np

from dpdist.core.checks import COUNT, check_fields, whole
from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.inference.moves.arrange import ROUND_GAIN, rearranged, surrounded
from dpdist.inference.moves.base import LapEnd, Proposals
from dpdist.inference.moves.division import Dividing, Divisions
from dpdist.inference.moves.sampled_rows import SampledRows
from dpdist.inference.moves.sampling import in_equal_shares, rows_each
from dpdist.inference.moves.searched import SearchedGroups
from dpdist.inference.moves.sketch import Found, Sketch, joined, union_of
from dpdist.inference.moves.split import Split
from dpdist.models.families.base import Rows
from dpdist.models.mixture import Model

#: Components of the lap's end that may be replaced together: the more there are, the more is lost if it does not gain.
MOST_TOGETHER = 8
#: What searches of a lap's end may cost in units of the lap's own products, while splits are at work on most components
#: and once they are not; and in multiplications where these are few.
LAPS_MEANWHILE, MOST_LAPS, MOST_PRODUCTS = 1, 12, 9e9
#: How many rows all vain searches of a group may look at, each component counted as so many rows and its posterior as
#: so much of one for every column of statistics.
ROWS_SEARCHED, COMPONENT, POSTERIOR = 4500.0, 50.0, 0.125
#: Rows of a group for each time that it is searched: of fewer the seedings of one search leave little out.
ROWS_A_SEARCH = 30.0
#: Products of a group's rows with a component's columns for each of its members in a search, about.
PRODUCTS = 300


class GroupRows(NamedTuple):
    """Rows of several components that weigh the same `share` of what each of these holds, with their weights."""

    rows: Rows
    weights: np.ndarray
    share: float


@dataclass(frozen=True)
class Regroup(Dividing):
    """Arrange the rows of neighbouring components anew, where splits found nothing more.

    Parameters
    ----------
    smallest, largest : components of a group; those of every size between are a component and its nearest, and where
        there is one alone it is a group
    widest : components of a group to which a component of the outer rows of all may be added; nothing else is tried
    rows : sampled rows of a group that are looked at
    seedings : of a split, as of :class:`Split`
    searches : times that a group is searched in vain at most, where rows are few; many are searched once
    refine : laps that the components found may take until they pay
    """

    smallest: int = 2
    largest: int = 5
    widest: int = MOST_TOGETHER
    rows: int = 4000
    seedings: int = 16
    searches: int = 6
    refine: int = 3

    def __post_init__(self) -> None:
        counted = "rows", "seedings", "searches", "refine"
        check_fields(self, " of Regroup", smallest=whole(2), **dict.fromkeys(counted, COUNT))
        check_fields(self, " of Regroup", largest=whole(self.smallest, MOST_TOGETHER))
        check_fields(self, " of Regroup", widest=whole(self.largest, MOST_TOGETHER))

    @property
    def least_rows(self) -> int:
        return 1

    @property
    def most_rows(self) -> int:
        return self.rows

    def wants_rows(self, proposals: Divisions, ids: np.ndarray, lap: int) -> np.ndarray:
        """All components: whether a group has changed is known when the lap ends."""
        return np.ones(len(ids), dtype=bool)

    def resting(self, end: LapEnd, before: Divisions, refused: Sequence[tuple[int, ...]]) -> Divisions:
        return replace(self.none(), searched=before.searched.after(end, refused))

    def unfinished(self, end: LapEnd, resting: Divisions) -> bool:
        """Whether a group was not searched, of whose members none was asked for rows and has none."""
        seen = end.sampled if end.asked is None else end.sampled | ~end.asked
        return any(
            bool(seen[list(group)].all()) for k in range(len(end.ids)) for group in self._left(end, resting.searched, k)
        )

    def births(
        self, end: LapEnd, busy: np.ndarray, resting: Divisions, others: Sequence[Proposals]
    ) -> dict[tuple[int, ...], np.ndarray | None]:
        """Better arrangements of disjoint groups, each found in a task of its own; None for others searched."""
        calm = end.settled or end.change < ROUND_GAIN * self.smallest * float(end.summary.counts.mean())
        free = ~busy & end.sampled
        fresh = np.isin(np.arange(len(end.ids)), end.made.get(self.kind, ()))
        for proposals in others:
            # Where a search made it, it was split in vain; where no more may be, nothing is split.
            free &= proposals.tried(end.ids) | fresh | end.full
        searched, births = resting.searched, dict[tuple[int, ...], np.ndarray | None]()
        sketch, left = Sketch.of(end, free), _most_work(end, LAPS_MEANWHILE if self._early(end, others) else MOST_LAPS)
        for wave in count():
            groups = self._groups(sketch, searched, wave, left, calm)
            if not groups:
                break
            left -= sum(self._work(sketch.end, group) for group in groups)
            found = self._search(sketch.end, groups, wave)
            searched = searched.after(sketch.end, groups)
            # Also where something was found: it may end in a larger division, and is refused with that.
            births |= {sketch.places(group): None for group in groups if sketch.places(group)}
            better = {group: each for group, each in zip(groups, found, strict=True) if each is not None}
            if better:
                sketch = sketch.after(list(better), list(better.values()))
            elif calm:
                sketch = sketch.standing()
            if not (better or calm):
                break
        return births | sketch.divisions()

    def _early(self, end: LapEnd, others: Sequence[Proposals]) -> bool:
        """Whether other moves made most components at this end, or leave them alone only for a while."""
        lately = np.zeros(len(end.ids), dtype=bool)
        for kind, places in end.made.items():
            lately[places] |= kind != self.kind
        for proposals in others:
            lately |= proposals.cooling(end.ids, end.lap + 1)
        return float(lately.mean()) > 0.5

    def _left(self, end: LapEnd, searched: SearchedGroups, k: int, wide: bool = True) -> Iterator[tuple[int, ...]]:
        """Groups of a component with its nearest that were not searched, the smallest first; itself if it is alone.

        The last is a `wide` one if the component was in none.
        """
        for size in sorted({min(size, len(end.ids)) for size in range(self.smallest, self.largest + 1)}):
            group = k, *end.neighbours[k, : size - 1].tolist()
            if not searched.holds(end.ids[list(group)].tolist()):
                yield group
        widest = min(self.widest, len(end.ids))
        if wide and widest > self.largest and int(end.ids[k]) not in searched.covered.get(widest, ()):
            yield k, *end.neighbours[k, : widest - 1].tolist()

    def _work(self, end: LapEnd, group: tuple[int, ...]) -> float:
        """Products of a row with a component's columns in the search of a group, about."""
        held = float(end.summary.counts[list(group)].sum())
        return PRODUCTS * len(group) * min(float(self.rows), held)

    def _groups(
        self, sketch: Sketch, searched: SearchedGroups, wave: int, work: float, wide: bool
    ) -> list[tuple[int, ...]]:
        """Disjoint groups that were not searched, in random order, so that all have their turn.

        Changes that rest on each other, those of this wave among them, replace at most so many components of the lap's
        end together.
        """
        end, groups, free, together = sketch.end, list[tuple[int, ...]](), sketch.free.copy(), sketch.replaced
        for k in generator(end.seed, "regroup", end.lap, wave).permutation(len(end.ids)).tolist():
            for group in self._left(end, searched, k, wide):
                union = union_of([together[k] for k in group])
                if work > 0 and free[list(group)].all() and len(union) <= MOST_TOGETHER:
                    groups.append(group)
                    free[list(group)], together = False, joined(together, union)
                    work -= self._work(end, group)
                    break
        return groups

    def _search(self, end: LapEnd, groups: Sequence[tuple[int, ...]], wave: int) -> list[Found | None]:
        keys = [(end.seed, end.lap, wave, int(end.ids[group[0]])) for group in groups]
        drawn = [self._drawn(end, group, key) for group, key in zip(groups, keys, strict=True)]
        stats = [end.summary.stats[list(group)] for group in groups]
        most = [len(group) + max(0.0, end.room) for group in groups]
        searches = [_searches(end, group, self.searches) for group in groups]
        shared = [end.backend.share((end.model, self))] * len(groups)
        return end.backend.fetch(end.backend.map(_arrange_task, shared, stats, drawn, searches, most, keys))

    def _drawn(self, end: LapEnd, group: tuple[int, ...], key: tuple[int, int, int, int]) -> GroupRows:
        """Rows of a group as its search takes them: only these travel."""
        seed, lap, wave, identity = key
        rng = generator(seed, "regroup rows", lap, wave, identity)
        return _sampled([end.samples[k] for k in group], end.summary.counts[list(group)], self.rows, rng)


def _most_work(end: LapEnd, laps: float) -> float:
    """Products of a row with a component's columns that searches of a lap's end may take: those of so many laps."""
    stats = end.summary.stats
    return float(max(laps * end.summary.counts.sum() * len(stats), MOST_PRODUCTS / stats.shape[1]))


def _searches(end: LapEnd, group: tuple[int, ...], most: int) -> int:
    """How often a group is searched in vain: the more often the fewer rows there are, the less the fewer it holds."""
    components, width = end.summary.stats.shape
    rows, own = float(end.summary.counts.sum()), float(end.summary.counts[list(group)].sum())
    affordable = ROWS_SEARCHED / (rows + components * (COMPONENT + POSTERIOR * width))
    return int(np.clip(min(affordable, own / ROWS_A_SEARCH), 1, most))


def _sampled(
    samples: Sequence[tuple[Rows, np.ndarray]], counts: np.ndarray, most: int, rng: np.random.Generator
) -> GroupRows:
    """Rows of several components that hold `counts` (M,), at most so many in all."""
    kept = [_some(*sample, limit, rng) for sample, limit in zip(samples, rows_each(counts, most), strict=True)]
    return GroupRows(*in_equal_shares(kept, counts))


def _some(rows: Rows, weights: np.ndarray, limit: int, rng: np.random.Generator) -> tuple[Rows, np.ndarray]:
    """At most so many of the rows; nothing is drawn where they are not more."""
    if len(weights) <= limit:
        return rows, weights
    places = np.sort(rng.permutation(len(weights))[:limit])
    return rows[places], weights[places]


def _arrange_task(
    shared: tuple[Model, Regroup],
    stats: np.ndarray,
    drawn: GroupRows,
    searches: int,
    most: float,
    key: tuple[int, int, int, int],
) -> Found | None:
    """A better arrangement of components with `stats` (M, F) by at most so many; None if none was found."""
    (model, move), (rows, weights, share), (seed, lap, wave, identity) = shared, drawn, key
    rng = generator(seed, "regroup search", lap, wave, identity)
    with one_thread():
        sample, split = SampledRows.of(model, rows, weights, share), Split(seedings=move.seedings, seed_iterations=2)
        settled = sample.settled(stats * share)
        if len(stats) <= move.largest:
            tried = (rearranged(sample, settled, split, rng, most) for _ in range(searches))
            better = next((each for each in tried if each is not None), None)
        else:
            better = surrounded(sample, settled) if len(stats) < most else None
    if better is None:
        return None
    owners = better.resp.argmax(axis=1)
    parts = [np.flatnonzero(owners == k) for k in range(len(better.stats))]
    return Found(better.stats / share, [(rows[own], weights[own]) for own in parts])
