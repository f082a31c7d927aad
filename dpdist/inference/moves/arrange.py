"""Sampled rows of a few components arranged anew: components split, pairs merged, or both at once.

Where two components share their rows out badly, merging them loses, and so does splitting one, though to merge them and
split what they hold together anew may gain. All of these are tried on the sample and refined for some steps of
variational inference; the best is followed, as long as what the sample says of the bound on all rows rises. Where none
is better, single rows go to another component (:mod:`dpdist.inference.moves.hops`); where that is no better than a
pair, or the one there is, what many components come to by merging is tried (:mod:`dpdist.inference.moves.agglomerate`).
To merge two and split a third was never the best. Of more components than a few only their outer rows are looked at,
which all together may make one more. Source: the split-and-merge EM of Ueda, Nakano, Ghahramani & Hinton (2000), with
the number of components free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from dpdist.inference.moves.agglomerate import agglomerated
from dpdist.inference.moves.hops import hopped
from dpdist.inference.moves.sampled_rows import STEP_GAIN, Arrangement, SampledRows
from dpdist.inference.moves.shells import shells
from dpdist.inference.moves.split import Split, seed_children

#: Arrangements refined of those tried and for how many steps, after which the best go on to the next stage: what ends
#: higher may begin lower.
STAGES = (10, 3), (5, 5), (3, 12)
#: Steps like its last one by which a candidate is thought to go on where candidates are compared.
AHEAD = 5
#: Nats a row by which candidates may differ that come to the same: of these the first is kept, not what rounding says.
ALIKE = 1e-7
#: Components that are seeded and merged where all else finds nothing better than one or two. Of three to five members
#: they found a little more, at twice the cost of all searches.
SEEDS = 8
#: Times that the best arrangement is followed.
ROUNDS = 4
#: Nats a row by which an arrangement must gain in a round to be followed.
ROUND_GAIN = 5e-3
#: Share of a row below which it is not looked at when a component is split.
FEW = 1e-2
#: Shares of what each component holds that are taken for its outer rows.
OUTER = 0.1, 0.2, 0.3


class _Rising(NamedTuple):
    """Components of a candidate, statistics (M, F), the bound after its last step, and by how much that raised it."""

    stats: np.ndarray
    elbo: float
    rise: float

    def promise(self, tie: float) -> float:
        """The bound some steps later, in units of `tie`; what was not refined yet promises all alike."""
        return float(np.floor((self.elbo + AHEAD * self.rise) / tie)) if np.isfinite(self.rise) else np.inf


def best_of(sample: SampledRows, candidates: Sequence[np.ndarray], least: float) -> Arrangement | None:
    """The best of candidates, the most promising first, as far as its refinement leads above `least`, or None.

    With every stage fewer are refined: those that, rising as in their last step, would be the highest soon. One
    that stands still below `least` is given up at once; most are those that have come back to where they began.
    """
    still, rising = STEP_GAIN * sample.rows, [_Rising(stats, -np.inf, np.inf) for stats in candidates]
    tie = ALIKE * sample.rows
    for kept, steps in STAGES:
        rising = sorted(rising, key=lambda each: -each.promise(tie))[:kept]
        for step in range(steps):
            if not rising:
                return None
            found = sample.stepped([each.stats for each in rising])
            stats = [each.stats if step else sample.credible(each) for each in found]
            rising = [_Rising(s, a.elbo, a.elbo - b.elbo) for s, a, b in zip(stats, found, rising, strict=True)]
            rising = [each for each in rising if each.elbo >= least or each.rise >= still]
    if not rising:
        return None
    best = sample.settled(sample.stepped([max(rising, key=lambda each: each.promise(tie)).stats])[0])
    credible = sample.credible(best)
    if len(credible) < len(best.stats):
        best = sample.settled(sample.stepped([credible])[0])
    return best if best.elbo >= least else None


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
        least = now.elbo + ROUND_GAIN * sample.rows
        best = best_of(sample, _candidates(sample, now, split, rng, most), least)
        if best is None and (gone := hopped(sample, now)) is not None:
            best = best_of(sample, [gone], least)
        if best is None and found is None and len(stats) <= 2:
            best = best_of(sample, _anew(sample, rng, most), least)
        if best is None or not len(best.occupied.stats):  # of next to no weight
            break
        now = found = best.occupied
    return found


def surrounded(sample: SampledRows, stats: np.ndarray) -> Arrangement | None:
    """The best arrangement of components with `stats` (M, F) and one more, which begins with the outer rows of all.

    None where it is not better. Rows far from every middle are few in each component, so that splits do not pay; those
    of many components together may.
    """
    now = sample.settled(sample.stepped([stats])[0])
    found = best_of(sample, _around(sample, now), now.elbo + ROUND_GAIN * sample.rows)
    return found.occupied if found is not None and len(found.occupied.stats) else None


def _anew(sample: SampledRows, rng: np.random.Generator, most: float) -> list[np.ndarray]:
    """Arrangements, statistics (M, F) of each, that many seeds come to."""
    if sample.weights.sum() < 1:  # too little for so many
        return []
    return [stats for stats in agglomerated(sample, SEEDS, rng) if len(stats) <= most]


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


def _around(sample: SampledRows, now: Arrangement) -> list[np.ndarray]:
    """Statistics (M + 1, F) of components without the rows that lie outermost in each, and of all these as one, for
    every share of these."""
    depths = np.asarray(sample.features @ sample.model.family.coefficients(now.stats))
    outer = [shells(depths[:, [k]], own, np.array([OUTER])) for k, own in enumerate(now.resp.T)]
    beyond = np.stack(outer, axis=2) * now.resp[:, None]
    parts = np.concatenate([now.resp[:, None] - beyond, beyond.sum(axis=2, keepdims=True)], axis=2)
    return [np.asarray(sample.features.T @ each).T for each in np.swapaxes(parts, 0, 1)]


def _split(sample: SampledRows, weights: np.ndarray, split: Split, rng: np.random.Generator) -> np.ndarray | None:
    """Statistics (M, F) of children among which rows of `weights` (n,) are divided; None if they are too few."""
    rows = np.flatnonzero(weights > FEW * sample.weights)
    own = weights[rows]
    if not len(rows):
        return None
    return seed_children(sample.model, sample.features[rows], sample.points[rows], own, float(own.sum()), split, rng)
