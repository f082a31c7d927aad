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
from itertools import pairwise

import numpy as np

from dpdist.core.checks import COUNT, whole
from dpdist.core.randomness import generator
from dpdist.core.settings import check_settings, documented, setting
from dpdist.core.threads import one_thread
from dpdist.inference.moves.base import LapEnd, Proposals
from dpdist.inference.moves.division import Dividing, Divisions
from dpdist.inference.moves.seeding import distances_from_drawn, many_nearest_seeds, standardized
from dpdist.inference.moves.shells import column_depths, even_shares, shells, small_shares
from dpdist.models.families.base import Features, Rows
from dpdist.models.mixture import Model


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
    seed_iterations: int = setting(4, whole(0), "Steps of variational inference on the sample.")
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
    shared: tuple[Model, Split], sample: tuple[Rows, np.ndarray], count: float, key: tuple[int, int, int]
) -> np.ndarray | None:
    (model, split), (rows, weights), (seed, lap, identity) = shared, sample, key
    rng = generator(seed, "seed children", lap, identity)
    with one_thread():
        features, points = model.family.features(rows), model.family.points(rows)
        return seed_children(model, features, points, weights, count, split, rng)


def seed_children(
    model: Model,
    features: Features,
    points: Rows,
    weights: np.ndarray,
    count: float,
    split: Split,
    rng: np.random.Generator,
) -> np.ndarray | None:
    """Statistics (M, F) of children found in sampled rows, scaled to the component's `count`.

    Half of the k-means++ seedings measure distances as rows have them, half in units of each column's spread among
    these rows, so that columns that hardly vary have a say as well. Beside these are half as many cuts between inner
    and outer rows, half of them by their density under the one component, half by a column, and as many that part
    those nearest to a row from the others. Of each of the five the seeding whose children have the highest evidence
    after a first step of variational inference is refined, and the best of these is kept. The largest comes first.
    Returns None when the rows hold too few distinct points.
    """
    sample = _Seeding(model, features, weights)
    seeded = _seeded(sample, points, split, rng)
    if seeded is None:
        return None
    owned = np.concatenate(seeded, axis=1)[:, None] == np.arange(split.children - 1)[:, None]
    tried = sample.refined(sample.children(owned * weights[:, None, None]), 1)
    evidence = sample.evidence(tried)
    ends = np.cumsum([0, *(owners.shape[1] for owners in seeded)]).tolist()
    finalists = [begin + int(evidence[begin:end].argmax()) for begin, end in pairwise(ends)]
    refined = sample.refined(tried[:, finalists], split.seed_iterations)
    best = refined[:, sample.evidence(refined).argmax()]
    largest_first = np.argsort(-best[:, -1], kind="stable")  # whichever of several seedings found the same children
    return np.asarray(best[largest_first] * (count / weights.sum()))


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
    """Sampled rows by which several seedings of children are refined side by side.

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

    def refined(self, stats: np.ndarray, steps: int) -> np.ndarray:
        """Statistics (M, S, F) after some steps of variational inference, each seeding by itself."""
        for _ in range(steps):
            gradient = np.swapaxes(self.model.gradient(np.swapaxes(stats, 0, 1)), 0, 1)
            gaps = (gradient[:-1] - gradient[-1]).reshape(-1, stats.shape[2])
            logits = (self.features @ gaps.T).reshape(-1, len(stats) - 1, stats.shape[1])
            top = np.maximum(logits.max(axis=1, keepdims=True), 0.0)
            shares = np.exp(logits - top)
            all_shares = shares.sum(axis=1, keepdims=True) + np.exp(-top)
            stats = self.children(shares * (self.weights[:, None, None] / all_shares))
        return stats
