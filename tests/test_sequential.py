"""Sequential passes: compiled equals obvious, for every family and any blocks; pruning, merging and combining."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.special import gammaln, logsumexp

from dpdist import InputError, PrecisionError
from dpdist.families import Family, IsotropicGaussian
from dpdist.sequential import Conjugate, DistanceTest, EvidenceTest, Rule, Tidy
from dpdist.sequential.combine import combine
from dpdist.sequential.growth import Growth, examine, no_growth, pass_over
from dpdist.sequential.passes import PASSES, IsotropicGaussianPass
from dpdist.sequential.plain import PlainPass
from dpdist.sequential.tidy import disjoint, likely_pairs, merge_gains
from tests.cases import FAMILIES, FamilyCase, filled
from tests.own_parts import Exponential
from tests.reference_sva import sequential_pass

CASES = pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
COLUMNS = 4


def drawn(case: FamilyCase, rows: int = 240, seed: int = 0) -> tuple[Family, np.ndarray]:
    """A family about its data's mean, and rows of a few groups in random order."""
    rng = np.random.default_rng(seed)
    groups = [case.rows(rng, rows // 3, COLUMNS) + (4.0 * g if case.real else 0.0) for g in range(3)]
    x = rng.permutation(np.concatenate(groups))
    family = filled(case, x)
    return (family.about(x.mean(axis=0)), x - x.mean(axis=0)) if family.has_location else (family, x)


def passed(
    family: Family, x, rule: Rule, weights: np.ndarray | None = None, block: int = 1000, track: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Table and overlaps of a pass that is given `block` rows at a time."""
    learner = Conjugate(family, x.shape[1])
    overlap = np.zeros((0, 0)) if track else None
    going = learner.begin(np.zeros((0, learner.width)), rule, np.float64, overlap, 0.0)
    own = np.ones(x.shape[0]) if weights is None else weights
    for start in range(0, x.shape[0], block):
        going.advance(x[start : start + block], own[start : start + block])
    return going.table, going.overlap


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@CASES
@pytest.mark.parametrize("block", [1000, 7, 1])
@pytest.mark.parametrize("floor", [0.0, 1e-8])
def test_compiled_passes_equal_the_reference(case: FamilyCase, block: int, floor: float) -> None:
    family, x = drawn(case)
    rule = Rule(concentration=1.0, threshold=0.01, floor=floor)
    stats, _, overlap = sequential_pass(family, x, np.ones(len(x)), rule)
    table, tracked = passed(family, x, rule, block=block, track=True)
    assert len(stats) > 1
    assert_close(table, stats)
    assert_close(tracked, overlap)


RULES = [
    Rule(threshold=0.01),
    Rule(concentration=5.0, threshold=0.3, floor=1e-3),
    Rule(threshold=1e-6, floor=0.0, max_components=2),
]


@CASES
@pytest.mark.parametrize("rule", RULES, ids=["few", "floor", "bound"])
def test_the_plain_pass_comes_to_what_the_compiled_one_does(case: FamilyCase, rule: Rule) -> None:
    family, x = drawn(case)
    rows = sparse.csr_array(x) if case.sparse else x
    weights = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], size=len(x))
    table, overlap = passed(family, x, rule, weights, track=True)
    begun = PlainPass(family, np.zeros((0, table.shape[1])), rule, np.float64, np.zeros((0, 0)))
    begun.advance(rows[:90], weights[:90])
    assert PASSES[type(family)] is not PlainPass and begun.overlap.any()
    going = PlainPass(family, begun.table, rule, np.float64, begun.overlap)
    going.advance(rows[90:], weights[90:])
    assert_close(going.table, table)
    assert_close(going.overlap, overlap)


def test_a_family_of_ones_own_passes_as_the_reference_says() -> None:
    rng = np.random.default_rng(0)
    x = rng.exponential(np.array([0.1, 1.0, 30.0])[rng.integers(3, size=240)][:, None], size=(240, COLUMNS))
    family = Exponential(1.0, np.ones(COLUMNS))
    stats, _, overlap = sequential_pass(family, x, np.ones(len(x)), RULES[0])
    table, tracked = passed(family, x, RULES[0], block=70, track=True)
    assert len(stats) >= 3
    assert_close(table, stats)
    assert_close(tracked, overlap)


@pytest.mark.parametrize("block", [1, 2, 64, 200])
def test_the_isotropic_pass_does_not_depend_on_its_inner_block(block: int, monkeypatch) -> None:
    case = next(case for case in FAMILIES if case.name == "isotropic_gaussian")
    family, x = drawn(case)
    rule = Rule(threshold=0.01)
    stats, _, _ = sequential_pass(family, x, np.ones(len(x)), rule)
    monkeypatch.setattr(IsotropicGaussianPass, "block", block)
    monkeypatch.setattr(IsotropicGaussianPass, "margin", block + 1)
    assert_close(passed(family, x, rule)[0], stats)


@CASES
def test_row_weights_enter_as_repetition_of_what_a_row_adds(case: FamilyCase) -> None:
    family, x = drawn(case)
    weights = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], size=len(x))
    rule = Rule(threshold=0.01)
    stats, _, _ = sequential_pass(family, x, weights, rule)
    table, _ = passed(family, x, rule, weights)
    assert_close(table, stats)
    assert table[:, -1].sum() == pytest.approx(weights.sum(), rel=1e-12)


@CASES
def test_a_bound_on_the_components_is_kept(case: FamilyCase) -> None:
    family, x = drawn(case)
    rule = Rule(threshold=1e-6, max_components=2)
    stats, _, _ = sequential_pass(family, x, np.ones(len(x)), rule)
    table, _ = passed(family, x, rule)
    assert len(table) == 2
    assert_close(table, stats)


@CASES
def test_a_pass_begun_from_a_table_goes_on_as_if_it_had_not_stopped(case: FamilyCase) -> None:
    family, x = drawn(case)
    rule, learner = Rule(threshold=0.01), Conjugate(family, COLUMNS)
    whole, _ = passed(family, x, rule)
    going = learner.begin(passed(family, x[:100], rule)[0], rule, np.float64, None, 100.0)
    going.advance(x[100:], np.ones(len(x) - 100))
    assert_close(going.table, whole)


@pytest.mark.parametrize("name", ["multinomial", "poisson", "bernoulli"])
def test_sparse_rows_pass_as_dense_ones(name: str) -> None:
    family, x = drawn(next(case for case in FAMILIES if case.name == name))
    rule = Rule(threshold=0.01)
    np.testing.assert_array_equal(passed(family, x, rule)[0], passed(family, sparse.csr_array(x), rule)[0])


def test_float32_products_stay_close_and_refuse_what_they_cannot_resolve() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 16)) + 20 * rng.integers(4, size=3000)[:, None]
    x -= x.mean(axis=0)
    family, rule = IsotropicGaussian(1.0, 100.0, np.zeros(16)), Rule()
    tables = []
    for dtype in (np.float64, np.float32):
        going = Conjugate(family, 16).begin(np.zeros((0, 18)), rule, dtype, None, 0.0)
        going.advance(x, np.ones(len(x)))
        tables.append(going.table)
    np.testing.assert_allclose(tables[1], tables[0], rtol=1e-4, atol=1e-2)
    going = Conjugate(family, 16).begin(np.zeros((0, 18)), rule, np.float32, None, 0.0)
    with pytest.raises(PrecisionError, match="float64"):
        going.advance(1e4 * x, np.ones(len(x)))


@CASES
def test_rows_out_of_reach_are_refused_with_a_sentence(case: FamilyCase) -> None:
    if not case.real:
        pytest.skip("counts have no infinite distance")
    family, x = drawn(case)
    with pytest.raises(PrecisionError, match="Standardise"):
        passed(family, np.vstack([x, np.full((1, COLUMNS), np.nan)]), Rule())


@CASES
def test_predictive_of_a_learner_is_the_difference_of_log_evidence(case: FamilyCase) -> None:
    family, x = drawn(case)
    table, _ = passed(family, x, Rule(threshold=0.01))
    found = Conjugate(family, COLUMNS).log_predictive(x[:20], table)
    features = family.features(x[:20])
    for k, stats in enumerate([*table, np.zeros(table.shape[1])]):
        expected = family.log_evidence(stats + features) - family.log_evidence(stats[None])
        np.testing.assert_allclose(found[:, k], expected + family.log_base_measure(x[:20]), rtol=1e-8, atol=1e-8)


def two_dimensional(centres: list[tuple[float, float]], each: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.permutation(np.concatenate([rng.normal(c, 1.0, size=(each, 2)) for c in centres]))


SPHERES = IsotropicGaussian(1.0, 1e4, np.zeros(2))


def growth_of(groups: list[np.ndarray], ids: list[int] | None = None) -> Growth:
    """Components that hold given rows."""
    table = np.stack([SPHERES.features(rows).sum(axis=0) for rows in groups])
    rows = int(table[:, -1].sum())
    names = np.arange(len(groups)) if ids is None else np.array(ids)
    return Growth(table, names, rows, float(rows), rows, 0.0, np.zeros((0, 0)))


LEARNER = Conjugate(SPHERES, 2)


def test_merge_gain_is_the_change_of_the_log_joint_probability() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(30, 2)), rng.normal(0.5, 1.0, size=(20, 2))
    rule = Rule(concentration=2.5)

    def log_joint(groups: list[np.ndarray]) -> float:
        seats = [np.log(rule.concentration) + gammaln(len(rows)) for rows in groups]
        likelihoods = [SPHERES.log_evidence(SPHERES.features(rows).sum(axis=0)[None])[0] for rows in groups]
        return float(sum(seats) + sum(likelihoods))

    table = growth_of([left, right]).table
    gain = merge_gains(table[:1], table[1:], LEARNER, rule)[0]
    assert gain == pytest.approx(log_joint([np.vstack([left, right])]) - log_joint([left, right]), rel=1e-10)


def test_evidence_merges_halves_of_a_cluster_and_keeps_clusters_apart() -> None:
    near, far = two_dimensional([(0, 0)], 200), two_dimensional([(8, 0)], 200, seed=1)
    growth = growth_of([near[:100], far, near[100:]], ids=[5, 7, 9])
    done = examine(growth, LEARNER, Rule(), Tidy(merge=EvidenceTest()))
    assert len(done.table) == 2 and set(done.ids) == {5, 7}
    np.testing.assert_allclose(done.table.sum(axis=0), growth.table.sum(axis=0), rtol=1e-12)


def test_fixed_components_are_neither_pruned_nor_merged_with_one_another() -> None:
    near = two_dimensional([(0, 0)], 300)
    growth = growth_of([near[:2], near[2:150], near[150:]])
    tidy = Tidy(prune=0.1, merge=EvidenceTest())
    done = examine(growth, LEARNER, Rule(), tidy, fixed=2)
    assert len(done.table) == 2 and list(done.ids) == [0, 1]
    assert len(examine(growth, LEARNER, Rule(), tidy).table) == 1


def test_pruning_removes_what_is_rare_and_says_how_much() -> None:
    near, far = two_dimensional([(0, 0)], 500), two_dimensional([(30, 0)], 3)
    growth = growth_of([near, far])
    done = examine(growth, LEARNER, Rule(), Tidy(prune=0.01))
    assert len(done.table) == 1 and done.pruned == 3.0
    assert len(examine(growth, LEARNER, Rule(), Tidy(prune=0.001)).table) == 2
    assert len(examine(growth_of([far]), LEARNER, Rule(), Tidy(prune=0.9)).table) == 1


def test_distances_are_the_mean_differences_of_responsibilities() -> None:
    x = two_dimensional([(0, 0), (3, 0), (0, 3)], 100)
    rule = Rule(threshold=0.01)
    stats, resp, overlap = sequential_pass(SPHERES, x, np.ones(len(x)), rule)
    weights = stats[:, -1] / len(x)
    for a in range(len(stats)):
        for b in range(a):
            direct = np.abs(resp[:, a] - resp[:, b]).mean()
            assert weights[a] + weights[b] - 2 * overlap[a, b] / len(x) == pytest.approx(direct, abs=1e-12)


@pytest.mark.parametrize("relative", [True, False])
def test_the_distance_test_merges_exactly_what_is_closer_than_it_allows(relative: bool) -> None:
    table = np.zeros((4, 4))
    table[:, -1] = [50.0, 40.0, 5.0, 5.0]
    overlap = np.zeros((4, 4))
    overlap[0, 1] = overlap[1, 0] = 0.3
    # 0 and 1: 0.9 - 0.6 = 0.3, relative 0.33; the rare two share nothing: 0.1, relative 1
    pairs = DistanceTest(0.35, relative).pairs(table, overlap, LEARNER, Rule(), 0, np.ones(4, dtype=bool))
    expected = {(0, 1)} if relative else {(0, 1), (2, 3)}
    assert {tuple(pair) for pair in pairs.tolist()} == expected


@pytest.mark.parametrize("merge", [EvidenceTest(), DistanceTest(0.5)], ids=["evidence", "distance"])
def test_looking_costs_a_share_of_the_pass_only(merge, monkeypatch) -> None:
    x = two_dimensional([(0, 0), (6, 0)], 6000)
    tidy, looks = Tidy(1e-4, merge), []
    kept = examine

    def counted(growth, *arguments):
        looks.append(growth.rows)
        return kept(growth, *arguments)

    monkeypatch.setattr("dpdist.sequential.growth.examine", counted)
    blocks = [(x[a : a + 500], np.ones(500)) for a in range(0, len(x), 500)]
    growth = pass_over(blocks, no_growth(LEARNER.width, tidy), LEARNER, Rule(), tidy, np.float64)
    assert len(growth.table) == 2 or merge.tracks
    assert looks[0] == tidy.first
    gaps = np.diff(looks)
    assert (gaps >= 0.25 * np.array(looks[:-1]) - 1).all() and len(looks) < 15


def test_looks_fall_on_the_same_rows_whatever_the_blocks() -> None:
    x = two_dimensional([(0, 0), (4, 0), (0, 4)], 1500)
    tidy, rule = Tidy(1e-4, EvidenceTest()), Rule()

    def table(block: int) -> np.ndarray:
        blocks = [(x[a : a + block], np.ones(len(x[a : a + block]))) for a in range(0, len(x), block)]
        return pass_over(blocks, no_growth(LEARNER.width, tidy), LEARNER, rule, tidy, np.float64).table

    for block in (311, 4500):
        assert_close(table(block), table(1000))


def test_combining_adds_shared_components_and_merges_the_same_new_ones() -> None:
    old, new = two_dimensional([(0, 0)], 100), two_dimensional([(9, 0)], 200, seed=1)
    more = two_dimensional([(0, 0)], 60, seed=2)
    base = growth_of([old])
    left = growth_of([np.vstack([old, more[:30]]), new[:100]], ids=[0, -1])
    right = growth_of([np.vstack([old, more[30:]]), new[100:]], ids=[0, -1])
    found = combine([left, right], base, LEARNER, Rule())
    expected = growth_of([np.vstack([old, more]), new])
    np.testing.assert_allclose(found.table, expected.table, rtol=1e-10)
    assert found.rows == 360 and list(found.ids) == [0, -1]


def test_combining_keeps_different_new_components() -> None:
    old = two_dimensional([(0, 0)], 100)
    places = [(9.0, 0.0), (0.0, 9.0), (-9.0, 0.0)]
    parts = [growth_of([old, two_dimensional([place], 50, seed=3)], ids=[0, -1]) for place in places]
    assert len(combine(parts, growth_of([old]), LEARNER, Rule()).table) == 4


def test_combined_overlaps_are_sums_over_both_sides() -> None:
    x = two_dimensional([(0, 0), (3, 0)], 200)
    rule, tidy = Rule(threshold=0.01), Tidy(merge=DistanceTest(1e-9))
    base = pass_over([(x[:200], np.ones(200))], no_growth(4, tidy), LEARNER, rule, tidy, np.float64)
    halves = [x[200:300], x[300:]]
    parts = [pass_over([(h, np.ones(100))], base, LEARNER, rule, tidy, np.float64, len(base.table)) for h in halves]
    both, shared = combine(parts, base, LEARNER, rule), len(base.table)
    found = sum(part.overlap[:shared, :shared] for part in parts) - base.overlap
    np.testing.assert_allclose(both.overlap[:shared, :shared], found, atol=1e-9)
    assert both.overlap.shape == (len(both.table), len(both.table))


def test_pairs_are_disjoint_and_the_best_first() -> None:
    pairs = np.array([[0, 1], [1, 2], [2, 3], [4, 5]])
    found = disjoint(pairs, np.array([1.0, 5.0, 2.0, -1.0]), 0.0)
    assert found.tolist() == [[1, 2]]
    assert likely_pairs(np.zeros((1, 1)), 3).shape == (0, 2)


def test_predictive_with_the_new_component_integrates_to_one() -> None:
    x = two_dimensional([(0, 0), (4, 0)], 60)
    table, _ = passed(SPHERES, x, Rule())
    family = IsotropicGaussian(1.0, 9.0, np.zeros(2))
    table = table * 1.0
    axis = np.arange(-40.0, 40.0, 0.1)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    weights = np.append(table[:, -1], 1.0)
    predictive = Conjugate(family, 2).log_predictive(grid, table) + np.log(weights / weights.sum())
    assert np.exp(logsumexp(predictive)) * 0.01 == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"concentration": 0.0},
        {"concentration": np.inf},
        {"threshold": 0.0},
        {"threshold": 1.0},
        {"floor": -1.0},
        {"max_components": 0},
    ],
    ids=str,
)
def test_rules_outside_their_range_are_refused(wrong) -> None:
    with pytest.raises(InputError, match="should"):
        Rule(**wrong)
