"""Sequential passes: compiled equals obvious, for every family and any blocks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.special import logsumexp

from dpdist import InputError, PrecisionError
from dpdist.inference.sva import Conjugate, OpeningRule
from dpdist.inference.sva.conjugate import PASSES, IsotropicGaussianPass, PlainPass
from dpdist.models.families import Family, IsotropicGaussian
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
    family: Family, x, rule: OpeningRule, weights: np.ndarray | None = None, block: int = 1000, track: bool = False
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
@pytest.mark.parametrize("floor", [0.0, 1e-8])
def test_compiled_passes_equal_the_reference_whatever_the_blocks(case: FamilyCase, floor: float) -> None:
    family, x = drawn(case)
    rule = OpeningRule(concentration=1.0, threshold=0.01, floor=floor)
    stats, _, overlap = sequential_pass(family, x, np.ones(len(x)), rule)
    assert len(stats) > 1
    for block in (1000, 7, 1):
        table, tracked = passed(family, x, rule, block=block, track=True)
        assert_close(table, stats)
        assert_close(tracked, overlap)


RULES = [
    OpeningRule(threshold=0.01),
    OpeningRule(concentration=5.0, threshold=0.3, floor=1e-3),
    OpeningRule(threshold=1e-6, floor=0.0, max_components=2),
]


@CASES
@pytest.mark.parametrize("rule", RULES, ids=["few", "floor", "bound"])
def test_the_plain_pass_comes_to_what_the_compiled_one_does(case: FamilyCase, rule: OpeningRule) -> None:
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


def test_the_isotropic_pass_does_not_depend_on_its_inner_block(monkeypatch) -> None:
    case = next(case for case in FAMILIES if case.name == "isotropic_gaussian")
    family, x = drawn(case)
    rule = OpeningRule(threshold=0.01)
    stats, _, _ = sequential_pass(family, x, np.ones(len(x)), rule)
    for block in (1, 2, 64, 200):
        monkeypatch.setattr(IsotropicGaussianPass, "block", block)
        monkeypatch.setattr(IsotropicGaussianPass, "margin", block + 1)
        assert_close(passed(family, x, rule)[0], stats)


@CASES
def test_row_weights_enter_as_repetition_of_what_a_row_adds(case: FamilyCase) -> None:
    family, x = drawn(case)
    weights = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], size=len(x))
    rule = OpeningRule(threshold=0.01)
    stats, _, _ = sequential_pass(family, x, weights, rule)
    table, _ = passed(family, x, rule, weights)
    assert_close(table, stats)
    assert table[:, -1].sum() == pytest.approx(weights.sum(), rel=1e-12)


@CASES
def test_a_bound_on_the_components_is_kept(case: FamilyCase) -> None:
    family, x = drawn(case)
    rule = OpeningRule(threshold=1e-6, max_components=2)
    stats, _, _ = sequential_pass(family, x, np.ones(len(x)), rule)
    table, _ = passed(family, x, rule)
    assert len(table) == 2
    assert_close(table, stats)


@CASES
def test_a_pass_begun_from_a_table_goes_on_as_if_it_had_not_stopped(case: FamilyCase) -> None:
    family, x = drawn(case)
    rule, learner = OpeningRule(threshold=0.01), Conjugate(family, COLUMNS)
    whole, _ = passed(family, x, rule)
    going = learner.begin(passed(family, x[:100], rule)[0], rule, np.float64, None, 100.0)
    going.advance(x[100:], np.ones(len(x) - 100))
    assert_close(going.table, whole)


@pytest.mark.parametrize("name", ["multinomial", "poisson", "bernoulli"])
def test_sparse_rows_pass_as_dense_ones(name: str) -> None:
    family, x = drawn(next(case for case in FAMILIES if case.name == name))
    rule = OpeningRule(threshold=0.01)
    np.testing.assert_array_equal(passed(family, x, rule)[0], passed(family, sparse.csr_array(x), rule)[0])


def test_float32_products_stay_close_and_refuse_what_they_cannot_resolve() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 16)) + 20 * rng.integers(4, size=3000)[:, None]
    x -= x.mean(axis=0)
    family, rule = IsotropicGaussian(1.0, 100.0, np.zeros(16)), OpeningRule()
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
        passed(family, np.vstack([x, np.full((1, COLUMNS), np.nan)]), OpeningRule())


@CASES
def test_predictive_of_a_learner_is_the_difference_of_log_evidence(case: FamilyCase) -> None:
    family, x = drawn(case)
    table, _ = passed(family, x, OpeningRule(threshold=0.01))
    found = Conjugate(family, COLUMNS).log_predictive(x[:20], table)
    features = family.features(x[:20])
    for k, stats in enumerate([*table, np.zeros(table.shape[1])]):
        expected = family.log_evidence(stats + features) - family.log_evidence(stats[None])
        np.testing.assert_allclose(found[:, k], expected + family.log_base_measure(x[:20]), rtol=1e-8, atol=1e-8)


def test_predictive_with_the_new_component_integrates_to_one() -> None:
    rng, family = np.random.default_rng(0), IsotropicGaussian(1.0, 9.0, np.zeros(2))
    x = rng.permutation(np.concatenate([rng.normal(c, 1.0, size=(60, 2)) for c in (0.0, 4.0)]))
    table, _ = passed(family, x, OpeningRule())
    axis = np.arange(-40.0, 40.0, 0.25)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    weights = np.append(table[:, -1], 1.0)
    predictive = Conjugate(family, 2).log_predictive(grid, table) + np.log(weights / weights.sum())
    assert np.exp(logsumexp(predictive)) * 0.25**2 == pytest.approx(1.0, abs=1e-4)


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
        OpeningRule(**wrong)
