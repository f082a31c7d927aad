"""Regroup: neighbouring components are replaced by a better arrangement of their rows.

Splits and merges make one change at a time, and each change may lose where several together would gain. So the rows of
a few neighbouring components are rearranged on a sample, by merges and splits together or from many seeds: see
:mod:`dpdist.inference.moves.arrange`. In the following laps the group's responsibilities are divided among the
components found, like those of a split component.

Disjoint groups are searched in waves. If a wave finds something, another wave searches the components found
(:mod:`dpdist.inference.moves.sketch`). A searched group is not searched again until its members change. Once laps
without moves gain less than a regroup must, all remaining groups are searched, and one wide group around each component
as well, in which a component for the outer rows of all members may be missing, or which may be better divided by the
values of a column. If that finds nothing, the widest groups are divided by the values of columns at random. On small
data searches are cheap and depend much on each random draw, so a search that found nothing is repeated.

No search begins at a lap end once one search of each group so far would have cost a few times as much as the lap's own
matrix products; repeated searches and random divisions, which only small data allow, are not counted. A smaller limit
reaches the same bound in the same time, but in more laps. Searches stop much sooner while most components were recently
split, or refused a split that will be tried again, because these groups are about to change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

import numpy as np

from dpdist.core.checks import COUNT, check_fields, whole
from dpdist.core.randomness import generator
from dpdist.core.settings import check_settings, documented, setting
from dpdist.core.threads import one_thread
from dpdist.inference.moves.arrange import ROUND_GAIN, rearranged, rearranged_widely, redivided
from dpdist.inference.moves.base import LapEnd, Proposals
from dpdist.inference.moves.division import Dividing, Divisions
from dpdist.inference.moves.sampled_rows import SampledRows
from dpdist.inference.moves.sampling import in_equal_shares, rows_each
from dpdist.inference.moves.searched import SearchedGroups
from dpdist.inference.moves.sketch import Found, Sketch, joined, union_of
from dpdist.models.families.base import Rows
from dpdist.models.mixture import Model

#: Largest number of components at the lap end that one regroup may replace: more are lost if it does not gain.
MOST_TOGETHER = 8
#: Cost limits of the searches at a lap end, as multiples of the lap's own products: while splits act on most
#: components, and afterwards. The last number is a lower limit in multiplications.
LAPS_MEANWHILE, MOST_LAPS, MOST_PRODUCTS = 1, 12, 9e9
#: Number of rows that repeated searches of a group may read in total, if all read the whole data. Each component counts
#: as COMPONENT rows, and its posterior as POSTERIOR rows for every column of statistics.
ROWS_SEARCHED, COMPONENT, POSTERIOR = 4500.0, 50.0, 0.125
#: The same number for random divisions of a group by the values of columns, and largest number of these rounds.
ROWS_REDIVIDED, MOST_ROUNDS = 60_000.0, 60
#: Rows of a group per search: with fewer rows, the seedings of one search already cover most arrangements.
ROWS_A_SEARCH = 30.0
#: Approximate number of products of each row with a component's columns, per member of the group, in a search.
PRODUCTS = 300


class GroupRows(NamedTuple):
    """Sampled rows of several components and their weights; the sample holds the same `share` of each component."""

    rows: Rows
    weights: np.ndarray
    share: float


@documented
@dataclass(frozen=True)
class Regroup(Dividing):
    """Rearrange the rows of neighbouring components where splits find nothing more."""

    smallest: int = setting(
        2,
        whole(2),
        "Size of the smallest groups. For each size up to `largest`, a component and its nearest neighbours are a "
        "group; a single component is a group if there is no other.",
    )
    largest: int = setting(5, whole(2, MOST_TOGETHER), "Size of the largest groups that are divided in every way.")
    widest: int = setting(
        MOST_TOGETHER,
        whole(2, MOST_TOGETHER),
        "Size of the groups to which one component for the outer rows of all members may be added, and which are "
        "divided by the values of columns, also at random; nothing else is tried in groups of more than `largest`.",
    )
    rows: int = setting(4000, COUNT, "Largest number of sampled rows in a search.")
    seedings: int = setting(16, COUNT, "Number of k-means++ seedings of each split within a group, as of a Split.")
    searches: int = setting(
        6,
        COUNT,
        "Largest number of searches of a group that find nothing, on small data; on large data there is one.",
    )
    refine: int = setting(3, COUNT, "Number of laps within which the components found must gain.")

    def __post_init__(self) -> None:
        check_settings(self, " of Regroup")
        check_fields(self, " of Regroup", largest=whole(self.smallest, MOST_TOGETHER))
        check_fields(self, " of Regroup", widest=whole(self.largest, MOST_TOGETHER))

    @property
    def least_rows(self) -> int:
        return 1

    @property
    def most_rows(self) -> int:
        return self.rows

    def wants_rows(self, proposals: Divisions, ids: np.ndarray, lap: int) -> np.ndarray:
        """All components: whether a group has changed is known only when the lap ends."""
        return np.ones(len(ids), dtype=bool)

    def resting(self, end: LapEnd, before: Divisions, refused: Sequence[tuple[int, ...]]) -> Divisions:
        return replace(self.none(), searched=before.searched.after(end, refused))

    def unfinished(self, end: LapEnd, resting: Divisions) -> bool:
        """Whether a group is left to search whose members all have rows."""
        groups = (group for k in range(len(end.ids)) for group in self._left(end, resting.searched, k))
        return any(bool(end.reachable[list(group)].all()) for group in groups)

    def births(
        self, end: LapEnd, busy: np.ndarray, resting: Divisions, others: Sequence[Proposals]
    ) -> dict[tuple[int, ...], np.ndarray | None]:
        """Better arrangements of disjoint groups, each found in its own task; None for groups without one."""
        calm = end.settled or end.change < ROUND_GAIN * self.smallest * float(end.summary.counts.mean())
        free = ~busy & end.sampled
        fresh = np.isin(np.arange(len(end.ids)), end.made.get(self.kind, ()))
        for proposals in others:
            # Components that a search made were already split there without a gain; at the limit nothing is split.
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
            # Also for groups with a better arrangement: it may become part of a larger division and be refused with
            # that.
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
        """Whether other moves made most components at this lap end, or skip them only for some laps."""
        lately = np.zeros(len(end.ids), dtype=bool)
        for kind, places in end.made.items():
            lately[places] |= kind != self.kind
        for proposals in others:
            lately |= proposals.cooling(end.ids, end.lap + 1)
        return float(lately.mean()) > 0.5

    def _left(self, end: LapEnd, searched: SearchedGroups, k: int, wide: bool = True) -> Iterator[tuple[int, ...]]:
        """Groups of a component and its nearest neighbours that were not searched, smallest first.

        A single component is a group by itself. The last group is a wide one, if `wide` and no searched wide group held
        the component.
        """
        for size in sorted({min(size, len(end.ids)) for size in range(self.smallest, self.largest + 1)}):
            group = k, *end.neighbours[k, : size - 1].tolist()
            if not searched.holds(end.ids[list(group)].tolist()):
                yield group
        widest = min(self.widest, len(end.ids))
        if wide and widest > self.largest and int(end.ids[k]) not in searched.covered.get(widest, ()):
            yield k, *end.neighbours[k, : widest - 1].tolist()

    def _work(self, end: LapEnd, group: tuple[int, ...]) -> float:
        """Approximate number of products of a row with a component's columns in the search of a group."""
        held = float(end.summary.counts[list(group)].sum())
        return PRODUCTS * len(group) * min(float(self.rows), held)

    def _groups(
        self, sketch: Sketch, searched: SearchedGroups, wave: int, work: float, wide: bool
    ) -> list[tuple[int, ...]]:
        """Disjoint groups that were not searched, in random order, so that all are searched eventually.

        Changes that depend on each other, including those of this wave, replace at most :data:`MOST_TOGETHER`
        components of the lap end.
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
        rounds = [self._rounds(end, group) for group in groups]
        shared = [end.backend.share((end.model, self))] * len(groups)
        return end.backend.fetch(end.backend.map(_arrange_task, shared, stats, drawn, searches, rounds, most, keys))

    def _rounds(self, end: LapEnd, group: tuple[int, ...]) -> int:
        """Rounds of random divisions of a group by the values of columns; none unless it is of the largest size."""
        if len(group) < min(self.widest, len(end.ids)):
            return 0
        return int(np.clip(_affordable(ROWS_REDIVIDED, end), 1, MOST_ROUNDS))

    def _drawn(self, end: LapEnd, group: tuple[int, ...], key: tuple[int, int, int, int]) -> GroupRows:
        """The rows used by the search of a group; only these are sent to its task."""
        seed, lap, wave, identity = key
        rng = generator(seed, "regroup rows", lap, wave, identity)
        return _sampled([end.samples[k] for k in group], end.summary.counts[list(group)], self.rows, rng)


def _most_work(end: LapEnd, laps: float) -> float:
    """Limit on products of a row with a component's columns in all searches of a lap end: those of `laps` laps."""
    stats = end.summary.stats
    return float(max(laps * end.summary.counts.sum() * len(stats), MOST_PRODUCTS / stats.shape[1]))


