"""Laws of what a fitted model says of rows and documents, against formulas of the textbooks and of raw columns."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import logsumexp, psi, softmax

import dpdist
from dpdist.core.errors import InputError, OutputExistsError, PrecisionError
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.blocks import block_rows
from dpdist.inference.mixture.prediction import MixturePredictor
from dpdist.inference.prediction import Predictor
from dpdist.inference.sva.conjugate import Conjugate
from dpdist.inference.sva.nonconjugate import NonConjugate
from dpdist.inference.sva.prediction import SVAPredictor
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.evaluation import completion_score
from dpdist.inference.topics.prediction import checked_documents, complete_documents, split_tokens
from dpdist.inference.transform import Preparation, Transform
from dpdist.models.families import IsotropicGaussian, Multinomial
from dpdist.models.likelihoods import Dirichlet
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.labelling import write_labels
from dpdist.runs.opening import gone_on
from tests.cases import ALLOCATIONS, FAMILIES, FamilyCase, filled, moments_of
from tests.reference import reference_of
from tests.runs import clusters, mixture

SEEDS = st.integers(0, 2**32 - 1)
CONCENTRATION = 2.0
ROWS = 20
#: These laws are linear algebra: where few examples hold, all do.
few = settings(max_examples=6)

every_family = pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
real_families = pytest.mark.parametrize("case", [c for c in FAMILIES if c.real], ids=lambda case: case.name)


def invertible(rng: np.random.Generator, columns: int) -> Transform:
    """A transform with all three parts that keeps every column."""
    turn = np.linalg.qr(rng.normal(size=(columns, columns)))[0]
    return Transform(rng.normal(size=columns), rng.uniform(0.2, 5.0, size=columns), turn)


def dropping(rng: np.random.Generator, columns: int, keep: int) -> Transform:
    """One that keeps some."""
    whole = invertible(rng, columns)
    return Transform(whole.shift, whole.scale, np.ascontiguousarray(whole.matrix[:, :keep]))


class Setting:
    """A predictor made by hand of 20 rows and random responsibilities, the rows stored raw, and its brute force."""

    def __init__(self, case: FamilyCase, seed: int, sequential: bool = False, keep: int = 3, k: int = 4) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.prepared = case.rows(rng, ROWS, keep)
        family = filled(case, self.prepared)
        transform = dropping(rng, 3, keep) if case.real else Transform()
        origin = rng.normal(size=keep) if case.make.has_location else None
        self.raw = transform.restore(self.prepared) if case.real else self.prepared
        self.resp = rng.dirichlet(np.ones(k), size=ROWS)
        self.brute = reference_of(family)
        self.posteriors = [self.brute.posterior(self.prepared, share) for share in self.resp.T]
        self.allocation = ALLOCATIONS[seed % len(ALLOCATIONS)]
        if origin is not None:
            family = family.about(origin)
        moved = self.prepared if origin is None else self.prepared - origin
        stats = self.resp.T @ family.features(moved)
        preparation, ids = Preparation(transform, origin, 3), rng.permutation(50)[:k]
        self.counts = stats[:, -1]
        self.predictor: Predictor
        if sequential:
            learner = Conjugate(family, keep)
            self.predictor = SVAPredictor(learner, preparation, CONCENTRATION, stats, ids)
        else:
            total = Summary(stats, np.zeros(k))
            self.predictor = MixturePredictor(Model(family, self.allocation), preparation, total, ids)

    def log_predictives(self) -> np.ndarray:
        """log p(z | k) of the prepared rows, (n, K + 1), the last of a component not yet seen."""
        posteriors = [*self.posteriors, self.brute.prior(self.prepared)]
        return np.array([[self.brute.log_predictive(q, row) for q in posteriors] for row in self.prepared])

    def jacobian(self) -> np.ndarray:
        """dx/dz, (d, D), of the way back from prepared rows, column by column."""
        columns = self.predictor.preparation.width
        there = self.predictor.preparation.restore(np.concatenate([np.zeros((1, columns)), np.eye(columns)]))
        return there[1:] - there[0]


def partition_of(rows: Any, start: int = 0) -> Any:
    """A partition that begins at some row."""
    count = rows.shape[0]
    alone = ArraySource(rows, partition_rows=count + 1).partitions[0]
    return dataclasses.replace(alone, start=start, stop=start + count)


def assert_shares(setting: Setting, scores: np.ndarray) -> None:
    """Labels, probabilities and the best components are those of log probabilities (n, K)."""
    predictor, rows = setting.predictor, partition_of(setting.raw)
    shares = softmax(scores, axis=1)
    np.testing.assert_allclose(predictor.probabilities(rows), shares, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(predictor.labels(rows), shares.argmax(axis=1))
    for count in (1, 2, 4):
        places, best = predictor.top(rows, count)
        assert places.dtype == np.int64 and places.shape == best.shape == (ROWS, count)
        np.testing.assert_array_equal(places, np.argsort(-shares, axis=1)[:, :count])
        np.testing.assert_allclose(best, -np.sort(-shares, axis=1)[:, :count], rtol=1e-6, atol=1e-9)


@every_family
@few
@given(seed=SEEDS)
def test_responsibilities_are_the_softmax_of_expected_log_probabilities(case, seed) -> None:
    setting = Setting(case, seed)
    expected = [setting.brute.expected_log_likelihood(q, setting.prepared) for q in setting.posteriors]
    assert_shares(setting, np.stack(expected, axis=1) + setting.allocation.log_weights(setting.counts))


@every_family
@few
@given(seed=SEEDS)
def test_a_pass_shares_rows_by_weight_and_predictive(case, seed) -> None:
    setting = Setting(case, seed, sequential=True)
    assert_shares(setting, setting.log_predictives()[:, :-1] + np.log(setting.counts))


@every_family
@few
@given(seed=SEEDS, keep=st.integers(1, 3))
def test_the_density_is_that_of_the_components_and_of_one_not_yet_seen_in_raw_columns(case, seed, keep) -> None:
    setting = Setting(case, seed, keep=keep if case.real else 3)
    weights, rest = setting.allocation.weights(setting.counts)
    assert_density(setting, np.append(weights, rest))


@every_family
@few
@given(seed=SEEDS, keep=st.integers(1, 3))
def test_the_density_of_a_pass_is_the_chinese_restaurants_in_raw_columns(case, seed, keep) -> None:
    setting = Setting(case, seed, sequential=True, keep=keep if case.real else 3)
    weights = np.append(setting.counts, CONCENTRATION) / (ROWS + CONCENTRATION)
    assert_density(setting, weights)
    found, rest = setting.predictor.weights()
    np.testing.assert_allclose(np.append(found, rest), weights)


def assert_density(setting: Setting, weights: np.ndarray) -> None:
    """Density of raw rows: that of prepared ones over the volume that a unit of them has in raw columns."""
    jacobian = setting.jacobian()
    volume = 0.5 * np.linalg.slogdet(jacobian @ jacobian.T).logabsdet
    with np.errstate(divide="ignore"):
        expected = logsumexp(setting.log_predictives() + np.log(weights), axis=1) - volume
    found = setting.predictor.log_density(partition_of(setting.raw))
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7)


@every_family
@few
@given(seed=SEEDS, keep=st.integers(1, 3))
def test_components_are_described_in_raw_columns(case, seed, keep) -> None:
    setting = Setting(case, seed, keep=keep if case.real else 3)
    jacobian, preparation = setting.jacobian(), setting.predictor.preparation
    found, expected = setting.predictor.described(), [setting.brute.means(q) for q in setting.posteriors]
    assert set(found) == set(expected[0])
    for name, (dims, values) in found.items():
        assert values.shape[: len(dims)] == (4, *(3,) * (len(dims) - 1)) and dims[0] == "component"
        for value, mean in zip(values, expected, strict=True):
            np.testing.assert_allclose(value, carried(name, mean[name], jacobian, preparation), rtol=1e-7, atol=1e-9)
    exported = setting.predictor.exported()
    assert set(found) - set(exported) == ({"covariance"} & set(found) if preparation.width < 3 else set())
    assert all(exported[name][1].tobytes() == found[name][1].tobytes() for name in exported)


def carried(name: str, value: np.ndarray, jacobian: np.ndarray, preparation: Preparation) -> np.ndarray:
    """What a moment of prepared rows, told by the reference, is in raw columns."""
    if name == "mean":
        return preparation.transform.restore(value[None])[0]
    if name == "covariance":
        return jacobian.T @ value @ jacobian
    if name in ("variance", "mean_variance"):
        return np.diag(jacobian.T @ np.diag(np.broadcast_to(value, len(jacobian))) @ jacobian)
    return value


@every_family
@pytest.mark.parametrize("sequential", [False, True], ids=["fit", "pass"])
@pytest.mark.parametrize("component", [1, 4], ids=["seen", "not yet seen"])
def test_draws_have_the_moments_of_the_predictive_in_raw_columns(case, sequential, component) -> None:
    setting = Setting(case, 5, sequential=sequential)
    drawn = setting.predictor.draw(np.full(20_000, component), np.random.default_rng(0))
    if component == 4 and case.name != "isotropic_gaussian" and case.real:
        assert np.isfinite(drawn).all() and drawn.shape == (20_000, 3)
        centre = setting.predictor.preparation.transform.restore(prior_centre(setting))
        np.testing.assert_allclose(np.median(drawn, axis=0), centre[0], atol=0.05 * np.abs(drawn).mean(axis=0).max())
        return
    q = [*setting.posteriors, setting.brute.prior(setting.prepared)][component]
    size = float(setting.prepared[0].sum()) if case.name != "multinomial" else drawn[0].sum()
    mean, variance = setting.brute.predictive_moments(q, size)
    if not case.real:
        np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=5 * np.sqrt(variance.max() / 20_000))
        np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.15)
        return
    back = setting.predictor.preparation
    prepared = back.transform.apply(drawn)
    np.testing.assert_allclose(prepared.mean(axis=0), mean, atol=5 * np.sqrt(variance.max() / 20_000))
    np.testing.assert_allclose(prepared.var(axis=0), variance, rtol=0.25)


def prior_centre(setting: Setting) -> np.ndarray:
    """Mean of the prior predictive in prepared columns, (1, d)."""
    return np.zeros((1, 3)) if setting.brute.family.name == "zero_mean_gaussian" else setting.brute.family.mean[None]


@every_family
@pytest.mark.parametrize("method", ["labels", "probabilities", "log_density"])
def test_rows_are_predicted_one_by_one_wherever_blocks_end(case, method, monkeypatch) -> None:
    setting = Setting(case, 3)
    whole = getattr(setting.predictor, method)(partition_of(setting.raw))
    assert len(whole) == ROWS
    monkeypatch.setattr("dpdist.inference.blocks.block_rows", lambda columns: 7)
    parts = getattr(setting.predictor, method)(partition_of(setting.raw))
    np.testing.assert_allclose(parts, whole, rtol=1e-12)
    alone = [getattr(setting.predictor, method)(partition_of(setting.raw[n : n + 1])) for n in range(ROWS)]
    np.testing.assert_allclose(np.concatenate(alone), whole, rtol=1e-12)


def test_blocks_are_sized_by_the_features_of_the_model(monkeypatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "dpdist.inference.blocks.block_rows", lambda columns: asked.append(columns) or block_rows(columns)
    )
    for sequential in (False, True):
        setting = Setting(FAMILIES[0], 0, sequential)
        setting.predictor.labels(partition_of(setting.raw))
    assert asked == [3 * 4 // 2 + 3 + 1] * 2


@pytest.mark.parametrize("case", [c for c in FAMILIES if c.sparse], ids=lambda case: case.name)
@pytest.mark.parametrize("sequential", [False, True], ids=["fit", "pass"])
def test_sparse_rows_are_predicted_as_dense_ones(case, sequential, monkeypatch) -> None:
    monkeypatch.setattr("dpdist.inference.blocks.block_rows", lambda columns: 7)
    setting = Setting(case, 1, sequential)
    dense, thin = partition_of(setting.raw), partition_of(np.zeros((ROWS, 3)))
    thin = dataclasses.replace(thin, values=sparse.csr_array(setting.raw))
    for method in ("labels", "probabilities", "log_density"):
        found, expected = getattr(setting.predictor, method)(thin), getattr(setting.predictor, method)(dense)
        np.testing.assert_allclose(found, expected, rtol=1e-10)


@real_families
def test_rows_stored_shorter_are_predicted_in_full_precision(case) -> None:
    setting = Setting(case, 2)
    short = setting.raw.astype(np.float32)
    for method in ("probabilities", "log_density"):
        found = getattr(setting.predictor, method)(partition_of(short))
        assert found.dtype == np.float64
        expected = getattr(setting.predictor, method)(partition_of(short.astype(np.float64)))
        np.testing.assert_array_equal(found, expected)


ASKED = {
    "predict": lambda model, rows: model.predict(rows),
    "outliers": lambda model, rows: model.predict(rows, outliers=True),
    "predict_proba": lambda model, rows: model.predict_proba(rows),
    "score_samples": lambda model, rows: model.score_samples(rows),
    "decision_function": lambda model, rows: model.decision_function(rows),
    "tree": lambda model, rows: model.tree(rows),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", [dpdist.DPMixture, dpdist.SVA])
def test_rows_that_a_likelihood_cannot_bring_about_are_refused_by_whoever_is_asked(asked, kind) -> None:
    rows = np.random.default_rng(0).poisson([2.0, 9.0], size=(60, 2)).astype(float)
    model = kind("poisson", random_state=0).fit(rows)
    ASKED[asked](model, rows)
    rows[41, 1] = 0.5
    with pytest.raises(InputError, match=r"Poisson needs whole-number counts .*; row 41 has an entry of 0\.5\."):
        ASKED[asked](model, rows)


def test_a_row_is_named_by_its_place_in_all_data_beside_rows_of_no_weight() -> None:
    rows = np.random.default_rng(0).poisson([2.0, 9.0], size=(60, 2)).astype(float)
    weights = np.where(np.arange(60) % 3 == 0, 0.0, 1.0)
    model = dpdist.DPMixture("poisson", random_state=0).fit(rows, sample_weight=weights)
    rows[41, 1] = 0.5
    with pytest.raises(InputError, match=r"row 41 has an entry of 0\.5\."):
        model.tree(ArraySource(rows, weights, partition_rows=20))
    with pytest.raises(InputError, match=r"row 41 has an entry of 0\.5\."):
        dpdist.DPMixture("isotropic_gaussian", initial=model).fit(ArraySource(rows, weights, partition_rows=20))


def test_a_start_that_takes_no_sparse_rows_refuses_them_in_a_sentence() -> None:
    rows = np.random.default_rng(0).poisson(3.0, size=(60, 2)).astype(float)
    start = dpdist.DPMixture("gaussian", random_state=0).fit(rows)
    with pytest.raises(InputError, match=r"is sparse, which this likelihood does not accept"):
        dpdist.DPMixture("poisson", initial=start).fit(sparse.csr_array(rows))


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", [dpdist.DPMixture, dpdist.SVA])
@pytest.mark.parametrize("family", ["gaussian", "isotropic_gaussian"])
def test_sparse_rows_are_refused_in_a_sentence_where_they_cannot_be_taken(asked, kind, family) -> None:
    rows = clusters(0, rows=60)
    model = kind(family, random_state=0).fit(rows)
    with pytest.raises(InputError, match=r"is sparse, which this likelihood does not accept; pass x\.toarray\(\)"):
        ASKED[asked](model, sparse.csr_array(rows))


def test_small_probabilities_are_told_as_they_are() -> None:
    rows = np.array([[0.0], [8.0]])
    family = IsotropicGaussian(1.0, 100.0, np.zeros(1))
    total = Summary(np.array([[0.0, 0.0, 50.0], [50 * 64.0, 400.0, 50.0]]), np.zeros(2))
    predictor = MixturePredictor(Model(family, ALLOCATIONS[0]), Preparation(Transform(), None, 1), total, np.arange(2))
    shares = predictor.probabilities(partition_of(rows))
    assert (shares > 0).all() and shares[0, 1] < 1e-12
    assert 0 < predictor.top(partition_of(rows), 2)[1][0, 1] < 1e-12


def test_what_is_best_does_not_depend_on_how_far_probabilities_can_be_told_apart() -> None:
    setting = Setting(FAMILIES[3], 4)

    class Near(MixturePredictor):
        @property
        def _posterior(self):
            found = super()._posterior
            coefficients = np.zeros((len(found.coefficients), 4))
            coefficients[-1] = [0.0, 1e-17, -2.0, 2e-17]
            return dataclasses.replace(found, coefficients=coefficients)

    near = Near(setting.predictor.model, setting.predictor.preparation, setting.predictor.total, setting.predictor.ids)
    rows = partition_of(setting.raw)
    np.testing.assert_array_equal(near.top(rows, 3)[0][:, 0], near.labels(rows))
    np.testing.assert_array_equal(near.top(rows, 3)[0][0], [3, 1, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_number_is_named_by_its_place_in_the_whole(bad) -> None:
    setting = Setting(FAMILIES[0], 0)
    rows = setting.raw.copy()
    rows[[11, 15], 1] = bad
    for method, given_ in (("labels", ()), ("probabilities", ()), ("log_density", ()), ("top", (2,))):
        with pytest.raises(InputError, match=r"NaN or infinity, first in row 1011;"):
            getattr(setting.predictor, method)(partition_of(rows, start=1000), *given_)
    counts = Setting(FAMILIES[4], 0)
    thin = sparse.csr_array(counts.raw)
    thin.data[3] = bad
    source = dataclasses.replace(partition_of(counts.raw), values=thin)
    with pytest.raises(InputError, match="the rows hold NaN or infinity;"):
        counts.predictor.labels(source)


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_rows_that_weigh_nothing_count_for_nothing_whatever_they_hold(case: FamilyCase) -> None:
    setting = Setting(case, 0)
    rows, weights = setting.raw.copy(), np.random.default_rng(0).uniform(0.5, 2.0, len(setting.raw))
    weights[[3, 8]] = 0.0
    rows[3], rows[8] = 1e200, 0.25  # no number could tell how far out, and no count
    left = np.flatnonzero(weights)
    (whole,) = ArraySource(rows, weights).partitions
    (rest,) = ArraySource(rows[left], weights[left]).partitions
    score = setting.predictor.log_density_sum
    assert score(whole) == pytest.approx(score(rest), rel=1e-12)
    (nothing,) = ArraySource(rows[[3, 3]], np.array([0.0, 1.0])).partitions
    with pytest.raises((InputError, PrecisionError), match="row 1"):
        score(nothing)


def test_an_allocation_without_a_rest_leaves_out_what_was_not_seen() -> None:
    setting = Setting(FAMILIES[0], 1)
    model = dataclasses.replace(setting.predictor.model, allocation=dpdist.allocations.FiniteDirichlet(4, 1.0))
    predictor = dataclasses.replace(setting.predictor, model=model)
    weights, rest = predictor.weights()
    assert rest == 0 and weights.sum() == pytest.approx(1)
    assert np.isfinite(predictor.log_density(partition_of(setting.raw))).all()


@given(seed=SEEDS)
def test_the_density_of_points_that_learn_by_gradients_is_their_mixture(seed) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.ones(3), size=12)
    learner = NonConjugate(Dirichlet(draws=50).with_defaults(moments_of(rows)), 3, seed=seed % 1000)
    table = np.concatenate([rng.normal(size=(2, learner.width - 1)), rng.uniform(1, 9, size=(2, 1))], axis=1)
    predictor = SVAPredictor(learner, Preparation(Transform(), None, 3), 1.5, table, np.arange(2))
    logs = learner.log_predictive(rows, table)
    weights = np.append(table[:, -1], 1.5) / (1.5 + table[:, -1].sum())
    expected = logsumexp(logs + np.log(weights), axis=1)
    np.testing.assert_allclose(predictor.log_density(partition_of(rows)), expected, rtol=1e-12)
    np.testing.assert_allclose(predictor.probabilities(partition_of(rows)).sum(axis=1), 1)


# Fits under a transform


SCALED = dpdist.TransformPlan(center=True, scale=True)
STRETCH = np.array([10.0, 0.2, 3.0])


def stretched(seed: int) -> np.ndarray:
    """Rows of groups whose columns differ in scale, far from zero."""
    return clusters(seed, rows=600, groups=3) * STRETCH + np.array([100.0, -5.0, 40.0])


MODELS = {
    "fit": lambda **given: mixture(max_laps=15, **given),
    "stochastic": lambda **given: mixture(
        max_laps=4, schedule=dpdist.schedules.Stochastic(batches=2), initial="k-means++", initial_components=3, **given
    ),
    "pass": lambda **given: dpdist.SVA(IsotropicGaussian(variance=0.1), random_state=0, **given),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fit_to_scaled_columns_tells_what_one_to_columns_scaled_before_does(kind, weighted) -> None:
    rows = stretched(1)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(rows)) if weighted else None
    model = MODELS[kind](row_transform=SCALED).fit(rows, sample_weight=weights)
    mean, deviation = moments(rows, weights)
    scaled = (rows - mean) / deviation
    plain = MODELS[kind]().fit(scaled, sample_weight=weights)
    volume = -np.log(deviation).sum()
    assert model.n_components_ == plain.n_components_ >= 3
    np.testing.assert_allclose(model.score_samples(rows), plain.score_samples(scaled) + volume, rtol=1e-7)
    assert model.score(rows) == pytest.approx(plain.score(scaled) + volume, rel=1e-8)
    ways = {
        "mean": lambda values: values * deviation + mean,
        "mean_variance": lambda values: values * deviation**2,
        "covariance": lambda values: values * np.outer(deviation, deviation),
        "weight": lambda values: values,
    }
    for name, values in plain.components_.items():
        np.testing.assert_allclose(model.components_[name], ways[name](values), rtol=1e-6)
    np.testing.assert_allclose(model.sample(50)[0], plain.sample(50)[0] * deviation + mean, rtol=1e-6)
    if kind != "pass":
        mass = len(rows) if weights is None else weights.sum()
        for name in ("elbo", "elbo_before_moves"):
            shifted = plain.history_[name].values + mass * volume
            np.testing.assert_allclose(model.history_[name].values, shifted, rtol=1e-7)
        assert model.elbo_ == model.history_["elbo"].values[-1]


def moments(rows: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of columns."""
    mean = np.average(rows, axis=0, weights=weights)
    return mean, np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=weights))


