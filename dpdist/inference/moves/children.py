"""Children of a component, found in a sample of its rows.

They are seeded by k-means++, as shells around each other and as balls about a row. The best of each way take some steps
of variational inference side by side, and are judged by where these lead (:mod:`dpdist.inference.moves.contest`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpdist.inference.moves.contest import ALIKE, contest
from dpdist.inference.moves.sampled_rows import SampledRows
from dpdist.inference.moves.seeding import distances_from_drawn, many_nearest_seeds, standardized
from dpdist.inference.moves.shells import column_depths, even_shares, shells, small_shares
from dpdist.models.families.base import Rows

#: Seedings of each way that are refined.
FINALISTS = 2


class Children(NamedTuple):
    """Statistics (M, F) of children, and what they seem to gain over the one component whose rows they share out."""

    gain: float
    stats: np.ndarray


def paying(sample: SampledRows, seeded: Sequence[np.ndarray], stages: Sequence[tuple[int, int]]) -> list[Children]:
    """Of seeded children those that do not stand still below the one component, the most promising first."""
    one = sample.undivided
    found = contest(sample, seeded, stages, one, among_credible=False)
    return [Children(each.outlook - one, each.stats) for each in found]


def seed_children(sample: SampledRows, children: int, seedings: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Statistics (M, F) of so many children among which sampled rows are divided, several of every way to seed them.

    Half of the k-means++ seedings measure distances as rows have them, half in units of each column's spread among
    these rows, so that columns that hardly vary have a say as well. Beside these are half as many cuts between inner
    and outer rows, half of them by their density under the one component, half by a column, and as many that part
    those nearest to a row from the others. Of each of the five those are returned whose children have the highest
    evidence after a first step of variational inference, the highest first. There are none when the rows hold too few
    distinct points.
    """
    seeding = _Seeding(sample)
    seeded = _seeded(seeding, children, seedings, rng)
    if seeded is None:
        return []
    owned = np.concatenate(seeded, axis=1)[:, None] == np.arange(children - 1)[:, None]
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


def _seeded(seeding: _Seeding, children: int, seedings: int, rng: np.random.Generator) -> list[np.ndarray] | None:
    """Of each way its seedings, in which child every row is, (n, S); None for too few distinct points."""
    points, weights, half = seeding.sample.points, seeding.sample.weights, seedings // 2
    scaled = standardized(points, weights)
    near = [
        many_nearest_seeds(measure, weights, children, number, rng)
        for measure, number in ((points, seedings - half), (scaled, half))
        if number
    ]
    found = [owners for owners in near if owners is not None]
    return found + _cut(seeding, scaled, children - 1, seedings, rng) if len(found) == len(near) else None


def _cut(seeding: _Seeding, scaled: Rows, cuts: int, seedings: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Seedings between inner and outer rows: by density, by a column, and by the distance from a row."""
    weights, half, quarter = seeding.sample.weights, seedings // 2, seedings // 4
    found = []
    if quarter:
        for depths in (seeding.densities[:, None], column_depths(scaled, weights, quarter, rng)):
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

    sample: SampledRows

    @property
    def densities(self) -> np.ndarray:
        """Log densities (n,) of the rows under the one component that holds them all, base measure apart."""
        return self.sample.logits(self.sample.model.family.coefficients(self.sample.total[None]).T)[:, 0]

    def children(self, resp: np.ndarray) -> np.ndarray:
        """Statistics (M, S, F) of children, `resp` (n, M - 1, S) being the weights that all but the last have."""
        own = self.sample.sums(resp.reshape(len(resp), -1)).reshape(*resp.shape[1:], -1)
        return np.concatenate([own, self.sample.total - own.sum(axis=0, keepdims=True)])

    def evidence(self, stats: np.ndarray) -> np.ndarray:
        """(S,) of the children of each seeding together, their statistics being (M, S, F)."""
        found = self.sample.model.family.log_evidence(stats.reshape(-1, stats.shape[2])).reshape(stats.shape[:2])
        return np.asarray(found.sum(axis=0))

    def stepped(self, stats: np.ndarray) -> np.ndarray:
        """Statistics (M, S, F) after a step of variational inference, each seeding by itself."""
        gradient = np.swapaxes(self.sample.model.gradient(np.swapaxes(stats, 0, 1)), 0, 1)
        gaps = (gradient[:-1] - gradient[-1]).reshape(-1, stats.shape[2])
        logits = self.sample.logits(gaps).reshape(-1, len(stats) - 1, stats.shape[1])
        top = np.maximum(logits.max(axis=1, keepdims=True), 0.0)
        shares = np.exp(logits - top)
        all_shares = shares.sum(axis=1, keepdims=True) + np.exp(-top)
        return self.children(shares * (self.sample.weights[:, None, None] / all_shares))
