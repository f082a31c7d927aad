"""Pruning, merging and combining against brute force over rows: components that carry the shares of every row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy.special import gammaln

from dpdist.inference.moves.accept import disjoint
from dpdist.inference.sva import Conjugate, DistanceTest, EvidenceTest, Learner, OpeningRule, Pass, PruneMerge
from dpdist.inference.sva.base import SVAState
from dpdist.inference.sva.combine import combine, pass_over
from dpdist.inference.sva.prune_merge import (
    MergeTest,
    PairSearch,
    empty_state,
    likely_pairs,
    merge_gains,
    merge_pairs,
    merge_test,
    merged,
    prune_and_merge,
)
from dpdist.models.families import IsotropicGaussian
from dpdist.models.families.base import Moments, Rows

ORIGINS, KINDS = 9, 3


class Replayed(Pass):
    """A pass whose rows say their responsibilities for ORIGINS components, which unions add up."""

    def __init__(self, table: np.ndarray, overlap: np.ndarray | None) -> None:
        self.cells, self.tracked = table.copy(), overlap

    @property
    def table(self) -> np.ndarray:
        return self.cells.copy()

    @property
    def overlap(self) -> np.ndarray:
        return np.zeros((0, 0)) if self.tracked is None else self.tracked.copy()

    def advance(self, rows: Rows, weights: np.ndarray) -> None:
        for row, weight in zip(rows, weights, strict=True):
            if weight > 0:
                self._take(int(row[0]), row[1:], float(weight))

    def _take(self, place: int, shares: np.ndarray, weight: float) -> None:
        for origin in np.flatnonzero((shares > 0) & ~(members(self.cells) > 0).any(axis=0)):
            opened = np.zeros((1, self.cells.shape[1]))
            opened[0, -1 - ORIGINS + origin] = 1
            self.cells = np.concatenate([self.cells, opened])
            self.tracked = None if self.tracked is None else np.pad(self.tracked, (0, 1))
        owned = members(self.cells) > 0
        rho = weight * (owned / np.maximum(owned.sum(axis=0), 1)) @ shares
        self.cells[:, place] += rho
        self.cells[:, -1] += rho
        if self.tracked is not None:
            common = np.minimum.outer(rho, rho)
            np.fill_diagonal(common, 0.0)
            self.tracked = self.tracked + common


def members(table: np.ndarray) -> np.ndarray:
    """(K, ORIGINS), above zero where an origin belongs to a component."""
    return table[:, -1 - ORIGINS : -1]


def shares_of(table: np.ndarray) -> np.ndarray:
    """Responsibilities of all rows, by their weight, (K, N)."""
    return table[:, : -1 - ORIGINS]


@dataclass(frozen=True, eq=False)
class Replay(Learner):
    """Tables hold a column a row, a column an origin, and the weight; the same kind of origin is better as one."""

    rows: int

    additive = True
    accepts_sparse = False

    @property
    def width(self) -> int:
        return self.rows + ORIGINS + 1

    def check_moments(self, moments: Moments) -> None:
        raise NotImplementedError

    def check(self, table: np.ndarray) -> None:
        raise NotImplementedError

    def begin(self, table: np.ndarray, rule: OpeningRule, dtype: type, overlap: np.ndarray | None, seen: float) -> Pass:
        assert overlap is None or overlap.shape == (len(table), len(table))
        return Replayed(table, overlap)

    def log_predictive(self, rows: Rows, table: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def join(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return left + right

    def gains(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return np.where((kinds_of(left) * kinds_of(right)).sum(axis=1) > 0, 1e6, -1e6)

    def affinity(self, table: np.ndarray) -> np.ndarray:
        return kinds_of(table) @ kinds_of(table).T

    def describe(self, table: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        raise NotImplementedError

    def sample(self, table: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        raise NotImplementedError


def kinds_of(table: np.ndarray) -> np.ndarray:
    """(K, KINDS), above zero where a component has an origin of a kind."""
    return members(table) @ np.eye(KINDS)[np.arange(ORIGINS) % KINDS]


def overlaps(table: np.ndarray) -> np.ndarray:
    """Sums over rows of min(rho_a, rho_b), by brute force, (K, K)."""
    rho = shares_of(table)
    found = np.minimum(rho[:, None], rho).sum(axis=2)
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def distances(table: np.ndarray, seen: float, relative: bool) -> np.ndarray:
    """Sums over rows of |rho_a - rho_b|, by brute force, divided by the pair's weight or by all, (K, K)."""
    rho = shares_of(table)
    weights = rho.sum(axis=1)
    apart = np.abs(rho[:, None] - rho).sum(axis=2)
    return np.asarray(apart / (weights[:, None] + weights if relative else seen))


