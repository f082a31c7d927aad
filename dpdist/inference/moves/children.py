"""Children of a component, found in a sample of its rows.

They are seeded by k-means++, as nested shells, and as balls around a row. The best of each method are refined side by
side by some steps of variational inference and compared by their extrapolated bounds
(:mod:`dpdist.inference.moves.contest`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpdist.inference.moves.contest import TIE, contest
from dpdist.inference.moves.sampled_rows import SampledRows
from dpdist.inference.moves.seeding import distances_from_drawn, many_nearest_seeds, standardized
from dpdist.inference.moves.shells import column_depths, even_shares, shells, small_shares
from dpdist.models.families.base import Rows

#: Number of seedings of each method that are refined.
FINALISTS = 2


class Children(NamedTuple):
    """Statistics (M, F) of children, and their estimated gain over the one component whose rows they divide."""

    gain: float
    stats: np.ndarray


def paying(sample: SampledRows, seeded: Sequence[np.ndarray], stages: Sequence[tuple[int, int]]) -> list[Children]:
    """Seeded children that do not stagnate below the bound of the single component, the most promising first."""
    one = sample.undivided
    found = contest(sample, seeded, stages, one, among_credible=False)
    return [Children(each.outlook - one, each.stats) for each in found]


def seed_children(sample: SampledRows, children: int, seedings: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Statistics (M, F) of `children` children that divide the sampled rows, from several seedings of each method.

    There are five methods. Half of the `seedings` k-means++ seedings use distances between rows as they are, the other
    half scale each column by its spread among these rows, so that columns of small spread count. In addition, `seedings
    // 4` seedings cut rows into inner and outer ones by their density under the single component, `seedings // 4` do so
    by one column, and `seedings // 2` separate the rows nearest to a drawn row from the others. Of each method the
    seedings are returned whose children have the highest evidence after one step of variational inference, highest
    first. Returns an empty list if there are too few distinct rows.
    """
    seeding = _Seeding(sample)
    seeded = _seeded(seeding, children, seedings, rng)
    if seeded is None:
        return []
    owned = np.concatenate(seeded, axis=1)[:, None] == np.arange(children)[:, None]
    tried = seeding.stepped(seeding.children(owned * sample.weights[:, None, None]))
    ways = np.repeat(np.arange(len(seeded)), [owners.shape[1] for owners in seeded])
    return [tried[:, k] for k in _finalists(seeding.evidence(tried), ways, TIE * float(sample.weights.sum()))]


def _finalists(evidence: np.ndarray, ways: np.ndarray, tie: float) -> list[int]:
    """Up to :data:`FINALISTS` seedings of each method, highest `evidence` (S,) first; equal ones are kept once."""
    found, left = list[int](), np.full(int(ways.max()) + 1, FINALISTS)
    alike = np.floor(evidence / tie)
    for k in np.argsort(-alike, kind="stable").tolist():
        if left[ways[k]] and not (found and alike[k] == alike[found[-1]]):
            found.append(k)
            left[ways[k]] -= 1
    return found


def _seeded(seeding: _Seeding, children: int, seedings: int, rng: np.random.Generator) -> list[np.ndarray] | None:
    """For each method, the child of every row in each seeding, (n, S); None if there are too few distinct rows."""
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
    """Seedings that cut rows by density, by one column, and by the distance from a row."""
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
    """Sampled rows on which several seedings of children take their first step together.

    A matrix product with a few columns costs little more than with one, so all seedings share theirs. Every child is
    summed over its own rows: as the difference of the others from all rows, it could hold less than nothing.
    """

    sample: SampledRows

    @property
    def densities(self) -> np.ndarray:
        """Log densities (n,) of the rows under the single component that holds them all, without the base measure."""
        return self.sample.logits(self.sample.model.family.coefficients(self.sample.total[None]).T)[:, 0]

    def children(self, resp: np.ndarray) -> np.ndarray:
        """Statistics (M, S, F) of children with weighted responsibilities `resp` (n, M, S)."""
        return self.sample.sums(resp.reshape(len(resp), -1)).reshape(*resp.shape[1:], -1)

    def evidence(self, stats: np.ndarray) -> np.ndarray:
        """(S,) summed evidence of the children of each seeding, from their statistics (M, S, F)."""
        found = self.sample.model.family.log_evidence(stats.reshape(-1, stats.shape[2])).reshape(stats.shape[:2])
        return np.asarray(found.sum(axis=0))

    def stepped(self, stats: np.ndarray) -> np.ndarray:
        """Statistics (M, S, F) after one step of variational inference in each seeding."""
        gradient = np.swapaxes(self.sample.model.gradient(np.swapaxes(stats, 0, 1)), 0, 1)
        gaps = (gradient[:-1] - gradient[-1]).reshape(-1, stats.shape[2])
        logits = self.sample.logits(gaps).reshape(-1, len(stats) - 1, stats.shape[1])
        top = np.maximum(logits.max(axis=1, keepdims=True), 0.0)
        shares = np.concatenate([np.exp(logits - top), np.exp(-top)], axis=1)
        shares *= self.sample.weights[:, None, None] / shares.sum(axis=1, keepdims=True)
        return self.children(shares)