def test_a_density_in_raw_columns_integrates_to_one() -> None:
    rows = clusters(5, columns=2, groups=3, spread=2.0) * np.array([3.0, 0.5])
    model = mixture(row_transform=dpdist.TransformPlan(scale=True, pca=2), max_laps=20).fit(rows)
    axes = np.linspace(-100, 100, 801), np.linspace(-16, 16, 801)
    grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
    inside = np.exp(model.score_samples(grid)).sum() * np.prod([axis[1] - axis[0] for axis in axes])
    assert 0.97 < inside <= 1.001  # the leftover stick's tails are heavy


def test_a_density_on_the_plane_that_pca_keeps_integrates_to_one_along_it() -> None:
    rng = np.random.default_rng(0)
    rows = np.outer(rng.normal(size=500) + 6 * (rng.random(500) < 0.3), [3.0, 0.5]) + 0.01 * rng.normal(size=(500, 2))
    model = mixture(row_transform=dpdist.TransformPlan(scale=True, pca=1), max_laps=20).fit(rows)
    drawn = model.sample(300)[0]
    centre, far = drawn[0], drawn[np.abs(drawn - drawn[0]).sum(axis=1).argmax()]
    direction = (far - centre) / np.linalg.norm(far - centre)
    steps = np.linspace(-400, 400, 40_001)
    line = centre + steps[:, None] * direction
    assert np.exp(model.score_samples(line)).sum() * (steps[1] - steps[0]) == pytest.approx(1, abs=0.02)
    np.testing.assert_allclose(drawn, centre + np.outer((drawn - centre) @ direction, direction), atol=1e-8)
    assert np.linalg.matrix_rank(model.components_["covariance"].values[0]) == 1
    across = rows + np.array([1.0, -1.0]) @ np.diag(rows.std(axis=0))  # off the plane, which scales with the columns
    np.testing.assert_allclose(model.score_samples(across), model.score_samples(rows), atol=0.1)


