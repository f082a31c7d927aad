"""Components seeded in large number on a sample of rows, and merged while that raises the bound.

Splits find the best single division of a component, and miss arrangements that need several divisions at once, none of
which gains alone. Merging from more components than the result will have reaches such arrangements. Evidence and
entropy, not the distance between means, decide which components merge. Disjoint pairs merge at once, and all components
are refined between such rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdist.inference.moves.accept import disjoint
from dpdist.inference.moves.pairs import pair_gains
from dpdist.inference.moves.sampled_rows import Arrangement, SampledRows
from dpdist.inference.moves.seeding import alike_in_a_column, many_nearest_seeds, standardized
from dpdist.kernels.softmax import pair_entropy
from dpdist.models.sufficient_statistics import Summary

#: Number of seedings by distance: each finds half of what splits miss, measured on 50 components of pictures. Number of
#: steps of variational inference before pairs are merged.
DRAWS, STEPS = 4, 2


def agglomerated(sample: SampledRows, seeds: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Results of `seeds` seeds, statistics (M, F) for each seeding.

    Seeds are drawn by distance, once with columns scaled to unit spread, and by the values of a column if these recur.

    Each result is that of :func:`merged_down`. There are fewer results if rows have too few distinct values for so many
    seeds.
    """
    measures = (sample.points, DRAWS), (standardized(sample.points, sample.weights), 1)
    drawn = [many_nearest_seeds(points, sample.weights, seeds, draws, rng) for points, draws in measures]
    drawn.append(alike_in_a_column(sample.points, sample.weights, seeds - 1, DRAWS, rng.spawn(1)[0]))
    seeded = [own for owners in drawn if owners is not None for own in owners.T]
    return [each.stats for each in merged_down(sample, [sample.owned(own, int(own.max()) + 1) for own in seeded])]


def merged_down(sample: SampledRows, candidates: Sequence[np.ndarray]) -> list[Arrangement]:
    """The best arrangement on the way from each candidate, statistics (M, F), down while merges of components gain."""
    now = _refined(sample, candidates)
    best, going = list(now), list(range(len(now)))
    while going:
        merged = {j: _merged(now[j], pairs) for j in going if (pairs := _pairs(sample, now[j]))}
        going = list(merged)
        for j, found in zip(going, _refined(sample, list(merged.values())), strict=True):
            now[j], best[j] = found, max(best[j], found, key=lambda each: each.elbo)
    return best


def _refined(sample: SampledRows, candidates: Sequence[np.ndarray]) -> list[Arrangement]:
    now = list[Arrangement]()
    for _ in range(STEPS if candidates else 0):
        now = [each.occupied for each in sample.stepped(candidates)]
        candidates = [each.stats for each in now]
    return now


def _merged(now: Arrangement, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    both = [now.stats[list(pair)].sum(axis=0) for pair in pairs]
    return np.concatenate([np.delete(now.stats, [k for pair in pairs for k in pair], axis=0), both])


def _pairs(sample: SampledRows, now: Arrangement) -> list[tuple[int, int]]:
    """Disjoint pairs of components whose merge gains, best first."""
    number = len(now.stats)
    first, second = np.triu_indices(number, 1)
    gains = np.zeros(len(first))
    pair_entropy(np.ascontiguousarray(now.resp), np.ones(len(now.resp)), first, second, gains)  # weights are in resp
    gains /= sample.share
    gains += pair_gains(sample.model, Summary(now.stats / sample.share, np.zeros(number)))[first, second]
    # The cost of breadth of a merged component is about that of the costlier of the two.
    gains -= np.maximum(now.broader[first], now.broader[second])
    return [(i, j) for i, j in disjoint(np.stack([first, second], axis=1), gains).tolist()]
