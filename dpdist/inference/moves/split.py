"""Split (birth): the rows of one component are divided among children found in a sample of its rows.

Children are seeded among the sampled rows, by k-means++, as shells around each other and as balls about a row, and
refined on the sample; in the following laps every worker divides the responsibility of the component among them.
Children that do not pay at once go on refining; a component whose children never paid is left alone for some laps.
Source: the targeted births of Hughes & Sudderth (2013), with several targets a lap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dpdist.core.checks import COUNT, whole
from dpdist.core.randomness import generator
from dpdist.core.settings import check_settings, documented, setting
from dpdist.core.threads import one_thread
from dpdist.inference.moves.base import LapEnd, Proposals
from dpdist.inference.moves.contest import ALIKE, contest
from dpdist.inference.moves.division import Dividing, Divisions
from dpdist.inference.moves.sampled_rows import SampledRows
from dpdist.inference.moves.sampling import share_of
from dpdist.inference.moves.seeding import distances_from_drawn, many_nearest_seeds, standardized
from dpdist.inference.moves.shells import column_depths, even_shares, shells, small_shares
from dpdist.models.families.base import Features, Rows
from dpdist.models.mixture import Model

#: Seedings of each way that are refined, and how many of all go on for how many steps before the best one does.
FINALISTS, STAGES = 2, ((5, 2),)


@documented
@dataclass(frozen=True)
class Split(Dividing):
    """Make several components of one."""

    children: int = setting(2, whole(2), "Components that a split makes of one.")
    seedings: int = setting(
        8,
        COUNT,
        "K-means++ seedings of children, half as many shells, half as many balls; the best on the sample is kept.",
    )
    seed_iterations: int = setting(
        4, whole(0), "Steps of variational inference on the sample that the most promising children take at last."
    )
    refine: int = setting(6, COUNT, "Laps that children may take until they pay.")
    cooldown: int = setting(2, whole(0), "Laps that a component is left alone after a refused split.")
    tries: int = setting(2, COUNT, "Refused splits after which a component is left alone until it changes.")

    def __post_init__(self) -> None:
        check_settings(self, " of Split")

    @property
    def least_rows(self) -> int:
        return self.children

    def wants_rows(self, proposals: Divisions, ids: np.ndarray, lap: int) -> np.ndarray:
        """Those that may be given replacements when the lap ends."""
        return proposals.cooldowns.allow(ids, lap + 1, self.tries)

    def resting(self, end: LapEnd, before: Divisions, refused: Sequence[tuple[int, ...]]) -> Divisions:
        return replace(self.none(), cooldowns=before.cooldowns.after(end, [k for (k,) in refused], self.cooldown))

    def unfinished(self, end: LapEnd, resting: Divisions) -> bool:
        return not (end.full or resting.cooldowns.exhausted(end.ids, self.tries).all())

    def births(
        self, end: LapEnd, busy: np.ndarray, resting: Divisions, others: Sequence[Proposals]
    ) -> dict[tuple[int, ...], np.ndarray | None]:
        """Children of each component that may be given some and of which there are rows, found in tasks."""
        if end.full:
            return {}
        allowed = resting.cooldowns.allow(end.ids, end.lap + 1, self.tries) & ~busy
        candidates = [int(k) for k in np.flatnonzero(allowed) if int(k) in end.samples]
        if not candidates:
            return {}
        refs = end.backend.map(
            _seed_task,
            [end.backend.share((end.model, self))] * len(candidates),
            [end.samples[k] for k in candidates],
            [float(end.summary.counts[k]) for k in candidates],
            [(end.seed, end.lap, int(end.ids[k])) for k in candidates],
        )
        return {(k,): stats for k, stats in zip(candidates, end.backend.fetch(refs), strict=True)}


def _seed_task(
    shared: tuple[Model, Split], drawn: tuple[Rows, np.ndarray], count: float, key: tuple[int, int, int]
) -> np.ndarray | None:
    (model, split), (rows, weights), (seed, lap, identity) = shared, drawn, key
    rng = generator(seed, "seed children", lap, identity)
    with one_thread():
        sample = SampledRows.of(model, rows, weights, share_of(weights, count))
        seeded, stages = seed_children(sample, split, rng), (*STAGES, (1, split.seed_iterations))
        # Where none is better than the one component on the sample, the most promising is measured on all rows.
        children = paying(sample, seeded, stages) or _refined(sample, seeded, stages, -np.inf)
        if not children:
            return None
        best = children[0].stats
        largest_first = np.argsort(-best[:, -1], kind="stable")  # whichever of several seedings found the same children
        return np.asarray(best[largest_first] * (count / weights.sum()))


class Children(NamedTuple):
    """Statistics (M, F) of children, and what they seem to gain over the one component whose rows they share out."""

    gain: float
    stats: np.ndarray


def paying(sample: SampledRows, seeded: Sequence[np.ndarray], stages: Sequence[tuple[int, int]]) -> list[Children]:
    """Of seeded children those that do not stand still below the one component, the most promising first."""
    total = np.asarray(sample.features.T @ sample.weights)
    return _refined(sample, seeded, stages, sample.stepped([total[None]])[0].elbo)


def _refined(
    sample: SampledRows, seeded: Sequence[np.ndarray], stages: Sequence[tuple[int, int]], one: float
) -> list[Children]:
    found = contest(sample, seeded, stages, one, among_credible=False)
    return [Children(each.outlook - one, each.stats) for each in found]


def seed_children(sample: SampledRows, split: Split, rng: np.random.Generator) -> list[np.ndarray]:
    """Statistics (M, F) of children among which sampled rows are divided, several of every way to seed them.

    Half of the k-means++ seedings measure distances as rows have them, half in units of each column's spread among
    these rows, so that columns that hardly vary have a say as well. Beside these are half as many cuts between inner
    and outer rows, half of them by their density under the one component, half by a column, and as many that part
    those nearest to a row from the others. Of each of the five those are returned whose children have the highest
    evidence after a first step of variational inference, the highest first. There are none when the rows hold too few
    distinct points.
    """
    seeding = _Seeding(sample.model, sample.features, sample.weights)
    seeded = _seeded(seeding, sample.points, split, rng)
    if seeded is None:
        return []
    owned = np.concatenate(seeded, axis=1)[:, None] == np.arange(split.children - 1)[:, None]
    tried = seeding.stepped(seeding.children(owned * sample.weights[:, None, None]))
    ways = np.repeat(np.arange(len(seeded)), [owners.shape[1] for owners in seeded])
    return [tried[:, k] for k in _finalists(seeding.evidence(tried), ways, ALIKE * float(sample.weights.sum()))]


def _finalists(evidence: np.ndarray, ways: np.ndarray, tie: float) -> list[int]:
    """Some seedings of each way, those of the highest `evidence` (S,) first; where several came to the same, one."""
    found, left = list[int](), np.full(int(ways.max()) + 1, FINALISTS)
    alike = np.floor(evidence / tie)
    for k in np.argsort(-alike, kind="stable").tolist():
        if left[ways[k]] and not (found and alike[k] == alike[found[-1]]):
            found.append(k)
            left[ways[k]] -= 1
    return found


def _seeded(sample: _Seeding, points: Rows, split: Split, rng: np.random.Generator) -> list[np.ndarray] | None:
    """Of each way its seedings, in which child every row is, (n, S); None for too few distinct points."""
    weights, scaled, half = sample.weights, standardized(points, sample.weights), split.seedings // 2
    near = [
        many_nearest_seeds(measure, weights, split.children, number, rng)
        for measure, number in ((points, split.seedings - half), (scaled, half))
        if number
    ]
    found = [owners for owners in near if owners is not None]
    return found + _cut(sample, scaled, split, rng) if len(found) == len(near) else None


def _cut(sample: _Seeding, scaled: Rows, split: Split, rng: np.random.Generator) -> list[np.ndarray]:
    """Seedings between inner and outer rows: by density, by a column, and by the distance from a row."""
    weights, cuts, half, quarter = sample.weights, split.children - 1, split.seedings // 2, split.seedings // 4
    found = []
    if quarter:
        for depths in (sample.densities[:, None], column_depths(scaled, weights, quarter, rng)):
            found.append(shells(depths, weights, even_shares(cuts, quarter, rng)))
    if half:
        nearness = -distances_from_drawn(scaled, weights, half, rng)
        found.append(shells(nearness, weights, small_shares(weights, cuts, half, rng)))
    return found


@dataclass(frozen=True, eq=False)
class _Seeding:
    """Sampled rows by which several seedings of children take their first step side by side.

    A product with a few columns costs hardly more than with one, so all seedings share theirs. What the last child of a
    seeding has is what the others leave.
    """

    model: Model
    features: Features
    weights: np.ndarray

    @cached_property
    def total(self) -> np.ndarray:
        """Statistics (F,) of all rows."""
        return np.asarray(self.features.T @ self.weights)

    @cached_property
    def densities(self) -> np.ndarray:
        """Log densities (n,) of the rows under the one component that holds them all, base measure apart."""
        return np.asarray(self.features @ self.model.family.coefficients(self.total[None])[:, 0])

    def children(self, resp: np.ndarray) -> np.ndarray:
        """Statistics (M, S, F) of children, `resp` (n, M - 1, S) being the weights that all but the last have."""
        own = np.asarray(self.features.T @ resp.reshape(len(resp), -1)).T.reshape(*resp.shape[1:], -1)
        return np.concatenate([own, self.total - own.sum(axis=0, keepdims=True)])

    def evidence(self, stats: np.ndarray) -> np.ndarray:
        """(S,) of the children of each seeding together, their statistics being (M, S, F)."""
        found = self.model.family.log_evidence(stats.reshape(-1, stats.shape[2])).reshape(stats.shape[:2])
        return np.asarray(found.sum(axis=0))

    def stepped(self, stats: np.ndarray) -> np.ndarray:
        """Statistics (M, S, F) after a step of variational inference, each seeding by itself."""
        gradient = np.swapaxes(self.model.gradient(np.swapaxes(stats, 0, 1)), 0, 1)
        gaps = (gradient[:-1] - gradient[-1]).reshape(-1, stats.shape[2])
        logits = (self.features @ gaps.T).reshape(-1, len(stats) - 1, stats.shape[1])
        top = np.maximum(logits.max(axis=1, keepdims=True), 0.0)
        shares = np.exp(logits - top)
        all_shares = shares.sum(axis=1, keepdims=True) + np.exp(-top)
        return self.children(shares * (self.weights[:, None, None] / all_shares))