def test_draws_have_the_moments_of_the_raw_rows() -> None:
    rows = stretched(2)
    for plan in (SCALED, dpdist.TransformPlan(scale=True), dpdist.TransformPlan(scale=True, pca=3)):
        model = mixture(row_transform=plan, concentration=0.1, max_laps=15).fit(rows)
        drawn, components = model.sample(20_000)
        seen = drawn[components < model.n_components_]  # a component not yet seen may draw anything
        np.testing.assert_allclose(seen.mean(axis=0), rows.mean(axis=0), atol=0.05 * rows.std(axis=0).max())
        np.testing.assert_allclose(seen.std(axis=0), rows.std(axis=0), rtol=0.1)


def test_draws_take_components_by_their_weights_and_the_rest() -> None:
    model = mixture(concentration=200.0, max_laps=15).fit(clusters(3, rows=400, groups=3))
    components = model.sample(40_000)[1]
    shares = np.bincount(components, minlength=model.n_components_ + 1) / 40_000
    np.testing.assert_allclose(shares, np.append(model.weights_, model.rest_weight_), atol=0.01)
    assert model.rest_weight_ > 0.1


@pytest.mark.parametrize("plan", [SCALED, dpdist.TransformPlan(pca=2)], ids=["scaled", "pca"])
@pytest.mark.parametrize("kind", ["fit", "pass"])
def test_stored_components_are_those_of_raw_columns(tmp_path, plan, kind) -> None:
    rows = stretched(3)
    model = MODELS[kind](row_transform=plan).fit(rows)
    model.save(tmp_path / "model.zarr")
    (path,) = (tmp_path / "model.zarr" / "generations").iterdir()
    stored = xr.open_zarr(path, group="components", consolidated=False, chunks=None)
    assert ("covariance" in stored) == (plan.pca is None and kind == "fit")
    for name in model.components_.keys() & stored.keys():
        np.testing.assert_array_equal(stored[name], model.components_[name])
    xr.testing.assert_identical(dpdist.load(tmp_path / "model.zarr").components_, model.components_)