def _searches(end: LapEnd, group: tuple[int, ...], most: int) -> int:
    """How often a group is searched without success: more often on small data, less often for groups with few rows."""
    own = float(end.summary.counts[list(group)].sum())
    return int(np.clip(min(_affordable(ROWS_SEARCHED, end), own / ROWS_A_SEARCH), 1, most))


def _affordable(rows: float, end: LapEnd) -> float:
    """How often `rows` rows contain the whole data, to which components add the rows that their posteriors cost."""
    components, width = end.summary.stats.shape
    return rows / (float(end.summary.counts.sum()) + components * (COMPONENT + POSTERIOR * width))


def _sampled(
    samples: Sequence[tuple[Rows, np.ndarray]], counts: np.ndarray, most: int, rng: np.random.Generator
) -> GroupRows:
    """At most `most` rows of several components with counts (M,)."""
    kept = [_some(*sample, limit, rng) for sample, limit in zip(samples, rows_each(counts, most), strict=True)]
    return GroupRows(*in_equal_shares(kept, counts))


def _some(rows: Rows, weights: np.ndarray, limit: int, rng: np.random.Generator) -> tuple[Rows, np.ndarray]:
    """At most `limit` of the rows; without a random draw if there are no more."""
    if len(weights) <= limit:
        return rows, weights
    places = np.sort(rng.permutation(len(weights))[:limit])
    return rows[places], weights[places]


def _arrange_task(
    shared: tuple[Model, Regroup],
    stats: np.ndarray,
    drawn: GroupRows,
    searches: int,
    rounds: int,
    most: float,
    key: tuple[int, int, int, int],
) -> Found | None:
    """A better arrangement, of at most `most` components, for those with `stats` (M, F); None if none was found."""
    (model, move), (rows, weights, share), (seed, lap, wave, identity) = shared, drawn, key
    rng = generator(seed, "regroup search", lap, wave, identity)
    with one_thread():
        sample = SampledRows.of(model, rows, weights, share)
        settled = sample.settled(stats * share)
        if len(stats) <= move.largest:
            tried = (rearranged(sample, settled, move.seedings, rng, most) for _ in range(searches))
            better = next((each for each in tried if each is not None), None)
        else:
            better = rearranged_widely(sample, settled, rng, most)
        if better is None:
            better = redivided(sample, settled, rounds, rng, most)
    if better is None:
        return None
    owners = better.resp.argmax(axis=1)
    parts = [np.flatnonzero(owners == k) for k in range(len(better.stats))]
    return Found(better.stats / share, [(rows[own], weights[own]) for own in parts])
