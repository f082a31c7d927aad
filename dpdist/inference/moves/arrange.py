"""Rearranging the sampled rows of a few components: splitting components, merging pairs, or both at once.

Where two components share their rows badly, merging them loses and so does splitting one of them, although merging both
and splitting the result again may gain. All of these changes are tried on the sample and refined by some steps of
variational inference. The best one is adopted, and the search repeats while the estimated bound on all rows rises. If
none gains, single rows are moved to other components (:mod:`dpdist.inference.moves.hops`). If that does not help a
group of one or two components, many components are seeded and merged (:mod:`dpdist.inference.moves.agglomerate`);
larger groups are divided by the values of columns (:mod:`dpdist.inference.moves.crossing`). Merging two components
while splitting a third was never the best change. In wide groups only such divisions are tried, and the outer rows of
all members, which together may form one more component. The widest groups are also divided by the values of columns at
random, round after round (:mod:`dpdist.inference.moves.redivision`). Source: the split-and-merge EM of Ueda, Nakano,
Ghahramani & Hinton (2000), with a free number of components.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, zip_longest
from typing import NamedTuple

import numpy as np

from dpdist.core.errors import PrecisionError
from dpdist.inference.moves.agglomerate import agglomerated
from dpdist.inference.moves.children import Children, paying, seed_children
from dpdist.inference.moves.contest import contest
from dpdist.inference.moves.crossing import crossed
from dpdist.inference.moves.hops import hopped
from dpdist.inference.moves.redivision import redivisions
from dpdist.inference.moves.sampled_rows import STEP_GAIN, Arrangement, SampledRows
from dpdist.inference.moves.shells import shells

#: Number of arrangements kept in each stage, and steps of refinement, after which the best enter the next stage; many
#: are kept at first, because what ends higher may start lower.
STAGES = (10, 3), (5, 5), (3, 12)
#: Number of components that are seeded and merged if all else fails to improve a group of one or two. For groups of
#: three to five they gained a little more, but doubled the cost of all searches.
SEEDS = 8
#: Smallest group that is divided by the values of columns if all else fails; smaller ones are seeded and merged.
CROSSED = 3
#: Largest number of divisions of one component, in two, that are tried among the other changes, and steps of
#: variational inference before these are chosen.
SEEDED, SEED_STEPS = 3, 2
#: Largest number of rounds, each of which adopts the best arrangement.
ROUNDS = 4
#: Nats per row that an arrangement must gain in a round to be adopted.
ROUND_GAIN = 5e-3
#: Rows of which a component holds less than this share are ignored when it is split.
FEW = 1e-2
#: Shares of each component that are tried as its outer rows.
OUTER = 0.1, 0.2, 0.3


def best_of(sample: SampledRows, candidates: Sequence[np.ndarray], least: float) -> Arrangement | None:
    """The refined best of the candidates, which come most promising first, or None if it does not reach `least`."""
    remaining = contest(sample, candidates, STAGES, least)
    if not remaining:
        return None
    best = sample.settled(remaining[0].stats)
    credible = sample.credible(best)
    if len(credible) < len(best.stats):
        best = sample.settled(credible)
    return best if best.elbo >= least else None


def rearranged(
    sample: SampledRows, settled: Arrangement, seedings: int, rng: np.random.Generator, most: float = np.inf
) -> Arrangement | None:
    """The best arrangement found, or None if none is better than the present one.

    Parameters
    ----------
    sample : rows of the components
    settled : the present components after refinement on the sample
    seedings : of each division of a component, as in :func:`~dpdist.inference.moves.children.seed_children`
    rng : of the seedings
    most : largest number of components
    """
    now, found = settled, None
    for _ in range(ROUNDS):
        least = now.elbo + ROUND_GAIN * sample.rows
        best = best_of(sample, _candidates(sample, now, seedings, rng, most), least)
        if best is None and (gone := hopped(sample, now)) is not None:
            best = best_of(sample, [gone], least)
        if best is None and found is None:
            best = best_of(sample, _anew(sample, settled, rng, most), least)
        if best is None or not len(best.occupied.stats):  # all components are nearly empty
            break
        now = found = best.occupied
    return found


def rearranged_widely(
    sample: SampledRows, settled: Arrangement, rng: np.random.Generator, most: float = np.inf
) -> Arrangement | None:
    """The best of the arrangements with one more component, seeded with the outer rows of all, and of those divided by
    the values of a column; None if none is better. Other parameters are those of :func:`rearranged`.

    Rows far from every centre are few in each component, so splits do not pay; those of many components together may.
    """
    candidates = _around(sample, settled) if len(settled.stats) < most else []
    candidates += [stats for stats in crossed(sample, settled, rng) if len(stats) <= most]
    found = best_of(sample, candidates, settled.elbo + ROUND_GAIN * sample.rows)
    return found.occupied if found is not None and len(found.occupied.stats) else None


def redivided(
    sample: SampledRows, settled: Arrangement, rounds: int, rng: np.random.Generator, most: float = np.inf
) -> Arrangement | None:
    """The arrangement after `rounds` rounds, each of which adopts the best of several random divisions of components by
    the values of columns, if that is better; None if the last one is not better than the present one by as much as
    :func:`rearranged` asks for. Other parameters are those of :func:`rearranged`.
    """
    now = settled
    for _ in range(rounds):
        try:
            found = redivisions(sample, now, rng)
            if not found:  # values recur in no column
                break
            candidates = [stats for stats in found if len(stats) <= most]
            best = best_of(sample, candidates, now.elbo + STEP_GAIN * sample.rows)
        except PrecisionError:  # of a random component, which is no reason to end the search
            continue
        if best is not None and len(best.occupied.stats):
            now = best.occupied
    return now if now.elbo >= settled.elbo + ROUND_GAIN * sample.rows else None


def _anew(sample: SampledRows, settled: Arrangement, rng: np.random.Generator, most: float) -> list[np.ndarray]:
    """Arrangements, statistics (M, F) of each, found by merging many components or by the values of columns."""
    members, found = len(settled.stats), list[np.ndarray]()
    if members < CROSSED and sample.weights.sum() >= 1:  # with less there are too few rows for so many seeds
        found = agglomerated(sample, SEEDS, rng)
    elif members >= CROSSED:
        found = crossed(sample, settled, rng.spawn(1)[0])
    return [stats for stats in found if len(stats) <= most]


def _candidates(
    sample: SampledRows, now: Arrangement, seedings: int, rng: np.random.Generator, most: float
) -> list[np.ndarray]:
    """Arrangements, statistics (M', F) of each, alternating between splits, merges and both; best of each kind first.

    The improvement by refinement differs much more between these three kinds than within each.
    """
    kinds: dict[tuple[int, int], list[_Change]] = {}
    for change in _changes(sample, now, seedings, rng, most):
        kinds.setdefault((len(change.removed), len(change.added)), []).append(change)
    ranked = [sorted(alike, key=lambda change: -change.gain) for alike in kinds.values()]
    in_turn = [change for changes in zip_longest(*ranked) for change in changes if change is not None]
    return [np.concatenate([np.delete(now.stats, each.removed, axis=0), each.added]) for each in in_turn]


class _Change(NamedTuple):
    """Estimated gain of a change, the components it removes, and the statistics (M, F) of those it adds."""

    gain: float
    removed: list[int]
    added: np.ndarray


def _changes(
    sample: SampledRows, now: Arrangement, seedings: int, rng: np.random.Generator, most: float
) -> Iterator[_Change]:
    family, members = sample.model.family, range(len(now.stats))
    evidence = family.log_evidence(now.stats / sample.share)
    for k in members if len(members) < most else ():
        for gain, children in _split(sample, now.resp[:, k], seedings, rng):
            yield _Change(gain, [k], children)
    for i, j in combinations(members, 2):
        both = now.stats[[i, j]].sum(axis=0, keepdims=True)
        lost = float(family.log_evidence(both / sample.share)[0] - evidence[i] - evidence[j])
        yield _Change(lost, [i, j], both)
        for gain, anew in _split(sample, now.resp[:, i] + now.resp[:, j], seedings, rng):
            yield _Change(lost + gain, [i, j], anew)


def _around(sample: SampledRows, now: Arrangement) -> list[np.ndarray]:
    """Statistics (M + 1, F) of the components without their outer rows, and of all outer rows as one component.

    One result for every share in :data:`OUTER`.
    """
    depths = sample.logits(sample.model.family.coefficients(now.stats).T)
    outer = [shells(depths[:, [k]], own, np.array([OUTER])) for k, own in enumerate(now.resp.T)]
    beyond = np.stack(outer, axis=2) * now.resp[:, None]
    parts = np.concatenate([now.resp[:, None] - beyond, beyond.sum(axis=2, keepdims=True)], axis=2)
    return [sample.sums(each) for each in np.swapaxes(parts, 0, 1)]


def _split(sample: SampledRows, weights: np.ndarray, seedings: int, rng: np.random.Generator) -> list[Children]:
    """Children from several seedings that divide the rows with `weights` (n,) and seem to gain."""
    rows = np.flatnonzero(weights > FEW * sample.weights)
    if not len(rows):
        return []
    own = SampledRows(sample.model, sample.features[rows], sample.points[rows], weights[rows], sample.share)
    return paying(own, seed_children(own, 2, seedings, rng), [(SEEDED, SEED_STEPS)])