@pytest.mark.parametrize("kind", MODELS)
def test_rows_held_out_are_scored_in_raw_columns_by_the_model_of_every_lap(kind) -> None:
    rows, held = stretched(4), stretched(4)[:90] + 0.1
    model, expected = MODELS[kind](row_transform=SCALED), []
    for _ in model.iter_fit(rows, holdout=held):
        expected.append(model.score(held))
    np.testing.assert_allclose(model.history_["holdout_score"], expected, rtol=1e-12)
    followed = MODELS[kind](row_transform=SCALED).fit(rows, holdout=held)
    np.testing.assert_array_equal(followed.history_["holdout_score"], model.history_["holdout_score"])
    alone = MODELS[kind](row_transform=SCALED).fit(rows)
    np.testing.assert_array_equal(alone.predict_proba(rows), followed.predict_proba(rows))


@pytest.mark.parametrize("kind", MODELS)
def test_a_row_of_which_no_number_can_tell_is_refused_by_its_place(kind) -> None:
    """What overflows is no density of minus infinity and no cluster's."""
    model = MODELS[kind]().fit(stretched(4))
    rows = np.concatenate([stretched(4)[:60], [[1e200, -1e200, 1e200]]])
    asked = (model.predict, model.predict_proba, model.score_samples, model.score, lambda x: model.predict_top(x, 2))
    for method in asked:
        with pytest.raises(PrecisionError, match=r"log probabilities of row 60 are not finite.*\.$"):
            method(rows)


