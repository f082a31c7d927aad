"""Laws of every likelihood family."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dpdist.core.errors import InputError, PrecisionError
from dpdist.models.families import FAMILIES as KNOWN
from dpdist.models.families import (
    Bernoulli,
    DiagonalGaussian,
    Family,
    Gaussian,
    IsotropicGaussian,
    Moments,
    Multinomial,
    Poisson,
    ZeroMeanGaussian,
    wishart,
)
from dpdist.storage.descriptions import KNOWN as DESCRIBED
from tests.cases import FAMILIES, FamilyCase, count_rows, filled, moments_of, real_rows
from tests.reference import REFERENCES, reference_of

SEEDS = st.integers(0, 2**32 - 1)
COLUMNS = st.integers(1, 4)

every_family = pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
real_families = pytest.mark.parametrize("case", [c for c in FAMILIES if c.real], ids=lambda case: case.name)
sparse_families = pytest.mark.parametrize("case", [c for c in FAMILIES if c.sparse], ids=lambda case: case.name)
located_families = pytest.mark.parametrize(
    "case", [c for c in FAMILIES if c.make.has_location], ids=lambda case: case.name
)


class Setting:
    """Rows, a family with a prior of its own or by defaults, features, statistics of random responsibilities."""

    def __init__(
        self, case: FamilyCase, seed: int, n: int = 40, d: int = 3, k: int = 3, defaults: bool | None = None
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.rows = case.rows(self.rng, n, d)
        by_defaults = self.rng.random() < 0.3 if defaults is None else defaults
        self.family = filled(case, self.rows, **({} if by_defaults else case.prior(self.rng, d)))
        self.features = self.family.features(self.rows)
        self.resp = self.rng.dirichlet(np.ones(k), size=n)
        self.stats = self.resp.T @ self.features


def test_the_registry_holds_every_family() -> None:
    assert {case.name for case in FAMILIES} == set(KNOWN) == set(REFERENCES)
    assert all(KNOWN[case.name] is case.make for case in FAMILIES)


@every_family
@given(seed=SEEDS, d=COLUMNS)
def test_the_evidence_of_no_rows_is_zero(case, seed, d) -> None:
    setting = Setting(case, seed, d=d)
    np.testing.assert_allclose(setting.family.log_evidence(np.zeros_like(setting.stats)), 0.0, atol=1e-9)


@every_family
@given(seed=SEEDS, d=COLUMNS)
def test_coefficients_are_the_gradient_of_log_evidence(case, seed, d) -> None:
    setting = Setting(case, seed, d=d)
    found = setting.family.coefficients(setting.stats)
    assert found.shape == setting.stats.T.shape
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, numeric_gradient(setting.family, setting.stats), rtol=1e-5, atol=1e-5)


def numeric_gradient(family: Family, stats: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """Central differences of fourth order of the log evidence, (F, K)."""

    def difference(h: np.ndarray) -> np.ndarray:
        return family.log_evidence(stats + h) - family.log_evidence(stats - h)

    steps = step * np.eye(stats.shape[1])
    return np.stack([(8 * difference(h) - difference(2 * h)) / (12 * step) for h in steps])


@every_family
@given(seed=SEEDS)
def test_components_do_not_see_each_other(case, seed) -> None:
    setting = Setting(case, seed)
    alone = [setting.family.log_evidence(row[None])[0] for row in setting.stats]
    np.testing.assert_allclose(setting.family.log_evidence(setting.stats), alone, rtol=1e-12)
    columns = [setting.family.coefficients(row[None])[:, 0] for row in setting.stats]
    np.testing.assert_allclose(setting.family.coefficients(setting.stats), np.stack(columns, axis=1), rtol=1e-9)


@every_family
@given(seed=SEEDS, d=COLUMNS)
def test_the_log_evidence_is_convex(case, seed, d) -> None:
    setting = Setting(case, seed, d=d, k=2)
    ends = setting.family.log_evidence(setting.stats)
    middle = setting.family.log_evidence(setting.stats.mean(axis=0, keepdims=True))[0]
    assert middle <= ends.mean() + 1e-9 * np.abs(ends).max()


@every_family
@given(seed=SEEDS, d=COLUMNS)
def test_evidence_is_the_product_of_predictives_in_any_order(case, seed, d) -> None:
    setting = Setting(case, seed, n=15, d=d)
    whole = setting.family.log_evidence(setting.features.sum(axis=0)[None])[0]
    for order in (np.arange(15), setting.rng.permutation(15)):
        assert chain(setting.family, setting.features[order]) == pytest.approx(whole, rel=1e-8, abs=1e-7)


def chain(family: Family, features: np.ndarray) -> float:
    """Sum of log predictives, each row given those before it."""
    stats, total = np.zeros((1, features.shape[1])), 0.0
    for row in features:
        total += float(family.log_predictive(row[None], stats)[0, 0])
        stats = stats + row
    return total


@every_family
@given(seed=SEEDS, d=COLUMNS)
def test_evidence_agrees_with_predictives_of_the_textbook(case, seed, d) -> None:
    setting = Setting(case, seed, n=12, d=d)
    found = setting.family.log_evidence(setting.features.sum(axis=0)[None])[0]
    found += setting.family.log_base_measure(setting.rows).sum()
    assert found == pytest.approx(reference_of(setting.family).log_evidence(setting.rows), rel=1e-8, abs=1e-7)


@every_family
@given(seed=SEEDS, d=COLUMNS)
def test_predictive_agrees_with_the_textbook_under_soft_responsibilities(case, seed, d) -> None:
    setting = Setting(case, seed, d=d)
    brute, asked = reference_of(setting.family), slice(8)
    found = setting.family.log_predictive(setting.features[asked], setting.stats)
    found += setting.family.log_base_measure(setting.rows[asked])[:, None]
    for k, share in enumerate(setting.resp.T):
        posterior = brute.posterior(setting.rows, share)
        expected = [brute.log_predictive(posterior, row) for row in setting.rows[asked]]
        np.testing.assert_allclose(found[:, k], expected, rtol=1e-8, atol=1e-8)


@every_family
@given(seed=SEEDS, d=COLUMNS)
def test_predictive_equals_the_difference_of_evidences(case, seed, d) -> None:
    setting = Setting(case, seed, d=d)
    stats = np.concatenate([setting.stats, np.zeros((1, setting.stats.shape[1]))])
    found = setting.family.log_predictive(setting.features, stats)
    assert found.shape == (len(setting.rows), 4)
    np.testing.assert_allclose(found, Family.log_predictive(setting.family, setting.features, stats), atol=1e-8)
    alone = Family.log_predictive(setting.family, setting.features[:2], stats)
    np.testing.assert_allclose(found[:2], alone, atol=1e-8)


@every_family
@given(seed=SEEDS, d=COLUMNS)
def test_coefficients_give_the_expected_log_likelihood_of_the_textbook(case, seed, d) -> None:
    setting = Setting(case, seed, d=d)
    brute = reference_of(setting.family)
    found = setting.features @ setting.family.coefficients(setting.stats)
    found += setting.family.log_base_measure(setting.rows)[:, None]
    for k, share in enumerate(setting.resp.T):
        expected = brute.expected_log_likelihood(brute.posterior(setting.rows, share), setting.rows)
        np.testing.assert_allclose(found[:, k], expected, rtol=1e-8, atol=1e-8)


@real_families
@given(seed=SEEDS)
def test_predictive_density_integrates_to_one(case, seed) -> None:
    setting = Setting(case, seed, n=12, d=1)
    stats = np.concatenate([np.zeros((1, setting.stats.shape[1])), setting.stats])
    grid = np.linspace(-25.0, 25.0, 4001)
    points = setting.rows.mean() + np.sinh(grid)
    density = np.exp(setting.family.log_predictive(setting.family.features(points[:, None]), stats))
    mass = (density * np.cosh(grid)[:, None]).sum(axis=0) * (grid[1] - grid[0])
    np.testing.assert_allclose(mass, 1.0, rtol=1e-6)


def all_rows(name: str, setting: Setting) -> np.ndarray:
    """Every row that can be, for three columns (counts up to where nothing is left, totals of five)."""
    if name == "bernoulli":
        return np.array(list(itertools.product([0.0, 1.0], repeat=3)))
    if name == "multinomial":
        return np.array([row for row in itertools.product(range(6), repeat=3) if sum(row) == 5], dtype=float)
    return np.arange(3000.0)[:, None]


@sparse_families
@given(seed=SEEDS)
def test_predictive_probabilities_sum_to_one(case, seed) -> None:
    setting = Setting(case, seed, n=12, d=1 if case.name == "poisson" else 3)
    stats = np.concatenate([np.zeros((1, setting.stats.shape[1])), setting.stats])
    rows = all_rows(case.name, setting)
    logs = setting.family.log_predictive(setting.family.features(rows), stats)
    logs += setting.family.log_base_measure(rows)[:, None]
    np.testing.assert_allclose(np.exp(logs).sum(axis=0), 1.0, rtol=1e-8)


@located_families
@given(seed=SEEDS, d=COLUMNS)
def test_moving_rows_and_prior_to_another_origin_changes_nothing(case, seed, d) -> None:
    setting = Setting(case, seed, d=d)
    origin = setting.rng.normal(size=d)
    moved = setting.family.about(origin)
    features = moved.features(setting.rows - origin)
    stats = setting.resp.T @ features
    np.testing.assert_allclose(moved.log_evidence(stats), setting.family.log_evidence(setting.stats), rtol=1e-8)
    logits = setting.features @ setting.family.coefficients(setting.stats)
    np.testing.assert_allclose(features @ moved.coefficients(stats), logits, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("case", [c for c in FAMILIES if c.make.turns], ids=lambda case: case.name)
@given(seed=SEEDS, d=COLUMNS)
def test_turning_rows_and_prior_changes_nothing(case, seed, d) -> None:
    setting = Setting(case, seed, d=d)
    axes = np.linalg.qr(setting.rng.normal(size=(d, d)))[0]
    turned = setting.family.turned(axes)
    features = turned.features(setting.rows @ axes)
    stats = setting.resp.T @ features
    np.testing.assert_allclose(turned.log_evidence(stats), setting.family.log_evidence(setting.stats), rtol=1e-8)
    logits = setting.features @ setting.family.coefficients(setting.stats)
    np.testing.assert_allclose(features @ turned.coefficients(stats), logits, rtol=1e-8, atol=1e-8)


def test_families_without_location_stay_where_they_are() -> None:
    for case in FAMILIES:
        setting = Setting(case, 0)
        if not case.make.has_location:
            assert setting.family.about(np.ones(3)) is setting.family


@real_families
@given(seed=SEEDS, d=COLUMNS)
def test_defaults_follow_the_scale_of_the_data(case, seed, d) -> None:
    setting = Setting(case, seed, d=d, defaults=True)
    family = filled(case, 1000 * setting.rows)
    features = family.features(1000 * setting.rows)
    stats = setting.resp.T @ features
    change = features @ family.coefficients(stats) - setting.features @ setting.family.coefficients(setting.stats)
    np.testing.assert_allclose(change, -d * np.log(1000), rtol=1e-7)
    evidence = family.log_evidence(stats) - setting.family.log_evidence(setting.stats)
    np.testing.assert_allclose(evidence, -d * np.log(1000) * setting.resp.sum(axis=0), rtol=1e-7)


@sparse_families
@given(seed=SEEDS, d=COLUMNS)
def test_dense_and_sparse_rows_give_the_same(case, seed, d) -> None:
    setting = Setting(case, seed, d=d)
    rows = sparse.csr_array(setting.rows)
    family = setting.family
    features = family.features(rows)
    assert sparse.issparse(features)
    np.testing.assert_array_equal(features.toarray(), setting.features)
    np.testing.assert_allclose(family.log_base_measure(rows), setting.family.log_base_measure(setting.rows), rtol=1e-12)
    np.testing.assert_allclose(family.points(rows).toarray(), setting.family.points(setting.rows), rtol=1e-12)
    np.testing.assert_allclose(
        family.log_predictive(features, setting.stats),
        setting.family.log_predictive(setting.features, setting.stats),
        rtol=1e-10,
    )


@every_family
def test_features_end_in_a_one_in_either_precision(case) -> None:
    setting = Setting(case, 1)
    for dtype in (np.float32, np.float64):
        features = setting.family.features(setting.rows, dtype)
        assert features.dtype == dtype
        assert (features[:, -1] == 1).all()
        np.testing.assert_allclose(features, setting.features, rtol=1e-5)


@pytest.mark.parametrize("family", [Gaussian, ZeroMeanGaussian, DiagonalGaussian, IsotropicGaussian])
@pytest.mark.parametrize(
    "rows",
    [np.array([[200, 3]], np.uint8), np.array([[4_000_000_000, 3]]), np.array([[1e25, 3]], np.float32)],
    ids=["bytes", "integers", "float32"],
)
def test_features_of_any_type_of_numbers_are_those_of_float64(family, rows) -> None:
    np.testing.assert_array_equal(family().features(rows), family().features(rows.astype(np.float64)))


@pytest.mark.parametrize("family", [Gaussian, ZeroMeanGaussian])
@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e9])
def test_a_scale_is_symmetric_but_for_rounding_in_any_unit(family, unit) -> None:
    moments = moments_of(np.random.default_rng(0).normal(size=(30, 2)))
    rounded = np.array([[4.0, 1e-3], [1e-3 * (1 + 1e-12), 1e-6]]) * unit
    scale = family(scale=rounded).with_defaults(moments).scale
    np.testing.assert_array_equal(scale, scale.T)
    np.testing.assert_allclose(scale, rounded, rtol=1e-12)
    for apart in ([[1.0, 0.9], [0.0, 1.0]], [[1.0, 0.0], [0.9, 1.0]]):
        with pytest.raises(InputError, match="symmetric 2x2 matrix"):
            family(scale=np.array(apart) * unit).with_defaults(moments)


@every_family
def test_descriptions_have_the_dimensions_they_declare(case) -> None:
    setting = Setting(case, 2)
    sizes = {"component": 3, "column": 3, "column_2": 3}
    for name, (dims, values) in setting.family.describe(setting.stats).items():
        assert DESCRIBED[name].dims == dims
        assert values.shape == tuple(sizes[dim] for dim in dims)
        assert np.isfinite(values).all()


@every_family
@given(seed=SEEDS, d=COLUMNS)
def test_descriptions_are_the_posterior_means_of_the_textbook(case, seed, d) -> None:
    setting = Setting(case, seed, d=d)
    brute = reference_of(setting.family)
    found = setting.family.describe(setting.stats)
    for k, share in enumerate(setting.resp.T):
        expected = brute.means(brute.posterior(setting.rows, share))
        assert found.keys() == expected.keys()
        for name, (_, values) in found.items():
            np.testing.assert_allclose(values[k], expected[name], rtol=1e-8, atol=1e-10)


@every_family
@pytest.mark.parametrize("defaults", [True, False])
def test_draws_have_the_moments_of_the_posterior_predictive(case, defaults) -> None:
    setting, count = Setting(case, 4, n=4, k=1, defaults=defaults), 20_000
    components = setting.rng.permutation(np.repeat([0, 1, 2], count))
    stats = np.concatenate([np.zeros_like(setting.stats), setting.stats, 9 * setting.stats])
    draws = setting.family.sample(stats, components, setting.rng)[components == 1]
    brute = reference_of(setting.family)
    posterior = brute.posterior(setting.rows, np.ones(4))
    mean, variance = brute.predictive_moments(posterior, np.rint(setting.rows.sum() / 4))
    assert draws.shape == (count, 3)
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - mean), 5 * np.sqrt(variance / count))
    np.testing.assert_allclose(draws.var(axis=0), variance, rtol=0.08)


@every_family
def test_a_family_is_its_hyperparameters(case) -> None:
    setting = Setting(case, 5)
    again = case.make(**setting.family.hyperparameters())
    np.testing.assert_array_equal(again.log_evidence(setting.stats), setting.family.log_evidence(setting.stats))


DEFAULTS = {
    "gaussian": {"mean_precision": 1e-4, "degrees_of_freedom": 4.0, "mean": [2.0, 4.0], "scale": np.diag([0.1, 0.9])},
    "zero_mean_gaussian": {"degrees_of_freedom": 4.0, "scale": np.diag([0.5, 2.5])},
    "diagonal_gaussian": {"mean_precision": 1e-4, "shape": 1.5, "mean": [2.0, 4.0], "rate": [0.05, 0.45]},
    "isotropic_gaussian": {"variance": 0.5, "mean_variance": 5.0, "mean": [2.0, 4.0]},
    "multinomial": {"pseudocount": [0.5, 0.5]},
    "bernoulli": {"ones": [0.5, 0.5], "zeros": [0.5, 0.5]},
    "poisson": {"shape": [1.0, 1.0], "rate": [0.5, 0.25]},
}


@every_family
def test_defaults_are_those_documented(case) -> None:
    moments = Moments(10.0, np.array([2.0, 4.0]), np.array([1.0, 9.0]), np.zeros(2), np.full(2, 9.0), True)
    found = case.make().with_defaults(moments).hyperparameters()
    assert found.keys() == DEFAULTS[case.name].keys()
    for name, value in DEFAULTS[case.name].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12)


@every_family
@given(seed=SEEDS, d=COLUMNS)
def test_defaults_leave_given_hyperparameters_alone(case, seed, d) -> None:
    setting = Setting(case, seed, d=d)
    prior, other = case.prior(setting.rng, d), moments_of(case.rows(setting.rng, 30, d))
    again = setting.family.with_defaults(other)
    for name, value in setting.family.hyperparameters().items():
        np.testing.assert_array_equal(getattr(again, name), value)
    for name, value in prior.items():
        alone = getattr(case.make(**{name: value}).with_defaults(other), name)
        np.testing.assert_array_equal(alone, np.broadcast_to(value, np.shape(alone)))


#: What defaults leave of the moments to the prior's own means, and a hyperparameter that must not matter to it.
EXPECTED = {
    "gaussian": ("covariance", lambda m: 0.1 * np.diag(m.variance), {"degrees_of_freedom": 9.5}),
    "zero_mean_gaussian": (
        "covariance",
        lambda m: 0.1 * np.diag(m.variance + m.mean**2),
        {"degrees_of_freedom": 9.5},
    ),
    "diagonal_gaussian": ("variance", lambda m: 0.1 * m.variance, {"shape": 4.5}),
    "isotropic_gaussian": ("mean", lambda m: m.mean, {"variance": 4.5}),
    "multinomial": ("probability", lambda m: np.full(3, 1 / 3), {"pseudocount": 2.5}),
    "bernoulli": ("probability", lambda m: np.full(3, 0.75), {"ones": 1.5}),
    "poisson": ("rate", lambda m: m.mean, {"shape": 2.5}),
}


@every_family
def test_defaults_put_the_prior_where_they_say_whatever_else_is_given(case) -> None:
    name, expected, given = EXPECTED[case.name]
    rows = case.rows(np.random.default_rng(7), 40, 3)
    moments = moments_of(rows)
    for prior in ({}, given):
        if case.name == "bernoulli" and not prior:
            continue
        family = filled(case, rows, **prior)
        nothing = np.zeros((1, family.features(rows).shape[1]))
        np.testing.assert_allclose(family.describe(nothing)[name][1][0], expected(moments), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("case", "given"),
    [(case, given) for case in FAMILIES for given in case.refused],
    ids=lambda value: value.name if isinstance(value, FamilyCase) else next(iter(value)),
)
def test_hyperparameters_out_of_range_are_refused_in_a_sentence(case, given) -> None:
    rows = case.rows(np.random.default_rng(0), 30, 3)
    with pytest.raises(InputError, match=r"should .*\.$") as refusal:
        filled(case, rows, **given)
    assert next(iter(given)) in str(refusal.value)


@pytest.mark.parametrize("family", [Multinomial, Poisson, Bernoulli])
@pytest.mark.parametrize("value", [-1.0, 0.5, 2.0])
def test_entries_outside_the_domain_are_refused_in_a_sentence(family, value) -> None:
    rows = np.zeros((20, 3))
    rows[7, 1] = value
    moments = moments_of(rows)
    if value == 2.0 and family is not Bernoulli:
        family().check_moments(moments)
    else:
        with pytest.raises(InputError, match=r"\w.* or choose .*\.$"):
            family().check_moments(moments)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("family", [Multinomial, Poisson, Bernoulli])
@pytest.mark.parametrize("value", [-1.0, 0.5, 2.0, 1.0, 2.0**31])
def test_rows_outside_the_domain_are_refused_by_their_place(family, value, kind) -> None:
    rows = np.zeros((20, 3))
    rows[2, 0] = rows[7, 1] = rows[9, 2] = 1.0
    rows[7, 2] = value
    if value == 1.0 or (value == 2.0 and family is not Bernoulli):
        family().check_rows(kind(rows), range(100, 120))
    else:
        with pytest.raises(
            InputError, match=rf"{family.__name__} needs .*; row 107 has .* {re.escape(f'{value:g}')}\."
        ):
            family().check_rows(kind(rows), range(100, 120))


def test_one_light_entry_of_two_among_millions_is_not_binary() -> None:
    rows, weights = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 2.0]]), np.array([1e9, 1e9, 1e-9])
    with pytest.raises(InputError, match="entries of 0 or 1; column 1 has the maximum 2"):
        Bernoulli().check_moments(moments_of(rows, weights))
    Bernoulli().check_moments(moments_of(rows, weights * [1, 1, 0]))  # no row at all


@real_families
def test_real_families_take_any_numbers(case) -> None:
    case.make().check_moments(moments_of(np.array([[-1.5, 0.25], [2.0, 1e9]])))


@located_families
@given(seed=SEEDS)
def test_a_mean_far_from_zero_costs_no_digits_about_the_mean(case, seed) -> None:
    far = 1e8 + real_rows(np.random.default_rng(seed), 60, 3)
    assert np.abs(evidence_about_mean(case, far) - evidence_about_mean(case, far - 1e8)) < 1e-4


def evidence_about_mean(case: FamilyCase, rows: np.ndarray) -> float:
    """Log evidence of all rows as a run computes it: about their own mean."""
    mean = moments_of(rows).mean
    family = filled(case, rows).about(mean)
    return float(family.log_evidence(family.features(rows - mean).sum(axis=0)[None])[0])


@pytest.mark.parametrize("distance", [2e6, 1e8])
@pytest.mark.parametrize("name", ["gaussian", "diagonal_gaussian"])
def test_second_moments_lost_to_rounding_are_an_error(name, distance) -> None:
    case = next(case for case in FAMILIES if case.name == name)
    far = distance + real_rows(np.random.default_rng(0), 60, 3)
    family = filled(case, far)
    stats = family.features(far).sum(axis=0)[None]
    for method in (family.log_evidence, family.coefficients, family.describe):
        with pytest.raises(PrecisionError, match=r"lost its precision.*Standardise the columns .*\.$"):
            method(stats)


@pytest.mark.parametrize("case", [c for c in FAMILIES if c.make.turns], ids=lambda case: case.name)
def test_the_evidence_of_nearly_collinear_columns_is_right_or_an_error(case) -> None:
    rng, shear, refused = np.random.default_rng(0), np.array([[1.0, 1.0], [0.0, 1.0]]), []
    for narrow in 10.0 ** -np.arange(8):
        apart = rng.normal(size=(200, 2)) * [10.0, narrow]
        apart -= apart.mean(axis=0)
        alone, sheared = (
            filled(case, apart, scale=scale)
            for scale in (np.diag([1.0, narrow**2]), shear.T @ np.diag([1.0, narrow**2]) @ shear)
        )
        expected = alone.log_evidence(alone.features(apart).sum(axis=0)[None])
        try:
            found = sheared.log_evidence(sheared.features(apart @ shear).sum(axis=0)[None])
        except PrecisionError as error:
            refused.append(narrow)
            assert "columns are nearly collinear" in str(error)
        else:
            np.testing.assert_allclose(found, expected, atol=0.5 * wishart.LOST * len(apart))
    assert 10.0**-7 in refused and 10.0**-4 not in refused


@located_families
@pytest.mark.parametrize("looseness", [1e-4, 1e-13])
def test_the_evidence_under_a_far_prior_mean_is_right_or_an_error(case, looseness) -> None:
    rows, refused = real_rows(np.random.default_rng(0), 40, 2), []
    rows -= rows.mean(axis=0)
    known = filled(case, rows, mean=0.0)
    for distance in 10.0 ** np.arange(10):
        held = {"mean": np.full(2, distance)}
        for name, value in (("mean_precision", looseness), ("mean_variance", distance**2 / looseness)):
            held |= {name: value} if name in known.hyperparameters() else {}
        family = replace(known, **held)
        try:
            found = family.log_evidence(family.features(rows).sum(axis=0)[None])[0]
        except PrecisionError as error:
            refused.append(distance)
            assert "prior mean" in str(error) and "a mean near the rows" in str(error)
        else:
            assert found == pytest.approx(reference_of(family).log_evidence(rows), abs=wishart.LOST * rows.size)
    assert 1e4 not in refused


@pytest.mark.parametrize("distance", [2e6, 1e8])
def test_squares_lost_to_rounding_are_an_error_of_the_evidence(distance) -> None:
    case = next(case for case in FAMILIES if case.name == "isotropic_gaussian")
    far = distance + real_rows(np.random.default_rng(0), 60, 3)
    family = filled(case, far)
    with pytest.raises(PrecisionError, match=r"lost its precision.*Standardise the columns .*\.$"):
        family.log_evidence(family.features(far).sum(axis=0)[None])


def test_a_scatter_that_is_not_positive_definite_is_an_error() -> None:
    setting = Setting(next(case for case in FAMILIES if case.name == "zero_mean_gaussian"), 0)
    with pytest.raises(PrecisionError, match=r"component 1 .*lost its precision"):
        setting.family.log_evidence(setting.stats * np.array([[1.0], [-1.0], [1.0]]))


@every_family
@pytest.mark.parametrize("constant", ["a column", "every column"])
def test_columns_that_do_not_vary_are_no_obstacle(case, constant) -> None:
    rows = case.rows(np.random.default_rng(0), 40, 3)
    rows[:, 1 if constant == "a column" else slice(None)] = 0.0 if case.sparse else 7.0
    mean = moments_of(rows).mean
    family = filled(case, rows)
    if family.has_location:
        family, rows = family.about(mean), rows - mean
    stats = np.stack([np.zeros(family.features(rows).shape[1]), family.features(rows).sum(axis=0)])
    assert np.isfinite(family.log_evidence(stats)).all()
    assert np.isfinite(family.features(rows) @ family.coefficients(stats)).all()
    assert np.isfinite(family.log_predictive(family.features(rows), stats)).all()


def test_zero_variances_take_the_mean_of_the_others() -> None:
    moments = Moments(10.0, np.zeros(3), np.array([2.0, 0.0, 4.0]), np.zeros(3), np.ones(3), False)
    np.testing.assert_array_equal(moments.spread(), [2.0, 3.0, 4.0])
    np.testing.assert_array_equal(replace(moments, variance=np.zeros(3)).spread(), np.ones(3))


def test_points_of_counts_are_proportions() -> None:
    rows = count_rows(np.random.default_rng(0), 20, 4)
    rows[3] = 0.0
    sums = Multinomial().points(rows).sum(axis=1)
    np.testing.assert_allclose(sums, (rows.sum(axis=1) > 0).astype(float))