@dataclass(frozen=True)
class Checked(DistanceTest):
    """The distance test, held to brute force at every check."""

    def pairs(self, search: PairSearch) -> np.ndarray:
        table, fixed, fresh = search.state.table, search.fixed, search.fresh
        check_overlaps(table, search.state.overlap)
        found = super().pairs(search)
        true = distances(table, search.state.seen, self.relative)
        assert (true[found[:, 0], found[:, 1]] < self.most).all(), "a false merge"
        assert (found[:, 0] < found[:, 1]).all() and (found[:, 1] >= fixed).all()
        if not len(found):  # nothing is left that is close, and was tracked as one from its first row
            single = (members(table) > 0).sum(axis=1) == 1
            loose = np.triu(np.outer(single, single), 1) & (np.arange(len(table)) >= fixed)
            assert (true[loose & (fresh[:, None] | fresh)] >= self.most).all(), "a merge was missed"
        return found


def check_overlaps(table: np.ndarray, overlap: np.ndarray) -> None:
    """Overlaps are those of the rows, and for unions bounds from below that are at least those of their parts."""
    true, single = overlaps(table), (members(table) > 0).sum(axis=1) == 1
    assert (overlap <= true + 1e-9).all()
    exact = np.outer(single, single)
    np.testing.assert_allclose(overlap[exact], true[exact], atol=1e-9)
    np.testing.assert_array_equal(overlap, overlap.T)
    assert not overlap.diagonal().any()