@pytest.mark.parametrize("kind", MODELS)
def test_a_row_held_out_of_weight_w_is_scored_as_w_such_rows(kind) -> None:
    rows, held = stretched(4), stretched(4)[:90] + 0.1
    times = np.random.default_rng(0).integers(0, 4, 90)
    weighted, copied = ArraySource(held, times.astype(float), 25), np.repeat(held, times, axis=0)
    scores = [MODELS[kind]().fit(rows, holdout=given).history_["holdout_score"] for given in (weighted, copied)]
    np.testing.assert_allclose(*scores, rtol=1e-12)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("at_a_path", [False, True])
def test_a_run_that_is_gone_on_with_goes_on_scoring(kind, at_a_path, tmp_path) -> None:
    held, rows = stretched(4)[:90] + 0.1, ArraySource(stretched(4), partition_rows=100)
    np.save(tmp_path / "held.npy", held)
    given = tmp_path / "held.npy" if at_a_path else held
    broken_off = MODELS[kind]().iter_fit(rows, holdout=given, checkpoint_path=tmp_path / "run", checkpoint_seconds=0)
    next(broken_off)
    broken_off.close()
    found = dpdist.resume(tmp_path / "run", rows, holdout=None if at_a_path else held)
    whole = MODELS[kind]().fit(rows, holdout=held)
    assert len(whole.history_["lap"]) > 1
    np.testing.assert_array_equal(found.history_["holdout_score"], whole.history_["holdout_score"])


