"""Sampled rows of a few components arranged anew: components split, pairs merged, or both at once.

Where two components share their rows out badly, merging them loses, and so does splitting one, though to merge them and
split what they hold together anew may gain. All of these are tried on the sample and refined for some steps of
variational inference; the best is followed, as long as what the sample says of the bound on all rows rises. To merge
two and split a third was never the best. Source: the split-and-merge EM of Ueda, Nakano, Ghahramani & Hinton
(2000), with the number of components free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from dpdist.core.errors import PrecisionError
from dpdist.inference.moves.change import EMPTY
from dpdist.inference.moves.divide import NOT_FINITE
from dpdist.inference.moves.split import Split, seed_children
from dpdist.kernels.arrangements import share_arrangements
from dpdist.models.families.base import Features, Rows
from dpdist.models.mixture import Model

#: Arrangements refined of those tried and for how many steps, after which the best go on to the next stage: what ends
#: higher may begin lower. Steps that the best may take to settle.
STAGES, MOST_STEPS = ((10, 3), (5, 5), (3, 12)), 30
#: Steps like its last one by which a candidate is thought to go on where candidates are compared.
AHEAD = 5
#: Nats a row by which candidates may differ that come to the same: of these the first is kept, not what rounding says.
ALIKE = 1e-7
#: Times that the best arrangement is followed.
ROUNDS = 4
#: Nats a row by which an arrangement must gain in a step to go on being refined, and in a round to be followed.
STEP_GAIN, ROUND_GAIN = 1e-4, 5e-3
#: Share of a row below which it is not looked at when a component is split.
FEW = 1e-2


class Arrangement(NamedTuple):
    """Components of a sample.

    Parameters
    ----------
    stats : (M, F) of the responsibilities
    elbo : under them of the rows that the sample stands for, base measure apart
    resp : (n, M), those responsibilities, times the rows' weights
    """

    stats: np.ndarray
    elbo: float
    resp: np.ndarray

    @property
    def occupied(self) -> Arrangement:
        """Without components that hold no row, which matter nothing to the bound."""
        held = self.stats[:, -1] >= EMPTY
        return self._replace(stats=self.stats[held], resp=self.resp[:, held])


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Rows drawn from the whole data, with what inference needs of them.

    Components are fitted to the sample and judged by what the bound would be on all the rows that it stands for. With
    q of statistics S of the sample, ``<grad A(S), S> + H`` is what its rows expect of themselves, and as the fit is as
    much too good for the rows seen as q is too broad, ``1 / share`` times as much is expected of all. From that goes
    the divergence of q from the prior as it would be after all rows, of statistics T = S / share:

        H / share + <grad A(S), T> - [<grad A(T), T> - A(T)],

    which is A(S) + H where the sample is all there is. The bound of a sample alone would have fewer components.

    Parameters
    ----------
    features : (n, F)
    points : (n, D) for k-means++
    weights : (n,) float64
    share : of the rows for which the sample stands
    """

    model: Model
    features: Features
    points: Rows
    weights: np.ndarray
    share: float = 1.0

    @classmethod
    def of(cls, model: Model, rows: Rows, weights: np.ndarray, share: float = 1.0) -> SampledRows:
        """Of prepared rows."""
        return cls(model, model.family.features(rows), model.family.points(rows), weights, share)

    @property
    def rows(self) -> float:
        """How many rows the sample stands for."""
        return float(self.weights.sum()) / self.share

    def stepped(self, candidates: Sequence[np.ndarray]) -> list[Arrangement]:
        """Each candidate, statistics (M, F), after a step of variational inference; they share their products."""
        ends = np.cumsum([len(stats) for stats in candidates])
        gradients = self.model.gradients(np.concatenate(candidates), ends)
        resp, bounds = np.ascontiguousarray(self.features @ gradients.T), np.zeros(len(ends))
        if not share_arrangements(resp, self.weights, ends, bounds):
            raise PrecisionError(NOT_FINITE)
        stats = np.ascontiguousarray((self.features.T @ resp).T)
        expected, elbos = (stats * gradients).sum(axis=1), self._evidence(stats, ends)
        for j, (end, begin) in enumerate(zip(ends, [0, *ends[:-1]], strict=True)):
            # H is the sum over rows of log Z less the expected logit, which is linear in the statistics.
            elbos[j] += (bounds[j] - expected[begin:end].sum()) / self.share
        parts = zip(np.split(stats, ends[:-1]), elbos.tolist(), np.split(resp, ends[:-1], axis=1), strict=True)
        return [Arrangement(*part) for part in parts]

    def _evidence(self, stats: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """(J,) what stands beside the entropies in the bound on all rows, for arrangements of `stats` (C, F)."""
        family, allocation, every = self.model.family, self.model.allocation, stats / self.share
        gaps = (family.coefficients(stats) - family.coefficients(every)).T
        evidence = family.log_evidence(every) + (gaps * every).sum(axis=1)
        found = [own.sum() for own in np.split(evidence, ends[:-1])]
        for j, counts in enumerate(map(allocation.in_order, np.split(every[:, -1], ends[:-1]))):
            gap = allocation.log_weights(counts * self.share) - allocation.log_weights(counts)
            found[j] += allocation.log_evidence(counts) + gap @ counts
        return np.array(found)

    def settled(self, arrangement: Arrangement) -> Arrangement:
        """After as many steps as it takes until the bound hardly rises."""
        for _ in range(MOST_STEPS):
            (after,) = self.stepped([arrangement.stats])
            if after.elbo - arrangement.elbo < STEP_GAIN * self.rows:
                return after
            arrangement = after
        return arrangement

    def best(self, candidates: Sequence[np.ndarray], least: float) -> Arrangement | None:
        """The best of candidates, the most promising first, as far as its refinement leads above `least`, or None.

        With every stage fewer are refined: those that, rising as in their last step, would be the highest soon. One
        that stands still below `least` is given up at once; most are those that have come back to where they began.
        """
        still, rising = STEP_GAIN * self.rows, [_Rising(stats, -np.inf, np.inf) for stats in candidates]
        tie = ALIKE * self.rows
        for kept, steps in STAGES:
            rising = sorted(rising, key=lambda each: -each.promise(tie))[:kept]
            for _ in range(steps):
                if not rising:
                    return None
                found = self.stepped([each.stats for each in rising])
                rising = [_Rising(a.stats, a.elbo, a.elbo - b.elbo) for a, b in zip(found, rising, strict=True)]
                rising = [each for each in rising if each.elbo >= least or each.rise >= still]
        if not rising:
            return None
        best = self.settled(self.stepped([max(rising, key=lambda each: each.promise(tie)).stats])[0])
        return best if best.elbo >= least else None


class _Rising(NamedTuple):
    """Components of a candidate, statistics (M, F), the bound after its last step, and by how much that raised it."""

    stats: np.ndarray
    elbo: float
    rise: float

    def promise(self, tie: float) -> float:
        """The bound some steps later, in units of `tie`; what was not refined yet promises all alike."""
        return float(np.floor((self.elbo + AHEAD * self.rise) / tie)) if np.isfinite(self.rise) else np.inf


def rearranged(
    sample: SampledRows, stats: np.ndarray, split: Split, rng: np.random.Generator, most: float = np.inf
) -> Arrangement | None:
    """The best arrangement found, or None where none is better than what the first one settles to.

    Parameters
    ----------
    sample : rows that components hold
    stats : (M, F) of these components, scaled to the sample
    split : how components are split
    rng : of the seedings
    most : components that there may be
    """
    now, found = sample.settled(sample.stepped([stats])[0]), None
    for _ in range(ROUNDS):
        candidates = _candidates(sample, now, split, rng, most)
        best = sample.best(candidates, now.elbo + ROUND_GAIN * sample.rows)
        if best is None or not len(best.occupied.stats):  # of next to no weight
            break
        now = found = best.occupied
    return found


def _candidates(
    sample: SampledRows, now: Arrangement, split: Split, rng: np.random.Generator, most: float
) -> list[np.ndarray]:
    """Arrangements, statistics (M', F) of each, the most promising first by what merging and splitting gain alone."""
    found = sorted(_changes(sample, now, split, rng, most), key=lambda change: -change[0])
    return [np.concatenate([np.delete(now.stats, removed, axis=0), added]) for _, removed, added in found]


def _changes(
    sample: SampledRows, now: Arrangement, split: Split, rng: np.random.Generator, most: float
) -> Iterator[tuple[float, list[int], np.ndarray]]:
    """The gain in A that each change seems to have, the components it removes and the statistics it puts there."""
    family, members = sample.model.family, range(len(now.stats))
    evidence = family.log_evidence(now.stats)
    for k in members if len(members) + split.children - 1 <= most else ():
        children = _split(sample, now.resp[:, k], split, rng)
        if children is not None:
            yield float(family.log_evidence(children).sum() - evidence[k]), [k], children
    for i, j in combinations(members, 2):
        both = now.stats[[i, j]].sum(axis=0, keepdims=True)
        alone = float(evidence[i] + evidence[j])
        yield float(family.log_evidence(both)[0]) - alone, [i, j], both
        anew = _split(sample, now.resp[:, i] + now.resp[:, j], split, rng)
        if anew is not None:
            yield float(family.log_evidence(anew).sum()) - alone, [i, j], anew


def _split(sample: SampledRows, weights: np.ndarray, split: Split, rng: np.random.Generator) -> np.ndarray | None:
    """Statistics (M, F) of children among which rows of `weights` (n,) are divided; None if they are too few."""
    rows = np.flatnonzero(weights > FEW * sample.weights)
    own = weights[rows]
    if not len(rows):
        return None
    return seed_children(sample.model, sample.features[rows], sample.points[rows], own, float(own.sum()), split, rng)