def drawn(seed: int, rows: int, weighted: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, 1 + ORIGINS): their number, and shares of three origins of one kind, some also of others; and weights.

    The first kind is shared out (.4, .4, .2) but for noise, the second at random, the third nearly hard.
    """
    rng = np.random.default_rng(seed)
    places = np.arange(ORIGINS).reshape(KINDS, -1)  # whose origins differ in kind, so that either test has work
    shares = np.zeros((rows, ORIGINS))
    sharp = [np.array([40.0, 40.0, 20.0]), np.array([1.0, 1.0, 1.0]), np.array([0.05, 0.05, 0.05])]
    for row in shares:
        group = rng.integers(KINDS)
        row[places[group]] = rng.dirichlet(sharp[group])
        if rng.random() < 0.2:
            row[rng.integers(ORIGINS)] += 0.3
    shares[shares < 0.01] = 0.0
    weights = rng.choice([0.0, 0.5, 1.0, 3.0], size=rows) if weighted else np.ones(rows)
    return np.column_stack([np.arange(rows), shares / shares.sum(axis=1, keepdims=True)]), weights


PRUNING = PruneMerge(first_check=8, spacing=2, share=0.25)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("most", "relative"), [(0.3, True), (0.5, True), (0.7, True), (0.05, False), (0.2, False)])
def test_distances_are_those_of_the_rows_or_above_for_unions(most: float, relative: bool, weighted: bool) -> None:
    rows, weights = drawn(0, 300, weighted)
    learner, pruning = Replay(300), replace(PRUNING, merge=Checked(most, relative), prune=0.02)
    state = pass_over(
        [(rows, weights)], empty_state(learner.width, pruning), learner, OpeningRule(), pruning, np.float64
    )
    state = prune_and_merge(state, learner, OpeningRule(), pruning)
    check_overlaps(state.table, state.overlap)
    assert state.rows == 300 and state.seen == weights.sum()
    np.testing.assert_allclose(state.weights, shares_of(state.table).sum(axis=1))
    assert state.weights.sum() + state.pruned == pytest.approx(state.seen)
    assert len(state.table) < ORIGINS


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("most", "relative"), [(0.5, True), (0.1, False), (1e-9, True)])
def test_distances_of_combined_partitions_are_those_of_their_rows_or_above(
    seed: int, most: float, relative: bool
) -> None:
    rows, weights = drawn(seed, 240, weighted=seed % 2 == 1)
    first = 60 * (seed > 0)  # without a row there is no component yet
    learner, pruning = Replay(240), replace(PRUNING, merge=Checked(most, relative))
    empty = empty_state(learner.width, pruning)
    base = pass_over([(rows[:first], weights[:first])], empty, learner, OpeningRule(), pruning, np.float64)
    cuts = np.array_split(np.arange(first, 240), 3)
    parts = [
        pass_over([(rows[c], weights[c])], base, learner, OpeningRule(), pruning, np.float64, len(base.table))
        for c in cuts
    ]
    both = combine(parts, base, learner, OpeningRule())
    check_overlaps(both.table, both.overlap)
    assert both.rows == 240 and both.seen == pytest.approx(weights.sum())
    np.testing.assert_allclose(shares_of(both.table).sum(axis=0), weights)
    if most < 1e-6:  # unions across partitions share no row, so nothing is lost
        np.testing.assert_allclose(both.overlap, overlaps(both.table), atol=1e-9)
    prune_and_merge(both, learner, OpeningRule(), pruning)


def test_a_part_without_rows_loses_no_overlap_of_the_others() -> None:
    rows, weights = drawn(1, 80)
    learner, pruning = Replay(80), replace(PRUNING, merge=DistanceTest(1e-9))
    empty = empty_state(learner.width, pruning)
    whole = pass_over([(rows, weights)], empty, learner, OpeningRule(), pruning, np.float64)
    for parts in ([empty, whole], [whole, empty]):
        np.testing.assert_array_equal(combine(parts, empty, learner, OpeningRule()).overlap, whole.overlap)


@pytest.mark.parametrize("seed", range(5))
def test_overlaps_of_several_unions_at_once_are_bounds_from_below_and_sums_where_no_row_is_shared(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rho = rng.dirichlet(np.full(8, 0.5), size=40).T
    rho[rho < 0.05] = 0.0
    halves = np.arange(40) < 20
    rho[0, halves], rho[1, ~halves], rho[2, halves], rho[3, ~halves] = 0.0, 0.0, 0.0, 0.0
    table = np.column_stack([rho, np.zeros((8, ORIGINS)), rho.sum(axis=1)])
    pairs = np.array([[1, 0], [2, 3], [4, 6], [5, 7]])
    joined, ids, found = merge_pairs(table, np.arange(8), overlaps(table), pairs, Replay(40))
    true, parts = overlaps(joined), overlaps(table)
    assert ids.tolist() == [1, 2, 4, 5]
    assert (found <= true + 1e-12).all()
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_allclose(found[0, 1], true[0, 1], atol=1e-12)
    assert found[2, 3] == parts[np.ix_([4, 6], [5, 7])].max()
    for place in (0, 1):  # whose parts share no row: what each of them shares with the larger part of another adds up
        for other in (2, 3):
            expected = parts[np.ix_(pairs[place], pairs[other])].max(axis=1).sum()
            assert found[place, other] == pytest.approx(expected, abs=1e-12)


def test_components_that_share_every_row_unequally_are_not_merged_after_a_union() -> None:
    """Responsibilities (.4, .4, .2): the first two are one, and 0.6 away from the third."""
    rows = np.column_stack([np.arange(50), np.tile([0.4, 0.4, 0.2] + [0.0] * 6, (50, 1))])
    learner = Replay(50)
    for most, left in ((0.3, 2), (0.7, 1)):
        pruning = replace(PRUNING, merge=Checked(most), first_check=50)
        state = pass_over(
            [(rows, np.ones(50))], empty_state(learner.width, pruning), learner, OpeningRule(), pruning, np.float64
        )
        assert len(state.table) == left


def greedy(pairs: list[tuple[int, int]], gains: list[float], least: float) -> list[tuple[int, int]]:
    """The best pair above `least`, and so on among those that share nothing with it; of equals the first."""
    left = [(gain, pair) for gain, pair in zip(gains, pairs, strict=True) if gain > least]
    chosen: list[tuple[int, int]] = []
    while left:
        best = max(left, key=lambda each: each[0])[1]
        chosen.append(best)
        left = [each for each in left if not set(each[1]) & set(best)]
    return chosen


@pytest.mark.parametrize("seed", range(10))
def test_pairs_are_chosen_best_first_and_share_no_component(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = np.unique(np.sort(rng.integers(12, size=(30, 2)), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    gains = rng.integers(-3, 6, size=len(pairs)).astype(float)  # with ties, and gains of zero
    expected = greedy([(a, b) for a, b in pairs.tolist()], gains.tolist(), 0.0)
    assert [tuple(pair) for pair in disjoint(pairs, gains).tolist()] == expected
    assert disjoint(np.zeros((0, 2), dtype=np.intp), np.zeros(0)).shape == (0, 2)


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_the_distance_test_takes_the_closest_pairs_that_are_new_and_not_fixed(seed: int, relative: bool) -> None:
    rng, learner = np.random.default_rng(seed), Replay(30)
    rho = rng.dirichlet(np.ones(7), size=30).T * rng.choice([0.02, 1.0], size=(7, 1))
    table = np.column_stack([rho, np.zeros((7, ORIGINS)), rho.sum(axis=1)])
    fixed, fresh, seen = int(rng.integers(5)), rng.random(7) < 0.4, 2.0 * rho.sum()
    true = distances(table, seen, relative)
    most = float(np.quantile(true[np.triu_indices(7, 1)], 0.6))
    allowed = [(a, b) for b in range(fixed, 7) for a in range(b) if fresh[a] or fresh[b]]
    expected = greedy(sorted(allowed), [-true[pair] for pair in sorted(allowed)], -most)
    state = SVAState(table, np.arange(7), 30, seen, 30, 0.0, np.full(7, seen), seen, overlaps(table))
    search = PairSearch(state, learner, OpeningRule(), fixed, fresh)
    found = DistanceTest(most, relative).pairs(search)
    assert [tuple(pair) for pair in found.tolist()] == expected


def test_tests_are_what_their_names_say() -> None:
    for conjugate, auto in ((True, EvidenceTest()), (False, DistanceTest(0.3, relative=True))):
        assert merge_test("auto", 0.3, conjugate) == auto
        assert merge_test("evidence", 0.3, conjugate) == EvidenceTest()
        assert merge_test("distance", 0.3, conjugate) == DistanceTest(0.3, relative=True) == DistanceTest(0.3)
        assert merge_test("absolute distance", 0.3, conjugate) == DistanceTest(0.3, relative=False)
        assert merge_test(None, 0.3, conjugate) is None
        assert merge_test(These(()), 0.3, conjugate) == These(())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("partners", [1, 3, 20])
def test_likely_pairs_are_each_component_with_those_its_rows_fit_best(seed: int, partners: int) -> None:
    affinity = np.random.default_rng(seed).normal(size=(6, 6)) + 9 * np.eye(6)
    expected = set()
    for b in range(6):
        others = sorted((a for a in range(6) if a != b), key=lambda a: -affinity[b, a])[:partners]
        expected |= {(min(a, b), max(a, b)) for a in others}
    assert [tuple(pair) for pair in likely_pairs(affinity, partners).tolist()] == sorted(expected)


SPHERES = IsotropicGaussian(1.0, 25.0, np.zeros(2))
LEARNER = Conjugate(SPHERES, 2)


def spheres(groups: list[np.ndarray]) -> np.ndarray:
    """Components that hold given rows."""
    return np.stack([SPHERES.features(rows).sum(axis=0) for rows in groups])


def groups_of(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = [(0, 0), (0.5, 0), (0, 0.3), (6, 0), (6, 0.8), (0, 7)]
    return [rng.normal(c, 1.0, size=(int(rng.integers(3, 40)), 2)) for c in centres]


@pytest.mark.parametrize("seed", range(5))
def test_the_evidence_test_takes_the_best_pairs_that_gain_are_new_and_not_fixed(seed: int) -> None:
    table, rule = spheres(groups_of(seed)), OpeningRule(concentration=0.7)
    fixed, fresh = seed % 4, np.random.default_rng(seed).random(6) < 0.6
    allowed = sorted((a, b) for b in range(fixed, 6) for a in range(b) if fresh[a] or fresh[b])
    gains = [float(merge_gains(table[[a]], table[[b]], LEARNER, rule)[0]) for a, b in allowed]
    state = replace(state_of([1.0] * 6, list(range(6))), table=table)
    search = PairSearch(state, LEARNER, rule, fixed, fresh)
    found = EvidenceTest(partners=5).pairs(search)
    assert [tuple(pair) for pair in found.tolist()] == greedy(allowed, gains, 0.0)


def log_joint(groups: list[np.ndarray], rule: OpeningRule) -> float:
    """log p(rows, which are together), by Chinese restaurant process, but for what all groupings share."""
    seats = [np.log(rule.concentration) + gammaln(len(rows)) for rows in groups]
    return float(sum(seats) + SPHERES.log_evidence(spheres(groups)).sum())


@pytest.mark.parametrize("concentration", [0.3, 2.5])
def test_merge_gain_is_the_change_of_the_log_joint_probability(concentration: float) -> None:
    groups, rule = groups_of(3), OpeningRule(concentration=concentration)
    table = spheres(groups)
    gains = merge_gains(table[:3], table[3:], LEARNER, rule)
    for k in range(3):
        rest = [rows for place, rows in enumerate(groups) if place not in (k, k + 3)]
        joined = log_joint([*rest, np.vstack([groups[k], groups[k + 3]])], rule)
        assert gains[k] == pytest.approx(joined - log_joint(groups, rule), rel=1e-9)


def test_examining_by_evidence_never_lowers_the_log_joint_probability_and_leaves_no_pair_that_would_raise_it() -> None:
    groups, rule = groups_of(1), OpeningRule()
    state = replace(state_of([1.0] * 6, list(range(6))), table=spheres(groups))
    done = prune_and_merge(state, LEARNER, rule, PruneMerge(merge=EvidenceTest()))
    np.testing.assert_allclose(done.table.sum(axis=0), state.table.sum(axis=0), rtol=1e-12)
    assert 1 < len(done.table) < 6
    first, second = np.triu_indices(len(done.table), 1)
    assert (merge_gains(done.table[first], done.table[second], LEARNER, rule) <= 0).all()


def test_affinity_is_how_well_the_rows_of_one_component_fit_another() -> None:
    groups = groups_of(0)
    table = spheres(groups)
    found = LEARNER.affinity(table)
    for b, rows in enumerate(groups):
        expected = (SPHERES.features(rows) @ SPHERES.coefficients(table)).mean(axis=0)
        np.testing.assert_allclose(found[b], expected, rtol=1e-10)


def state_of(weights: list[float], ids: list[int], rows: int = 400) -> SVAState:
    """Components of given weights that share no row."""
    table = np.zeros((len(weights), rows + ORIGINS + 1))
    table[np.arange(len(weights)), np.arange(len(weights))] = weights
    table[:, -1] = weights
    seen = float(sum(weights))
    return SVAState(table, np.array(ids), rows, seen, rows, 0.0, np.full(len(ids), seen), seen, np.zeros((0, 0)))


@dataclass(frozen=True)
class These(MergeTest):
    """Pairs of four components, given beforehand."""

    chosen: tuple[tuple[int, int], ...]

    def pairs(self, search: PairSearch) -> np.ndarray:
        first = len(search.state.table) == 4
        return np.array(self.chosen if first else [], dtype=np.intp).reshape(-1, 2)


@pytest.mark.parametrize(
    ("pairs", "fixed", "ids"),
    [
        (((0, 1),), 0, [11, 12, 13]),  # the heavier part keeps its id and place
        (((0, 2),), 0, [10, 11, 13]),
        (((0, 1),), 1, [10, 12, 13]),  # what is fixed keeps both, however light
        (((0, 1), (2, 3)), 1, [10, 13]),
        (((0, 1), (2, 3)), 0, [11, 13]),
    ],
)
def test_a_union_keeps_the_id_and_place_of_its_heavier_or_fixed_part(
    pairs: tuple[tuple[int, int], ...], fixed: int, ids: list[int]
) -> None:
    state, learner = state_of([5.0, 9.0, 2.0, 7.0], [10, 11, 12, 13]), Replay(400)
    done = prune_and_merge(state, learner, OpeningRule(), PruneMerge(merge=These(pairs)), fixed)
    assert done.ids.tolist() == ids
    np.testing.assert_array_equal(done.table.sum(axis=0), state.table.sum(axis=0))
    united = {frozenset(pair) for pair in pairs}
    for row, own in zip(done.table, done.ids, strict=True):
        parts = next((pair for pair in united if own - 10 in pair), {own - 10})
        np.testing.assert_array_equal(row, state.table[sorted(parts)].sum(axis=0))
    unnamed = replace(state, ids=np.array([10, -1, 12, -1]))
    assert set(prune_and_merge(unnamed, learner, OpeningRule(), PruneMerge(merge=These(pairs)), fixed).ids) >= {10}


def test_what_was_made_one_is_new() -> None:
    state = state_of([5.0, 9.0, 2.0, 7.0, 1.0], [0, 1, 2, 3, 4])
    assert merged(state, np.array([[0, 1], [2, 4]]), Replay(400))[1].tolist() == [True, True, False]
    assert merged(state, np.array([[0, 1], [2, 4]]), Replay(400), fixed=1)[1].tolist() == [True, True, False]
    assert merged(state, np.zeros((0, 2), dtype=np.intp), Replay(400))[1].tolist() == [False] * 5


@pytest.mark.parametrize(
    ("prune", "least", "fixed", "left"),
    [
        (0.0, 1.0, 0, [0, 1, 2, 3, 4]),
        (0.05, 1.0, 0, [0, 1, 3]),  # of 100: below 5, and 5 itself stays
        (0.05, 1.0, 1, [0, 1, 3]),
        (0.05, 1.0, 3, [0, 1, 2, 3]),
        (1e-9, 1.0, 0, [0, 1, 2, 3]),  # less than one row
        (1e-9, 4.5, 0, [0, 1, 3]),
        (0.9, 1.0, 0, [1]),  # the heaviest stays
    ],
)
def test_pruning_takes_what_is_rare_but_neither_what_is_fixed_nor_the_heaviest(
    prune: float, least: float, fixed: int, left: list[int]
) -> None:
    state = state_of([30.0, 60.5, 4.0, 5.0, 0.5], [0, 1, 2, 3, 4])
    state = replace(state, overlap=np.arange(25.0).reshape(5, 5), pruned=2.0)
    done = prune_and_merge(state, Replay(400), OpeningRule(), PruneMerge(prune, least=least), fixed)
    assert done.ids.tolist() == left
    np.testing.assert_array_equal(done.table, state.table[left])
    np.testing.assert_array_equal(done.overlap, state.overlap[np.ix_(left, left)])
    assert done.pruned == 2.0 + state.weights.sum() - done.weights.sum()
    assert (done.rows, done.seen) == (state.rows, state.seen)


def test_a_component_is_rare_among_the_rows_that_it_could_have_had() -> None:
    state = replace(state_of([30.0, 60.5, 4.0, 5.0, 0.5], [0, 1, 2, 3, 4]), exposed=np.array([100, 100, 80, 101, 2.0]))
    done = prune_and_merge(state, Replay(400), OpeningRule(), PruneMerge(0.05, least=0.1))
    assert done.ids.tolist() == [0, 1, 2, 4]
    assert done.exposed.tolist() == [100, 100, 80, 2] and done.looked == state.seen


def test_a_union_could_have_had_the_rows_of_its_parts_and_no_more_than_there_were() -> None:
    state = replace(state_of([5.0, 9.0, 2.0, 7.0], [0, 1, 2, 3]), exposed=np.array([23.0, 20.0, 3.0, 8.0]))
    assert merged(state, np.array([[0, 1], [3, 2]]), Replay(400))[0].exposed.tolist() == [23.0, 11.0]


#: Origins of 60 rows; looks at the components fall after rows 20 and 40.
LATE = np.repeat([0, 1, 3, 0, 2, 0, 5, 4, 1], [10, 5, 4, 6, 5, 10, 12, 4, 4])


def hard(origins: np.ndarray, places: np.ndarray | None = None) -> np.ndarray:
    """Rows at some places, by default in order, each of one origin alone, whose component it opens."""
    return np.column_stack([np.arange(len(origins)) if places is None else places, np.eye(ORIGINS)[origins]])


@pytest.mark.parametrize("block", [1, 7, 60])
def test_components_are_exposed_to_the_rows_since_the_look_after_which_they_were_opened(block: int) -> None:
    rows, weights = hard(LATE), np.where(np.arange(60) % 2, 0.5, 2.0)
    learner, pruning = Replay(60), PruneMerge(first_check=20, spacing=0, share=1.0)
    blocks = [(rows[a : a + block], weights[a : a + block]) for a in range(0, 60, block)]
    state = pass_over(blocks, empty_state(learner.width, pruning), learner, OpeningRule(), pruning, np.float64)
    assert state.next_check == 80 and state.looked == 50.0
    assert state.exposed.tolist() == [75.0, 75.0, 75.0, 50.0, 25.0, 25.0]


def test_components_opened_side_by_side_are_exposed_to_their_own_rows_only() -> None:
    learner, pruning = Replay(60), PruneMerge(first_check=20, spacing=0, share=1.0)
    base = pass_over(
        [(hard(LATE)[:20], np.ones(20))], empty_state(learner.width, pruning), learner, OpeningRule(), pruning, float
    )
    base = replace(base, next_check=1000)
    cuts = slice(20, 32), slice(32, 60)
    parts = [
        pass_over([(hard(LATE)[cut], np.ones(cut.stop - cut.start))], base, learner, OpeningRule(), pruning, float)
        for cut in cuts
    ]
    both = combine(parts, base, learner, OpeningRule())
    # Of new origins, 2 and 5 are of one kind, and 4 is of that of 1.
    assert both.exposed.tolist() == [60.0, 60.0, 60.0, 40.0]
    assert both.looked == 60.0


@pytest.mark.parametrize(
    ("rows", "size", "due"), [(400, 2, 500), (400, 3, 500), (30, 4, 94), (7, 0, 23), (1001, 5, 1251)]
)
def test_the_next_check_is_a_share_of_the_rows_and_a_multiple_of_the_components_away(
    rows: int, size: int, due: int
) -> None:
    state = replace(state_of([1.0] * size, list(range(size))), rows=rows, next_check=rows)
    assert prune_and_merge(state, Replay(400), OpeningRule(), PruneMerge(spacing=16, share=0.25)).next_check == due


def plane(centres: list[tuple[float, float]], each: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.permutation(np.concatenate([rng.normal(c, 1.0, size=(each, 2)) for c in centres]))


def checked(
    x: np.ndarray, block: int, pruning: PruneMerge, monkeypatch: pytest.MonkeyPatch
) -> tuple[SVAState, list[SVAState]]:
    """A pass over blocks, and the components before each check."""
    checks = list[SVAState]()

    def told(state: SVAState, *arguments: Any) -> SVAState:
        checks.append(state)
        return prune_and_merge(state, *arguments)

    monkeypatch.setattr("dpdist.inference.sva.combine.prune_and_merge", told)
    blocks = [(x[a : a + block], np.ones(len(x[a : a + block]))) for a in range(0, len(x), block)]
    return pass_over(blocks, empty_state(LEARNER.width, pruning), LEARNER, OpeningRule(), pruning, np.float64), checks


@pytest.mark.parametrize("merge", [EvidenceTest(), DistanceTest(0.5)], ids=["evidence", "distance"])
def test_checks_fall_on_the_rows_that_were_told_whatever_the_blocks(
    merge: MergeTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, pruning = plane([(0, 0), (4, 0), (0, 4)], 1500), PruneMerge(1e-4, merge, first_check=700, spacing=40, share=0.1)
    whole, checks = checked(x, 4500, pruning, monkeypatch)
    rows, sizes = [each.rows for each in checks], [len(each.table) for each in checks]
    due = [700, *(max(n + 40 * k, int(1.1 * n)) for n, k in zip(rows, sizes, strict=True))]
    assert due[:-1] == rows and due[-1] == whole.next_check > 4500
    for block in (311, 1000):
        again, others = checked(x, block, pruning, monkeypatch)
        assert [each.rows for each in others] == rows
        np.testing.assert_allclose(again.table, whole.table, rtol=1e-8, atol=1e-8)


def state_from(groups: list[np.ndarray], ids: list[int]) -> SVAState:
    """What a pass found that was over just these groups of rows."""
    rows = sum(map(len, groups))
    exposed, none = np.full(len(ids), float(rows)), np.zeros((0, 0))
    return SVAState(spheres(groups), np.array(ids), rows, float(rows), rows, 0.0, exposed, float(rows), none)


def test_combining_adds_shared_components_and_merges_the_same_new_ones() -> None:
    old, new, more = plane([(0, 0)], 100), plane([(9, 0)], 200, seed=1), plane([(0, 0)], 60, seed=2)

    parts = [state_from([np.vstack([old, more[half]]), new[half]], [0, -1]) for half in (slice(30), slice(30, None))]
    found = combine(parts, state_from([old], [0]), LEARNER, OpeningRule())
    np.testing.assert_allclose(found.table, spheres([np.vstack([old, more]), new]), rtol=1e-9, atol=1e-9)
    assert found.rows == 360 and found.ids.tolist() == [0, -1]
    others = [state_from([old, plane([place], 50)], [0, -1]) for place in [(9.0, 0.0), (0.0, 9.0), (-9.0, 0.0)]]
    assert len(combine(others, state_from([old], [0]), LEARNER, OpeningRule()).table) == 4


@pytest.mark.parametrize("most", [2, 3, 4, 5])
def test_a_bound_holds_for_what_parts_opened_apart_and_those_they_share_stay(most: int) -> None:
    twins = [plane([(0, 0)], 50), plane([(0.1, 0)], 50, seed=1)]  # nothing would lose less than their merge
    base = state_from(twins, [0, 1])
    places = [(9.0, 0.0), (0.0, 9.0), (-9.0, 0.0), (0.0, -8.0)]
    parts = [state_from([*twins, plane([place], 50, seed=2)], [0, 1, -1]) for place in places]
    found = combine(parts, base, LEARNER, OpeningRule(max_components=most))
    assert len(found.table) == most and found.ids.tolist() == [0, 1, *[-1] * (most - 2)]
    assert found.table[:, -1].sum() == pytest.approx(300) and found.exposed.max() <= found.seen


def test_at_the_bound_the_components_that_lose_least_become_one() -> None:
    base = state_from([plane([(0, 0)], 50)], [0])
    new = [plane([place], 50, seed) for seed, place in enumerate([(9.0, 0.0), (0.0, 9.0), (9.0, 3.0)])]
    parts = [state_from([plane([(0, 0)], 50), rows], [0, -1]) for rows in new]
    assert len(combine(parts, base, LEARNER, OpeningRule()).table) == 4
    found = combine(parts, base, LEARNER, OpeningRule(max_components=3)).table
    np.testing.assert_allclose(np.sort(found[1:, -1]), [50, 100])
    np.testing.assert_allclose(found[found[:, -1] == 100], spheres([np.vstack([new[0], new[2]])]), rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_components_of_later_partitions_join_those_before_and_no_side_merges_its_own(seed: int) -> None:
    rng, learner = np.random.default_rng(seed), Replay(60)
    pruning = PruneMerge()
    empty = empty_state(learner.width, pruning)

    origins = rng.integers(ORIGINS, size=60)
    origins[:20] %= 2
    cuts = [np.arange(20), np.arange(20, 40), np.arange(40, 60)]
    base = pass_over(
        [(hard(origins[cuts[0]], cuts[0]), np.ones(20))], empty, learner, OpeningRule(), pruning, np.float64
    )
    base = replace(base, ids=np.arange(len(base.table)), pruned=3.0)
    left, right = (
        pass_over([(hard(origins[c], c), np.ones(20))], base, learner, OpeningRule(), pruning, np.float64)
        for c in cuts[1:]
    )
    both = combine([left, replace(right, pruned=5.0)], base, learner, OpeningRule())
    found = kinds_of(left.table).any(axis=0)
    new = [kinds for kinds in kinds_of(right.table)[len(base.table) :] if not (kinds.astype(bool) & found).any()]
    assert len(both.table) == len(left.table) + len(new)
    assert both.ids[: len(base.table)].tolist() == base.ids.tolist() and both.pruned == 5.0
    assert (both.ids[len(base.table) :] == -1).all()
    assert (both.rows, both.seen) == (60, 60.0)
    np.testing.assert_array_equal(shares_of(both.table).sum(axis=0), np.ones(60))


@pytest.mark.parametrize("share", [0.0, 0.25])
@pytest.mark.parametrize("spacing", [0, 1, 16])
@pytest.mark.parametrize("rows", [0, 1, 3, 1000])
def test_the_next_check_comes_later(share: float, spacing: int, rows: int) -> None:
    assert PruneMerge(spacing=spacing, share=share).next_check(rows, 0) > rows
    assert PruneMerge().next_check(rows, 50) == max(rows + 800, int(1.25 * rows))