@pytest.mark.parametrize("kind", MODELS)
def test_a_path_of_held_out_rows_that_is_first_given_at_a_resumption_is_remembered(kind, tmp_path, monkeypatch) -> None:
    held, rows = stretched(4)[:90] + 0.1, ArraySource(stretched(4), partition_rows=100)
    np.save(tmp_path / "held.npy", held)
    broken_off = MODELS[kind]().iter_fit(rows, checkpoint_path=tmp_path / "run", checkpoint_seconds=0)
    next(broken_off)
    broken_off.close()
    monkeypatch.chdir(tmp_path)
    gone_on(tmp_path / "run", rows, SerialBackend(), holdout="held.npy").close()
    monkeypatch.undo()
    found = dpdist.resume(tmp_path / "run", rows)
    scores = found.history_["holdout_score"]
    assert np.isnan(scores[0])
    assert len(scores) > 1
    assert np.isfinite(scores[1:]).all()
    np.testing.assert_allclose(scores[-1], found.score(held), rtol=1e-12)


@pytest.mark.parametrize("kind", ["fit", "pass"])
def test_rows_held_out_have_the_columns_of_those_that_are_fitted(kind) -> None:
    with pytest.raises(InputError, match="the held-out score is expecting 3"):
        MODELS[kind]().fit(stretched(4), holdout=np.ones((4, 2)))


# What is written


def moved(predictor: Predictor) -> Predictor:
    """The same with ids that are no positions."""
    return dataclasses.replace(predictor, ids=np.arange(len(predictor.ids))[::-1] * 7 + 3)


