"""Regroup: neighbouring components are replaced by a better arrangement of their rows.

Splits and merges change one thing at a time, and each of these may lose where several together would gain. So the rows
of a few neighbours are arranged anew, on a sample, by merges and splits together: see
:mod:`dpdist.inference.moves.arrange`. In the following laps what the group holds of every
row is divided among the components found, as a split's rows are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.core.checks import COUNT, check_fields, whole
from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.inference.moves.arrange import SampledRows, rearranged
from dpdist.inference.moves.base import LapEnd, Proposals
from dpdist.inference.moves.cooldown import Cooldowns
from dpdist.inference.moves.division import Dividing, Divisions
from dpdist.inference.moves.split import Split
from dpdist.models.families.base import Rows, stack_rows
from dpdist.models.mixture import Model


@dataclass(frozen=True)
class Regroup(Dividing):
    """Arrange the rows of neighbouring components anew, where splits found nothing more.

    Parameters
    ----------
    members : components of a group at its first try; at every further one it has one more
    rows : sampled rows of a group that are looked at
    seedings : k-means++ seedings of a split, as of :class:`Split`
    refine : laps that the components found may take until they pay
    cooldown : laps that a group is left alone after a refusal
    tries : refusals after which a group is left alone until it or its neighbourhood changes
    """

    members: int = 3
    rows: int = 4000
    seedings: int = 16
    refine: int = 3
    cooldown: int = 0
    tries: int = 3

    def __post_init__(self) -> None:
        check_fields(
            self,
            " of Regroup",
            members=whole(2),
            **dict.fromkeys(("rows", "seedings", "refine", "tries"), COUNT),
            cooldown=whole(0),
        )

    @property
    def least_rows(self) -> int:
        return 1

    @property
    def most_rows(self) -> int:
        return self.rows

    def wants_rows(self, proposals: Divisions, ids: np.ndarray, lap: int) -> np.ndarray:
        """All components, as long as any names a group that may be tried."""
        return np.full(len(ids), bool(proposals.cooldowns.allow(ids, lap + 1, self.tries).any()))

    def rested(self, end: LapEnd, cooldowns: Cooldowns) -> Cooldowns:
        """Groups near a component that a move made or changed are worth another try."""
        changed = end.origins < 0
        if len(end.ids) < 2 or not changed.any():
            return cooldowns
        near = end.neighbours[:, : self.members + self.tries - 2]
        return cooldowns.without(end.ids[changed[near].any(axis=1)])

    def births(
        self, end: LapEnd, busy: np.ndarray, cooldowns: Cooldowns, others: Sequence[Proposals]
    ) -> dict[tuple[int, ...], np.ndarray | None]:
        """Better arrangements of disjoint groups, each found in a task of its own."""
        if len(end.ids) < 2:
            return {(k,): None for k in range(len(end.ids))}
        groups = self._groups(end, busy, cooldowns, others)
        if not groups:
            return {}
        refs = end.backend.map(
            _arrange_task,
            [end.backend.share((end.model, self))] * len(groups),
            [end.summary.stats[list(group)] for group in groups],
            [[end.samples[k] for k in group] for group in groups],
            [(end.seed, end.lap, int(end.ids[group[0]])) for group in groups],
        )
        return _disjoint(dict(zip(groups, end.backend.fetch(refs), strict=True)))

    def _groups(
        self, end: LapEnd, busy: np.ndarray, cooldowns: Cooldowns, others: Sequence[Proposals]
    ) -> list[tuple[int, ...]]:
        """Groups to look at, each a component with near ones; in random order, so that all have their turn.

        They are disjoint, so that nothing is found in vain: who finds its nearest taken is grouped with the nearest
        that are left. But where the run is about to rest, all there are, of every size that is left to try.
        """
        free = ~busy & (end.origins >= 0) & np.isin(np.arange(len(end.ids)), list(end.samples))
        for proposals in others:
            free &= proposals.judged(end.ids)
        allowed, refusals = cooldowns.allow(end.ids, end.lap + 1, self.tries), cooldowns.refused(end.ids)
        order = generator(end.seed, "regroup", end.lap).permutation(np.flatnonzero(allowed)).tolist()
        if end.settled:
            every = [
                (k, *end.neighbours[k, : self.members + tried - 1].tolist())
                for k in order
                for tried in range(int(refusals[k]), self.tries)
            ]
            return [group for group in every if free[list(group)].all()]
        groups = []
        for k in order:
            company = min(self.members + int(refusals[k]), len(end.ids)) - 1
            near = end.neighbours[k, : self.members + self.tries]
            chosen = near[free[near]][:company].tolist()
            if free[k] and len(chosen) == company:
                groups.append((k, *chosen))
                free[[k, *chosen]] = False
        return groups


def _disjoint(found: Mapping[tuple[int, ...], np.ndarray | None]) -> dict[tuple[int, ...], np.ndarray | None]:
    """What was found but for groups that share a component with one before them; those wait for another lap."""
    taken: set[int] = set()
    kept: dict[tuple[int, ...], np.ndarray | None] = {}
    for group, stats in found.items():
        if stats is None or taken.isdisjoint(group):
            kept[group] = stats
            taken.update(group if stats is not None else ())
    return kept


def _sampled(
    samples: Sequence[tuple[Rows, np.ndarray]], counts: np.ndarray, most: int, rng: np.random.Generator
) -> tuple[Rows, np.ndarray, float]:
    """Rows of several components, at most so many in all, which weigh the same share of what each holds; the share."""
    limits = np.maximum(2, most * counts / counts.sum()).astype(int).tolist()
    kept = [_some(*sample, limit, rng) for sample, limit in zip(samples, limits, strict=True)]
    rows, weights = [rows for rows, _ in kept], [own for _, own in kept]
    shares = np.array([own.sum() for own in weights]) / counts
    weights = [own * (shares.min() / share) for own, share in zip(weights, shares, strict=True)]
    return stack_rows(rows), np.concatenate(weights), float(shares.min())


def _some(rows: Rows, weights: np.ndarray, limit: int, rng: np.random.Generator) -> tuple[Rows, np.ndarray]:
    """At most so many of the rows; nothing is drawn where they are not more."""
    if len(weights) <= limit:
        return rows, weights
    places = np.sort(rng.permutation(len(weights))[:limit])
    return rows[places], weights[places]


def _arrange_task(
    shared: tuple[Model, Regroup],
    stats: np.ndarray,
    samples: Sequence[tuple[Rows, np.ndarray]],
    key: tuple[int, int, int],
) -> np.ndarray | None:
    """Statistics of a better arrangement of components with `stats` (M, F); None if none was found."""
    (model, regroup), (seed, lap, identity) = shared, key
    rng = generator(seed, "regroup rows", lap, identity)
    rows, weights, share = _sampled(samples, stats[:, -1], regroup.rows, rng)
    with one_thread():
        sample, split = SampledRows.of(model, rows, weights), Split(seedings=regroup.seedings, seed_iterations=2)
        found, gain = rearranged(sample, stats * share, split, rng)
    return found / share if gain > 0 else None
