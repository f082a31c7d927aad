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
from itertools import combinations, zip_longest
from typing import NamedTuple

import numpy as np

from dpdist.inference.moves.agglomerate import agglomerated
from dpdist.inference.moves.children import Children, paying, seed_children
from dpdist.inference.moves.contest import contest
from dpdist.inference.moves.hops import hopped
from dpdist.inference.moves.sampled_rows import Arrangement, SampledRows
from dpdist.inference.moves.shells import shells
from dpdist.inference.moves.split import Split

#: Arrangements refined of those tried and for how many steps, after which the best go on to the next stage: what ends
#: higher may begin lower.
STAGES = (10, 3), (5, 5), (3, 12)
#: Components that are seeded and merged where all else finds nothing better than one or two. Of three to five members
#: they found a little more, at twice the cost of all searches.
SEEDS = 8
#: Children of one split that are tried among other changes.
SEEDED = 3
#: Times that the best arrangement is followed.
ROUNDS = 4
#: Nats a row by which an arrangement must gain in a round to be followed.
ROUND_GAIN = 5e-3
#: Share of a row below which it is not looked at when a component is split.
FEW = 1e-2
#: Shares of what each component holds that are taken for its outer rows.
OUTER = 0.1, 0.2, 0.3


def best_of(sample: SampledRows, candidates: Sequence[np.ndarray], least: float) -> Arrangement | None:
    """The best of candidates, the most promising first, as far as its refinement leads above `least`, or None."""
    remaining = contest(sample, candidates, STAGES, least)
    if not remaining:
        return None
    best = sample.settled(remaining[0].stats)
    credible = sample.credible(best)
    if len(credible) < len(best.stats):
        best = sample.settled(credible)
    return best if best.elbo >= least else None


def rearranged(
    sample: SampledRows, settled: Arrangement, split: Split, rng: np.random.Generator, most: float = np.inf
) -> Arrangement | None:
    """The best arrangement found, or None where none is better than the one that there is.

    Parameters
    ----------
    sample : rows that components hold
    settled : what these components settle to
    split : how components are split
    rng : of the seedings
    most : components that there may be
    """
    now, found = settled, None
    for _ in range(ROUNDS):
        least = now.elbo + ROUND_GAIN * sample.rows
        best = best_of(sample, _candidates(sample, now, split, rng, most), least)
        if best is None and (gone := hopped(sample, now)) is not None:
            best = best_of(sample, [gone], least)
        if best is None and found is None and len(settled.stats) <= 2:
            best = best_of(sample, _anew(sample, rng, most), least)
        if best is None or not len(best.occupied.stats):  # of next to no weight
            break
        now = found = best.occupied
    return found


def surrounded(sample: SampledRows, settled: Arrangement) -> Arrangement | None:
    """The best arrangement of settled components and one more, which begins with the outer rows of all.

    None where it is not better. Rows far from every middle are few in each component, so that splits do not pay; those
    of many components together may.
    """
    found = best_of(sample, _around(sample, settled), settled.elbo + ROUND_GAIN * sample.rows)
    return found.occupied if found is not None and len(found.occupied.stats) else None


def _anew(sample: SampledRows, rng: np.random.Generator, most: float) -> list[np.ndarray]:
    """Arrangements, statistics (M, F) of each, that many seeds come to."""
    if sample.weights.sum() < 1:  # too little for so many
        return []
    return [stats for stats in agglomerated(sample, SEEDS, rng) if len(stats) <= most]


def _candidates(
    sample: SampledRows, now: Arrangement, split: Split, rng: np.random.Generator, most: float
) -> list[np.ndarray]:
    """Arrangements, statistics (M', F) of each: splits, merges and both at once in turn, each the most promising first.

    What refinement adds differs much more between these three than within each.
    """
    kinds: dict[tuple[int, int], list[_Change]] = {}
    for change in _changes(sample, now, split, rng, most):
        kinds.setdefault((len(change.removed), len(change.added)), []).append(change)
    ranked = [sorted(alike, key=lambda change: -change.gain) for alike in kinds.values()]
    in_turn = [change for changes in zip_longest(*ranked) for change in changes if change is not None]
    return [np.concatenate([np.delete(now.stats, each.removed, axis=0), each.added]) for each in in_turn]


class _Change(NamedTuple):
    """What a change seems to gain, the components it removes and the statistics (M, F) it puts there."""

    gain: float
    removed: list[int]
    added: np.ndarray


def _changes(
    sample: SampledRows, now: Arrangement, split: Split, rng: np.random.Generator, most: float
) -> Iterator[_Change]:
    family, members = sample.model.family, range(len(now.stats))
    evidence = family.log_evidence(now.stats / sample.share)
    splits = len(members) + split.children - 1 <= most
    for k in members if splits else ():
        for gain, children in _split(sample, now.resp[:, k], split, rng):
            yield _Change(gain, [k], children)
    for i, j in combinations(members, 2):
        both = now.stats[[i, j]].sum(axis=0, keepdims=True)
        lost = float(family.log_evidence(both / sample.share)[0] - evidence[i] - evidence[j])
        yield _Change(lost, [i, j], both)
        for gain, anew in _split(sample, now.resp[:, i] + now.resp[:, j], split, rng):
            yield _Change(lost + gain, [i, j], anew)


def _around(sample: SampledRows, now: Arrangement) -> list[np.ndarray]:
    """Statistics (M + 1, F) of components without the rows that lie outermost in each, and of all these as one, for
    every share of these."""
    depths = sample.logits(sample.model.family.coefficients(now.stats).T)
    outer = [shells(depths[:, [k]], own, np.array([OUTER])) for k, own in enumerate(now.resp.T)]
    beyond = np.stack(outer, axis=2) * now.resp[:, None]
    parts = np.concatenate([now.resp[:, None] - beyond, beyond.sum(axis=2, keepdims=True)], axis=2)
    return [sample.sums(each) for each in np.swapaxes(parts, 0, 1)]


def _split(sample: SampledRows, weights: np.ndarray, split: Split, rng: np.random.Generator) -> list[Children]:
    """Children among which rows of `weights` (n,) are divided, of some seedings, as far as they seem to pay."""
    rows = np.flatnonzero(weights > FEW * sample.weights)
    if not len(rows):
        return []
    own = SampledRows(sample.model, sample.features[rows], sample.points[rows], weights[rows], sample.share)
    seeded = seed_children(own, split.children, split.seedings, rng)
    return paying(own, seeded, [(SEEDED, split.seed_iterations)])