@pytest.mark.parametrize("kind", ["fit", "pass"])
@pytest.mark.parametrize("top", [1, 2, 50])
def test_written_labels_are_those_that_predict_gives(tmp_path, kind, top) -> None:
    rows = stretched(5)
    model = MODELS[kind](row_transform=SCALED).fit(rows)
    predictor = model._predictor = moved(model._predictor)
    source = ArraySource(rows, partition_rows=17)  # more partitions than are under way at once
    write_labels(predictor, source, SerialBackend(), tmp_path / "labels.zarr", top=top, density=top > 1)
    found = xr.open_zarr(tmp_path / "labels.zarr", consolidated=False)
    np.testing.assert_array_equal(found["label"], model.predict(rows))
    np.testing.assert_array_equal(found["id"], predictor.ids)
    assert set(found.variables) == {"id", "label"} | (
        {"top_label", "top_probability", "log_density"} if top > 1 else set()
    )
    if top > 1:
        places, shares = model.predict_top(rows, top)
        np.testing.assert_array_equal(found["top_label"], places)
        np.testing.assert_allclose(found["top_probability"], shares, rtol=1e-12)
        np.testing.assert_allclose(found["log_density"], model.score_samples(rows), rtol=1e-12)
        assert places.shape == (600, min(top, model.n_components_))


def test_the_best_of_a_single_component_is_written_where_several_are_asked_for(tmp_path) -> None:
    setting = Setting(FAMILIES[0], 0, k=1)
    write_labels(setting.predictor, ArraySource(setting.raw), SerialBackend(), tmp_path / "labels.zarr", top=3)
    found = zarr.open_group(tmp_path / "labels.zarr")
    assert found["top_label"].shape == found["top_probability"].shape == (ROWS, 1)
    assert (found["top_probability"][:] == 1).all() and (found["label"][:] == 0).all()


def test_labels_are_written_whole_or_not_at_all(tmp_path) -> None:
    setting, out = Setting(FAMILIES[0], 0), tmp_path / "labels.zarr"
    bad = setting.raw.copy()
    bad[19, 0] = np.nan
    with pytest.raises(InputError, match="first in row 19"):
        write_labels(setting.predictor, ArraySource(bad, partition_rows=9), SerialBackend(), out)
    assert not list(tmp_path.iterdir())
    write_labels(setting.predictor, ArraySource(setting.raw), SerialBackend(), out)
    with pytest.raises(OutputExistsError):
        write_labels(setting.predictor, ArraySource(setting.raw[:5]), SerialBackend(), out)
    write_labels(setting.predictor, ArraySource(setting.raw[:5]), SerialBackend(), out, overwrite=True)
    assert zarr.open_group(out)["label"].shape == (5,)
    with pytest.raises(InputError, match="rows should have 3 columns, like the fitted rows; got 2"):
        write_labels(setting.predictor, ArraySource(setting.raw[:, :2]), SerialBackend(), tmp_path / "other.zarr")


# Documents


WORDS = 6


def documents(seed: int, count: int = 30) -> sparse.csr_array:
    """Counts of words from two topics; the third document is empty."""
    topics, rng = np.kron(np.eye(2), np.full(3, 1 / 3)), np.random.default_rng(seed)
    x = np.array([rng.multinomial(rng.integers(1, 40), rng.dirichlet([0.5, 0.5]) @ topics) for _ in range(count)])
    x[2] = 0
    return sparse.csr_array(x)


@pytest.fixture(scope="module", params=["memoized", "online"])
def topics(request) -> dpdist.HDPTopicModel:
    online = {"weights": "point", "schedule": dpdist.schedules.Stochastic(batches=2)}
    online = online if request.param == "online" else {}
    model = dpdist.HDPTopicModel(
        initial_topics=2,
        learn=(),
        **online,
        effort=Effort(1e-9, 3000),
        max_laps=4,
        random_state=0,
    )
    model.fit(documents(0, 120))
    model._predictor = moved(model._predictor)
    return model


def test_proportions_are_posterior_means_of_documents_held_against_fixed_topics(topics) -> None:
    x, predictor = documents(1), topics._predictor
    shares = predictor.proportions(partition_of_documents(x))
    prior = topics.document_concentration * topics.topic_weights_
    np.testing.assert_allclose(predictor.prior, prior)
    np.testing.assert_allclose(predictor.topics, topics.components_)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_allclose(shares[2], prior / prior.sum())
    words = topics.pseudocount + predictor.words
    e = np.exp(psi(words) - psi(words.sum(axis=0)))
    for row, share in zip(x.toarray(), shares, strict=True):
        theta = share * (prior.sum() + row.sum())  # a fixed point: counts from theta make that theta
        r = e.T * np.exp(psi(theta))[:, None]
        np.testing.assert_allclose(prior + (r / r.sum(axis=0)) @ row, theta, atol=1e-5)
    np.testing.assert_allclose(predictor.topics, words.T / words.sum(axis=0)[:, None])


def partition_of_documents(x: sparse.csr_array) -> Any:
    """All documents in one partition."""
    return ArraySource(x, partition_rows=x.shape[0] + 1).partitions[0]


