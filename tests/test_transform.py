"""Laws of what is done to rows before the model sees them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dpdist import DPMixture
from dpdist.core.errors import InputError
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.data_summary import DataSummary, summarise_source
from dpdist.inference.transform import Preparation, Transform, TransformPlan
from dpdist.models.families import Bernoulli, Multinomial, Poisson
from tests.cases import moments_of, real_rows

SEEDS = st.integers(0, 2**32 - 1)
PLANS = [
    TransformPlan(),
    TransformPlan(center=True),
    TransformPlan(scale=True),
    TransformPlan(center=True, scale=True),
    TransformPlan(pca=3),
    TransformPlan(pca=5),
    TransformPlan(scale=True, pca=2),
]

every_plan = pytest.mark.parametrize("plan", PLANS, ids=str)


def fitted_transform(rows, plan: TransformPlan, weights=None) -> DataSummary:
    """The survey that a plan needs."""
    return summarise_source(ArraySource(rows, weights, 17), SerialBackend(), products=plan.pca is not None)


def scaled_rows(seed: int, n: int = 60) -> np.ndarray:
    """Rows whose columns differ in scale."""
    return real_rows(np.random.default_rng(seed), n, 5) * np.array([1.0, 5.0, 0.2, 2.0, 10.0])


@every_plan
@given(seed=SEEDS, weighted=st.booleans())
def test_moments_of_transformed_rows_follow_from_the_survey_of_raw_ones(plan, seed, weighted) -> None:
    rows = scaled_rows(seed)
    weights = np.random.default_rng(seed).uniform(0.1, 3, 60) if weighted else None
    data_summary = fitted_transform(rows, plan, weights)
    transform = plan.fit(data_summary)
    found, expected = transform.moments(data_summary), moments_of(transform.apply(rows), weights)
    assert found.count == pytest.approx(expected.count)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-9)


@given(seed=SEEDS, keep=st.integers(1, 5))
def test_principal_components_are_those_of_the_singular_value_decomposition(seed, keep) -> None:
    rows = scaled_rows(seed)
    plan = TransformPlan(pca=keep)
    found = plan.fit(fitted_transform(rows, plan)).apply(rows)
    left, values, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    np.testing.assert_allclose(np.abs(found), np.abs(left * values)[:, :keep], rtol=1e-6, atol=1e-6)


def test_principal_components_of_scaled_columns_are_those_of_the_correlation_matrix() -> None:
    rows = scaled_rows(1)
    plan = TransformPlan(scale=True, pca=5)
    found = plan.fit(fitted_transform(rows, plan)).apply(rows)
    expected = np.linalg.eigvalsh(np.corrcoef(rows.T))[::-1]
    np.testing.assert_allclose(np.cov(found.T, ddof=0), np.diag(expected), atol=1e-10)


@given(seed=SEEDS)
def test_principal_axes_are_orthonormal_and_their_signs_fixed(seed) -> None:
    plan = TransformPlan(pca=4)
    matrix = plan.fit(fitted_transform(scaled_rows(seed), plan)).matrix
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(4), atol=1e-12)
    largest = matrix[np.abs(matrix).argmax(axis=0), np.arange(4)]
    assert (largest > 0).all()


@given(seed=SEEDS)
def test_scaled_columns_have_variance_one(seed) -> None:
    rows = scaled_rows(seed)
    for center in (False, True):
        plan = TransformPlan(center=center, scale=True)
        found = plan.fit(fitted_transform(rows, plan)).apply(rows)
        np.testing.assert_allclose(found.std(axis=0), 1.0, rtol=1e-9)
        np.testing.assert_allclose(found.mean(axis=0), 0.0 if center else rows.mean(0) / rows.std(0), atol=1e-9)


@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan.pca is None], ids=str)
@given(seed=SEEDS)
def test_rows_turned_onto_all_principal_axes_are_uncorrelated_and_as_far_apart(plan, seed) -> None:
    rows = scaled_rows(seed)
    data_summary = summarise_source(ArraySource(rows), SerialBackend(), products=True)
    plain, turned = (each.apply(rows) for each in (plan.fit(data_summary), plan.turned(data_summary)))
    np.testing.assert_allclose(np.linalg.norm(turned - turned[0], axis=1), np.linalg.norm(plain - plain[0], axis=1))
    covariance = np.cov(turned.T)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-9 * covariance.max())


def test_columns_that_do_not_vary_are_scaled_like_the_others() -> None:
    rows = scaled_rows(0)
    rows[:, 1] = 4.0
    for plan in PLANS:
        data_summary = fitted_transform(rows, plan)
        transform = plan.fit(data_summary)
        assert np.isfinite(transform.apply(rows)).all()
        np.testing.assert_allclose(transform.moments(data_summary).variance, transform.apply(rows).var(0), atol=1e-9)
    constant = TransformPlan(scale=True)
    np.testing.assert_array_equal(constant.fit(fitted_transform(np.ones((9, 2)), constant)).scale, [1.0, 1.0])


@every_plan
def test_the_same_data_give_the_same_bits(plan) -> None:
    rows = scaled_rows(0)
    transforms = [plan.fit(fitted_transform(rows.copy(), plan)) for _ in range(2)]
    for part in ("shift", "scale", "matrix"):
        first, second = (getattr(transform, part) for transform in transforms)
        np.testing.assert_array_equal(first, second)
    first, second = (transform.apply(rows) for transform in transforms)
    np.testing.assert_array_equal(first, second)


@every_plan
@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_transforming_leaves_the_stored_rows_alone(plan, dtype) -> None:
    rows = (10 * scaled_rows(0)).astype(dtype)
    before = rows.copy()
    prepared = Preparation(plan.fit(fitted_transform(rows, plan)), np.ones(plan.pca or 5), 5).apply(rows)
    np.testing.assert_array_equal(rows, before)
    assert prepared.dtype == np.float64
    assert prepared.flags.c_contiguous


@every_plan
def test_rows_are_prepared_one_by_one(plan) -> None:
    rows = scaled_rows(0)
    preparation = Preparation(plan.fit(fitted_transform(rows, plan)), None, 5)
    parts = [preparation.apply(part) for part in np.split(rows, 6)]
    np.testing.assert_allclose(np.concatenate(parts), preparation.apply(rows), rtol=1e-12, atol=1e-12)


def test_no_transform_passes_rows_and_moments_as_they_are() -> None:
    rows, plan = np.arange(12.0).reshape(4, 3), TransformPlan()
    transform = plan.fit(fitted_transform(rows, plan))
    assert transform.is_identity
    assert transform.apply(rows) is rows
    moments = transform.moments(fitted_transform(rows, plan))
    assert moments.integral
    np.testing.assert_array_equal(moments.minimum, rows.min(0))


def test_transformed_rows_are_no_longer_taken_for_counts() -> None:
    rows, plan = np.arange(12.0).reshape(4, 3), TransformPlan(scale=True)
    data_summary = fitted_transform(rows, plan)
    assert not plan.fit(data_summary).moments(data_summary).integral


@pytest.mark.parametrize("family", [Poisson, Bernoulli, Multinomial])
@pytest.mark.parametrize("plan", [{"center": True}, {"scale": True}, {"pca": 2}], ids=str)
def test_counts_are_not_to_be_transformed(family, plan) -> None:
    told = f"{family.__name__} needs .*; the row transform turns them into other numbers. Leave the transform out."
    with pytest.raises(InputError, match=told):
        DPMixture(family(), row_transform=TransformPlan(**plan)).fit(np.eye(6)[:, :3])


def test_the_origin_is_subtracted_last() -> None:
    rows, plan = scaled_rows(0), TransformPlan(scale=True, pca=2)
    transform = plan.fit(fitted_transform(rows, plan))
    preparation = Preparation(transform, np.array([1.0, -2.0]), 5)
    assert preparation.width == 2
    np.testing.assert_allclose(preparation.apply(rows), transform.apply(rows) - np.array([1.0, -2.0]))


def test_sparse_rows_pass_untransformed() -> None:
    rows = sparse.csr_array(np.array([[1, 0, 2], [0, 3, 0]]))
    found = Preparation(Transform(), None, 3).apply(rows)
    assert sparse.issparse(found)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found.toarray(), rows.toarray())


def test_sparse_rows_are_not_to_be_scaled() -> None:
    rows, plan = sparse.csr_array(np.array([[1.0, 0.0], [0.0, 3.0]])), TransformPlan(scale=True)
    with pytest.raises(InputError, match=r"need dense rows; .*\.$"):
        plan.fit(fitted_transform(rows, plan)).apply(rows)


@pytest.mark.parametrize("keep", [6, 50])
def test_more_components_than_columns_are_refused_in_a_sentence(keep) -> None:
    plan = TransformPlan(pca=keep)
    with pytest.raises(InputError, match=rf"pca should be from 1 to the number of columns, 5; got {keep}\."):
        plan.fit(fitted_transform(scaled_rows(0), plan))


def test_rows_of_another_width_are_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match=r"rows should have 3 columns, .* got 2"):
        Preparation(Transform(), None, 3).apply(np.ones((4, 2)))


@every_plan
@given(seed=SEEDS, moved=st.booleans())
def test_what_is_restored_is_the_row_or_its_place_on_the_plane_that_is_kept(plan, seed, moved) -> None:
    rows = scaled_rows(seed)
    preparation = prepared_by(plan, rows, np.random.default_rng(seed).normal(size=plan.pca or 5) if moved else None)
    prepared = preparation.apply(rows)
    restored = preparation.restore(prepared)
    np.testing.assert_allclose(preparation.apply(restored), prepared, rtol=1e-9, atol=1e-9)
    if preparation.width == 5:
        np.testing.assert_allclose(restored, rows, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(preparation.restore(preparation.apply(restored)), restored, rtol=1e-9, atol=1e-9)


def prepared_by(plan, rows: np.ndarray, origin: np.ndarray | None = None) -> Preparation:
    """The preparation that a plan makes of rows."""
    return Preparation(plan.fit(fitted_transform(rows, plan)), origin, rows.shape[1])


@every_plan
@given(seed=SEEDS)
def test_moments_of_rows_on_the_kept_plane_follow_from_those_of_prepared_ones(plan, seed) -> None:
    rows = scaled_rows(seed)
    preparation = prepared_by(plan, rows)
    prepared, transform = preparation.apply(rows), preparation.transform
    raw = preparation.restore(prepared)
    covariance = np.cov(prepared.T, ddof=0)[None]
    found = transform.restore_covariance(covariance)[0]
    np.testing.assert_allclose(found, np.cov(raw.T, ddof=0), rtol=1e-8, atol=1e-8 * np.abs(found).max())
    apart = np.random.default_rng(seed).uniform(1, 2, size=(2, preparation.width))
    full = transform.restore_covariance(np.stack([np.diag(row) for row in apart]))
    np.testing.assert_allclose(transform.restore_variance(apart), np.diagonal(full, axis1=1, axis2=2), rtol=1e-9)
    np.testing.assert_allclose(preparation.restore(prepared.mean(axis=0)[None])[0], raw.mean(axis=0), rtol=1e-9)


@every_plan
@given(seed=SEEDS)
def test_the_volume_is_that_of_a_box_of_prepared_rows(plan, seed) -> None:
    preparation = prepared_by(plan, scaled_rows(seed))
    corner, *ends = preparation.restore(np.concatenate([np.zeros((1, preparation.width)), np.eye(preparation.width)]))
    edges = np.array(ends) - corner
    box = 0.5 * np.log(np.linalg.det(edges @ edges.T))
    assert preparation.transform.log_volume == pytest.approx(-box, abs=1e-8)
    assert plan.scale or preparation.transform.log_volume == 0.0


@pytest.mark.parametrize("keep", [5, 3])
def test_the_volume_keeps_its_digits_where_columns_differ_widely_in_scale(keep) -> None:
    matrix = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
    scale = 10.0 ** np.array([-9, 7, 0, 9, -7])
    # Of all squared minors of the axes, which add up to the squared volume, those of the longest rows are nearly all.
    longest = np.argsort(scale)[:keep]
    volume = -np.linalg.slogdet(matrix[longest, :keep]).logabsdet + np.log(scale[longest]).sum()
    assert Transform(None, scale, matrix[:, :keep]).log_volume == pytest.approx(volume, abs=1e-9)


def test_scores_are_those_of_raw_columns_where_scaled_ones_of_other_units_are_turned() -> None:
    rows, units = np.random.default_rng(0).normal(size=(40, 3)), np.array([1e-9, 1.0, 1e9])
    scores = [
        DPMixture(max_laps=1, row_transform=TransformPlan(scale=True, pca=3)).fit(each).score(each)
        for each in (rows, rows * units)
    ]
    assert scores[0] == pytest.approx(scores[1] + np.log(units).sum(), abs=1e-9)


def test_variables_of_other_names_are_told_as_they_are() -> None:
    preparation = prepared_by(TransformPlan(scale=True, center=True), scaled_rows(0), np.ones(5))
    given_ = {name: (("component", "column"), np.ones((2, 5))) for name in ("rate", "mean", "flavour")}
    found = preparation.restored(given_)
    assert list(found) == list(given_) and all(found[name][0] == given_[name][0] for name in found)
    np.testing.assert_array_equal(found["rate"][1], 1.0)
    np.testing.assert_array_equal(found["flavour"][1], 1.0)
    np.testing.assert_array_equal(found["mean"][1], preparation.restore(np.ones((2, 5))))
    fewer = prepared_by(TransformPlan(pca=2), scaled_rows(0))
    found = fewer.restored({name: (("component", "column"), np.ones((2, 2))) for name in ("flavour", "mean")})
    assert found["flavour"][0] == ("component", "kept_column") and found["flavour"][1].shape == (2, 2)
    assert found["mean"][0] == ("component", "column") and found["mean"][1].shape == (2, 5)


NAMED = ("a", "b", "c")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("c", "b", "a"), r"^The feature names should match .* during fit\.\nFeature names must be in the same order"),
        (("a", "b", "x"), r"unseen at fit time:\n- x\nFeature names seen at fit time, yet now missing:\n- c\n"),
        (("a", "b"), r"during fit\.\nFeature names seen at fit time, yet now missing:\n- c\n"),
        (
            ("a", "b", "c", *"hgfdei"),
            r"unseen at fit time:\n- d\n- e\n- f\n- g\n- h\n- \.\.\.\nSelect the columns of the fit",
        ),
    ],
)
def test_columns_of_other_names_or_in_another_order_are_refused(names, told) -> None:
    preparation = Preparation(Transform(), None, 3, NAMED)
    preparation.check_source(ArraySource(np.ones((2, 3)), names=NAMED))
    with pytest.raises(InputError, match=told):
        preparation.check_source(ArraySource(np.ones((2, len(names))), names=names))


def test_it_is_warned_where_only_one_side_has_names() -> None:
    named, plain = ArraySource(np.ones((2, 3)), names=NAMED), ArraySource(np.ones((2, 3)))
    with pytest.warns(UserWarning, match="X does not have valid feature names, but SVA was fitted with feature names"):
        Preparation(Transform(), None, 3, NAMED).check_source(plain, "SVA")
    with pytest.warns(UserWarning, match="X has feature names, but SVA was fitted without feature names"):
        Preparation(Transform(), None, 3).check_source(named, "SVA")
    Preparation(Transform(), None, 3).check_source(plain, "SVA")
    with pytest.raises(InputError, match="rows should have 3 columns"):
        Preparation(Transform(), None, 3).check_source(ArraySource(np.ones((2, 2))))