@pytest.mark.parametrize("top", [1, 2, 9])
def test_written_proportions_are_those_that_transform_gives(tmp_path, topics, top) -> None:
    x = documents(2, 80)
    source = ArraySource(x, partition_rows=2)
    write_labels(topics._predictor, source, SerialBackend(), tmp_path / "shares.zarr", top=top)
    found, shares = xr.open_zarr(tmp_path / "shares.zarr", consolidated=False), topics.transform(x)
    np.testing.assert_allclose(found["proportion"], shares, rtol=1e-12)
    np.testing.assert_array_equal(found["label"], shares.argmax(axis=1))
    np.testing.assert_array_equal(found["id"], topics._predictor.ids)
    assert ("top_label" in found) == (top > 1)
    if top > 1:
        np.testing.assert_array_equal(found["top_label"], np.argsort(-shares, axis=1, kind="stable")[:, :top])
        np.testing.assert_allclose(found["top_probability"], -np.sort(-shares, axis=1)[:, :top], rtol=1e-12)


def test_a_completion_score_is_a_mean_over_tokens_however_documents_are_parted(topics) -> None:
    x = documents(3, 50)
    observed, held = split_tokens(x, 0.6, 7)
    expected = completion_score(topics.components_, topics._predictor.prior, observed, held)
    for rows in (50, 7, 1):
        source = ArraySource(x, partition_rows=rows)
        found = complete_documents(topics._predictor, source, SerialBackend(), 0.6, 7)
        assert found.tokens == expected.tokens == held.sum()
        assert found.per_token == pytest.approx(expected.per_token, rel=1e-6)
    empty = ArraySource(sparse.csr_array((4, WORDS), dtype=np.int64))
    with pytest.raises(InputError, match="no token is held out"):
        complete_documents(topics._predictor, empty, SerialBackend(), 0.6, 7)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 2, None, "a"])
def test_a_share_that_leaves_nothing_to_see_or_to_score_is_refused(topics, share) -> None:
    with pytest.raises(InputError, match="share should be "):
        complete_documents(topics._predictor, ArraySource(documents(0)), SerialBackend(), share, 0)


@given(seed=st.integers(0, 1000), share=st.floats(0.05, 0.95))
def test_tokens_are_divided_by_document_to_the_nearest_whole_number(seed, share) -> None:
    x = documents(seed, 12)
    observed, held = split_tokens(x, share, seed)
    np.testing.assert_array_equal((observed + held).toarray(), x.toarray())
    assert observed.data.min(initial=1) > 0 and held.data.min(initial=1) > 0
    np.testing.assert_array_equal(observed.sum(axis=1), np.rint(share * x.sum(axis=1)))
    for first in (1, 5):
        np.testing.assert_array_equal(
            split_tokens(x[first:], share, seed, first)[0].toarray(), observed.toarray()[first:]
        )


def test_observed_tokens_are_drawn_as_from_an_urn() -> None:
    x = sparse.csr_array(np.tile([6, 3, 0, 0, 0, 1], (4000, 1)))
    mean = split_tokens(x, 0.5, 0)[0].toarray().mean(axis=0)
    np.testing.assert_allclose(mean, [3.0, 1.5, 0, 0, 0, 0.5], atol=0.06)


def test_documents_of_another_vocabulary_or_below_zero_are_refused(topics) -> None:
    predictor = topics._predictor
    predictor.check_words(WORDS)
    with pytest.raises(
        InputError, match=r"should have 6 columns.*got 7; columns from 6 on were not in the fitted data"
    ):
        predictor.check_words(7)
    with pytest.raises(InputError, match=r"should have 6 columns.*got 5\. Count"):
        predictor.check_words(5)
    with pytest.raises(InputError, match="a dtype that sparse arrays of SciPy support; got <f2"):
        checked_documents(partition_of(np.ones((2, WORDS), dtype=np.float16)))
    with pytest.raises(InputError, match=r"document 41\b"):
        checked_documents(partition_of(np.array([[1.0] * WORDS, [-0.5] * WORDS]), start=40))


def test_the_weights_of_topics_are_those_of_sticks_by_their_groups(topics) -> None:
    predictor = topics._predictor
    weights = predictor.global_weights
    assert weights.shape == (topics.n_topics_ + 1,) and weights.sum() == pytest.approx(1) and (weights > 0).all()
    assert topics.rest_weight_ == weights[-1]
    assert predictor.tokens == pytest.approx(documents(0, 120).sum(), rel=0.2)
    if topics.weights == "posterior":
        assert predictor.tokens == documents(0, 120).sum()


def test_multinomial_rows_are_scored_with_their_coefficient() -> None:
    x = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 2.0], [3.0, 0.0]])
    model = mixture(family=Multinomial(), max_laps=3).fit(x)
    outcomes = np.array([[float(k), 3.0 - k] for k in range(4)])
    assert np.exp(model.score_samples(outcomes)).sum() == pytest.approx(1)
    passed = dpdist.SVA(Multinomial(pseudocount=1.0), random_state=0).fit(x)
    assert np.exp(passed.score_samples(outcomes)).sum() == pytest.approx(1)


def test_draws_take_every_key_that_fits_take() -> None:
    model = dpdist.DPMixture(random_state=2**32, max_laps=1).fit(clusters(0))
    rows, _ = model.sample(3)
    np.testing.assert_array_equal(rows, model.sample(3)[0])
