"""Laws of outliers: a background is a part of the exact bound, thresholds are the model's own, and -1 says so; what
came about for scattered rows is no cluster."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

import dpdist
from dpdist.cli.root import app
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference import outliers
from dpdist.inference import scattered as scattering
from dpdist.inference.data_summary import summarise_source
from dpdist.inference.hierarchy.cut import Cut
from dpdist.inference.hierarchy.growing import grow_tree
from dpdist.inference.mixture.prediction import MixturePredictor
from dpdist.inference.outliers import Flagged, Threshold, flagged, low_quantile
from dpdist.inference.scattered import _nearness, _rows_within, _thinnest, chosen_components, tail_share
from dpdist.inference.transform import Preparation, Transform
from dpdist.models.allocations import DirichletProcess
from dpdist.models.families import Gaussian
from dpdist.models.mixture import Background, Model, Precision, local_step
from dpdist.models.sufficient_statistics import Summary
from tests.cases import ALLOCATIONS, FAMILIES, entropy_of, filled
from tests.runs import mixture

every_family = pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
K, N, SHARE = 4, 30, 0.2


class Backed:
    """A random model with a background, rows with weights, and its responsibilities (N, K + 1) by brute force."""

    def __init__(self, case, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.rows, self.weights = case.rows(rng, N, 3), rng.random(N) + 0.1
        self.family = filled(case, self.rows)
        self.features = self.family.features(self.rows)
        given = rng.dirichlet(np.ones(K), size=N)
        total = Summary((self.weights[:, None] * given).T @ self.features, np.zeros(K))
        self.outside = self.features.sum(axis=0)
        self.allocation = ALLOCATIONS[seed % len(ALLOCATIONS)]
        self.model = Model(self.family, self.allocation, Background(SHARE, self.outside))
        logits = self.features @ self.model.gradient(total.stats).T + np.log(1 - SHARE)
        self.beyond = self.features @ self.family.coefficients(self.outside[None])[:, 0] + np.log(SHARE)
        self.resp = softmax(np.column_stack([logits, self.beyond]), axis=1)
        self.predictor = MixturePredictor(self.model, Preparation(Transform(), None, 3), total, np.arange(K))

    def elbo(self, resp: np.ndarray) -> float:
        """The bound of responsibilities (N, k + 1), the background's last, by its definition."""
        order = np.argsort(-(self.weights @ resp[:, :-1])) if self.allocation.ordered else np.arange(resp.shape[1] - 1)
        stats = (self.weights[:, None] * resp[:, order]).T @ self.features
        evidence = self.family.log_evidence(stats).sum() + self.allocation.log_evidence(stats[:, -1])
        shares = resp[:, -1] * self.beyond + (1 - resp[:, -1]) * np.log(1 - SHARE)
        base = self.family.log_base_measure(self.rows)
        return float(evidence + entropy_of(resp, self.weights).sum() + self.weights @ (shares + base))


def test_counts_are_sums_in_float64_also_beside_a_background() -> None:
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(4096, 3)), rng.random(4096) + 0.1
    family = filled(next(case for case in FAMILIES if case.name == "gaussian"), rows)
    features = family.features(rows)
    total = Summary(rng.dirichlet(np.ones(K), 4096).T @ features, np.zeros(K))
    model = Model(family, DirichletProcess(1.0), Background(SHARE, features.sum(axis=0)))
    resp, found = local_step(model.posterior(total, Precision(np.float32)), features.astype(np.float32), weights)
    np.testing.assert_allclose(found.counts, weights @ resp.astype(np.float64), rtol=1e-8)


@every_family
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_bound_counts_what_the_background_takes(case, seed) -> None:
    backed = Backed(case, seed)
    posterior = backed.model.posterior(backed.predictor.total, Precision(floor=0.0))
    resp, summary = local_step(posterior, backed.features, backed.weights)
    np.testing.assert_allclose(resp, backed.resp[:, :-1], rtol=1e-7, atol=1e-12)
    measure = float(backed.weights @ backed.family.log_base_measure(backed.rows))
    order = np.argsort(-summary.counts) if backed.allocation.ordered else np.arange(K)
    found = backed.model.elbo(replace(summary.take(order), base=summary.base + measure))
    np.testing.assert_allclose(found, backed.elbo(backed.resp), rtol=1e-11, atol=1e-9)


@every_family
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32 - 1))
def test_levels_of_a_tree_stay_exact_beside_a_background(case, seed) -> None:
    backed = Backed(case, seed)
    tree = grow_tree(backed.predictor, ArraySource(backed.rows, backed.weights, 11), SerialBackend(), 0)
    for level in range(K):
        groups = tree.groups(K - level)
        members = np.zeros((K + 1, K - level + 1))
        members[np.arange(K + 1), np.append(groups, K - level)] = 1.0
        np.testing.assert_allclose(tree.elbo[level], backed.elbo(backed.resp @ members), rtol=1e-7, atol=1e-6)


@every_family
def test_a_background_has_its_share_of_the_density_and_its_rows(case) -> None:
    backed = Backed(case, 1)
    part, plain = ArraySource(backed.rows, partition_rows=N).partitions[0], replace(backed.model, background=None)
    without = replace(backed.predictor, model=plain)
    alone = backed.family.log_predictive(backed.features, backed.outside[None])[:, 0]
    beyond = np.log(SHARE) + alone + backed.family.log_base_measure(backed.rows)
    expected = np.logaddexp(np.log(1 - SHARE) + without.log_density(part), beyond)
    np.testing.assert_allclose(backed.predictor.log_density(part), expected, rtol=1e-9)
    np.testing.assert_array_equal(backed.predictor.background_margins(part) < 0, backed.resp.argmax(axis=1) == K)
    among = backed.resp[:, :-1] / backed.resp[:, :-1].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(backed.predictor.probabilities(part), among, rtol=1e-6, atol=1e-12)
    assert np.isposinf(without.background_margins(part)).all()


@every_family
def test_draws_beyond_the_components_are_of_what_is_not_seen_and_of_the_background(case) -> None:
    backed, groups = Backed(case, 1), np.array([0, 1, 0, 1])
    places, rng = np.repeat([K, K + 1], 20), np.random.default_rng(0)
    stats = np.stack([*backed.predictor.total.stats, np.zeros_like(backed.outside), backed.outside])
    expected = backed.family.sample(stats, places, np.random.default_rng(0))
    np.testing.assert_array_equal(backed.predictor.sample(places, rng), expected)
    drawn = Cut(backed.predictor, groups).sample(places - K + 2, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn, expected)


def test_samples_are_as_often_of_the_background_as_it_is_expected() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([0.1 * rng.normal(size=(400, 2)), 10 * rng.normal(size=(150, 2))])
    model = mixture(background=0.3, moves=[], max_laps=5).fit(x)
    drawn, components = model.sample(20_000)
    assert (components == -1).mean() == pytest.approx(0.3, abs=0.02)
    edges = np.linspace(-5, 5, 401)
    middles = np.stack(np.meshgrid(*[(edges[1:] + edges[:-1]) / 2] * 2), axis=-1).reshape(-1, 2)
    within = np.exp(model.score_samples(middles)).sum() * (edges[1] - edges[0]) ** 2
    assert (np.abs(drawn) < 5).all(axis=1).mean() == pytest.approx(within, abs=0.02)


def test_rows_whose_totals_are_open_have_no_threshold() -> None:
    x = np.random.default_rng(0).multinomial(20, [0.2, 0.3, 0.5], size=60)
    model = mixture(family="multinomial", max_laps=2).fit(x)
    assert not hasattr(model, "scattered_")
    for ask in (lambda: model.predict(x, outliers=True), model.outlier_threshold):
        with pytest.raises(dpdist.InputError, match=r"Multinomial does not model their totals.*background=0\.01"):
            ask()
    backed = mixture(family="multinomial", max_laps=2, background=0.01).fit(x)
    assert set(backed.predict(x, outliers=True)) <= {-1, 0}
    for flag in (np.True_, np.False_):
        np.testing.assert_array_equal(backed.predict(x, outliers=flag), backed.predict(x, outliers=bool(flag)))
    assert (backed.predict(x, outliers=np.False_) >= 0).all()


@every_family
def test_densities_under_components_make_up_the_models_and_those_of_cuts(case) -> None:
    backed = Backed(case, 2)
    part, plain = ArraySource(backed.rows, partition_rows=N).partitions[0], replace(backed.model, background=None)
    model = replace(backed.predictor, model=plain)
    (weights, rest), groups = model.weights(), np.array([0, 1, 0, 1])
    nothing = backed.family.log_predictive(backed.features, np.zeros((1, backed.features.shape[1])))[:, 0]
    among = model.log_density_among(part, np.arange(K)) + np.log(weights.sum())
    with np.errstate(divide="ignore"):
        unseen = np.log(rest) + nothing + backed.family.log_base_measure(backed.rows)
    np.testing.assert_allclose(np.logaddexp(among, unseen), model.log_density(part), rtol=1e-9)
    fewer = Cut(model, groups)
    held = model.log_density_among(part, np.flatnonzero(groups == 1))
    np.testing.assert_allclose(fewer.log_densities(part)[:, 1], held, rtol=1e-9)
    np.testing.assert_allclose(fewer.log_density_among(part, np.arange(2)), among - np.log(weights.sum()), rtol=1e-9)


@given(seed=st.integers(0, 2**32 - 1))
def test_which_components_are_of_scattered_rows_depends_on_no_order(seed) -> None:
    rng = np.random.default_rng(seed)
    shares, densities = rng.dirichlet(np.full(6, 0.5)), 4 * rng.normal(size=(6, 20, 6))
    densities[np.arange(6), :, np.arange(6)] += 6
    gains, order = 3 * rng.normal(size=6), rng.permutation(6)
    found = chosen_components(shares, gains, densities)
    assert shares[found].sum() <= 0.1
    permuted = chosen_components(shares[order], gains[order], densities[order][:, :, order])
    np.testing.assert_array_equal(permuted, found[order])


@every_family
def test_a_gain_as_a_cluster_is_over_a_background_half_of_all_rows_and_half_of_its_own(case) -> None:
    backed, owners = Backed(case, 4), np.arange(N) % 3
    total = Summary(np.eye(3)[owners].T @ backed.features, np.zeros(3))
    found = replace(backed.predictor, total=total, ids=np.arange(3)).gains_as_clusters()
    for k in range(3):
        own = owners == k
        background = (0.5 + 0.5 * own * N / own.sum()) @ backed.features
        beyond = backed.features[own] @ backed.family.coefficients(background[None])
        alone = backed.family.log_evidence(backed.features[own].sum(axis=0)[None])[0]
        np.testing.assert_allclose(found[k], alone - beyond.sum(), rtol=1e-9, atol=1e-9)


@every_family
def test_labels_are_the_most_probable_of_what_is_not_scattered(case) -> None:
    backed = Backed(case, 1)
    part = ArraySource(backed.rows, partition_rows=N).partitions[0]
    away = np.arange(K) == np.bincount(backed.predictor.labels(part)).argmax()
    expected = np.where(away, -1.0, backed.predictor.probabilities(part)).argmax(axis=1)
    np.testing.assert_array_equal(Flagged(backed.predictor, Threshold(-np.inf, away)).labels(part), expected)


@pytest.mark.parametrize(("rate", "draws"), [(None, 100_000), (0.02, 25_000), (0.5, 10_000)])
def test_a_rate_is_of_one_scattered_row_at_least_and_takes_draws_enough(monkeypatch, rate, draws) -> None:
    x, asked = np.random.default_rng(0).normal(size=(300, 1)), list[tuple[int, float]]()
    monkeypatch.setattr(outliers, "low_quantile", lambda scores, share: asked.append((len(scores), share)) or 0.0)
    assert not flagged(known(x, np.zeros(300, dtype=int)), SerialBackend(), 0, rate or True).threshold.scattered.any()
    assert asked == [(draws, pytest.approx(rate or tail_share(1 / 300)))]


@pytest.mark.parametrize("share", [0.2, 1e-4, 1e-6])
def test_the_tail_of_exponential_scores_is_told_beyond_all_draws(share) -> None:
    scores = -np.random.default_rng(3).exponential(size=100_000)
    assert abs(low_quantile(scores, share) - np.log(share)) < 0.1 * -np.log(share)
    assert low_quantile(5 + 2 * scores, share) == pytest.approx(5 + 2 * low_quantile(scores, share))
    assert low_quantile(np.repeat([-2.0, -1.0], 50_000), 1e-6) == -2.0


def drawn(columns: int, share: float, seed: int, kinds: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Rows of clusters, a share of them moved to anywhere in their box, and of what they are; `kinds` for moved ones.

    The box is wide enough for clusters to leave nine tenths of it free.
    """
    rng, width = np.random.default_rng(seed), 60.0 if columns == 2 else 12.0
    z = rng.integers(kinds, size=10_000)
    x = rng.uniform(-width, width, size=(kinds, columns))[z] + rng.normal(size=(len(z), columns))
    moved = rng.choice(len(z), round(share * len(z)), replace=False)
    x[moved] = rng.uniform(x.min(axis=0), x.max(axis=0), size=(len(moved), columns))
    z[moved] = kinds
    return x, z


def known(x: np.ndarray, z: np.ndarray) -> MixturePredictor:
    """A model of rows whose components are known, without a fit."""
    family = Gaussian().with_defaults(summarise_source(ArraySource(x), SerialBackend()).moments())
    total = Summary(np.eye(z.max() + 1)[z].T @ family.features(x), np.zeros(z.max() + 1))
    preparation = Preparation(Transform(), None, x.shape[1])
    return MixturePredictor(Model(family, DirichletProcess(1.0)), preparation, total, np.arange(z.max() + 1))


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05])
@pytest.mark.parametrize("columns", [2, 5, 10])
def test_scattered_rows_are_found_at_any_share_without_a_guess(columns, share) -> None:
    x, z = drawn(columns, share, seed=1)
    model = flagged(known(x, z), SerialBackend(), 0, True)
    assert_found(model.labels(ArraySource(x, partition_rows=len(x)).partitions[0]), z == 20)
    np.testing.assert_array_equal(model.threshold.scattered, np.arange(21) == 20)


@pytest.mark.parametrize("columns", [2, 10])
def test_where_nothing_is_scattered_next_to_nothing_is_an_outlier(columns) -> None:
    x, z = drawn(columns, 0.0, seed=2)
    rng = np.random.default_rng(4)
    one = rng.normal(size=(10_000, columns))  # a single cloud, cut in any thirty: components all upon one another
    for rows, of in ((x, z), (one, rng.integers(30, size=len(one)))):
        model = flagged(known(rows, of), SerialBackend(), 0, True)
        assert model.threshold is not None and not model.threshold.scattered.any()
        assert (model.labels(ArraySource(rows, partition_rows=len(rows)).partitions[0]) == -1).sum() <= 3


def test_a_small_tight_cluster_apart_is_a_cluster_and_as_many_rows_apart_are_not() -> None:
    x, z = drawn(5, 0.0, seed=3)
    rng = np.random.default_rng(0)
    tight = 30 + 0.1 * rng.normal(size=(5, 5))
    for five, scattered in ((tight, False), (rng.uniform(-14, 14, size=(5, 5)), True)):
        rows = np.concatenate([x, five])
        model = flagged(known(rows, np.append(z, np.full(5, 20))), SerialBackend(), 0, True)
        labels = model.labels(ArraySource(rows, partition_rows=len(rows)).partitions[0])
        assert (labels[-5:] == (-1 if scattered else 20)).all()
        cut = replace(model, whole=Cut(model.whole, np.append(np.arange(20) // 2, 10)))
        np.testing.assert_array_equal(
            cut.labels(ArraySource(rows, partition_rows=len(rows)).partitions[0]) == -1, labels == -1
        )
        assert cut.clusters().sum() == 11 - scattered


@pytest.fixture(scope="module")
def scattered() -> tuple[np.ndarray, np.ndarray]:
    """Rows of 20 Gaussians, one in a hundred moved to anywhere between the least and the largest, and which."""
    rng = np.random.default_rng(0)
    means = rng.uniform(-10, 10, size=(20, 10))
    x = means[rng.integers(20, size=10_000)] + rng.normal(size=(10_000, 10))
    moved = rng.choice(10_000, 100, replace=False)
    x[moved] = rng.uniform(x.min(axis=0), x.max(axis=0), size=(100, 10))
    return x, np.isin(np.arange(10_000), moved)


def assert_found(labels: np.ndarray, truth: np.ndarray) -> None:
    """Precision and recall of nine tenths and more."""
    both = ((labels == -1) & truth).sum()
    assert both >= 0.9 * (labels == -1).sum() and both >= 0.9 * truth.sum()


@pytest.mark.slow
def test_scattered_rows_are_found_at_the_default_threshold(scattered) -> None:
    x, truth = scattered
    model = dpdist.DPMixture(Gaussian(), random_state=0).fit(x)
    labels = model.predict(x, outliers=True)
    assert_found(labels, truth)
    assert (~model.scattered_).sum() == 20 == len(np.unique(labels[labels >= 0]))


@pytest.mark.slow
def test_beside_a_background_there_are_as_many_clusters_as_there_are(scattered, tmp_path) -> None:
    x, truth = scattered
    model = dpdist.DPMixture(Gaussian(), background=0.02, random_state=0).fit(x)
    assert model.n_components_ == 20
    labels = model.predict(x, outliers=True)
    assert_found(labels, truth)
    model.save(tmp_path / "model.zarr")
    loaded = dpdist.load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.predict(x, outliers=True), labels)
    assert loaded.background == 0.02 and len(loaded.tree(x)) == 20
    np.testing.assert_array_equal(loaded.cut(10).predict(x, outliers=True) == -1, labels == -1)
    with pytest.raises(dpdist.InputError, match="cannot extend a model with a background"):
        dpdist.extend(tmp_path / "model.zarr", x, out=tmp_path / "more.zarr")


@pytest.mark.parametrize(("rows", "rate"), [(500, 0.01), (20_000, 0.01), (20_000, 0.2)])
def test_a_threshold_leaves_its_share_of_rows_without_outliers_below(rows, rate) -> None:
    x = np.random.default_rng(0).normal(size=(rows, 2))
    model = mixture(family=Gaussian(), max_laps=1, row_transform=dpdist.TransformPlan(scale=True), concentration=10.0)
    labels = model.fit(x).predict(x, outliers=rate)
    below = labels == -1
    slack = 2.5 * np.sqrt(rate * rows)  # also where few rows leave much to the prior
    assert below.sum() > 0 and abs(below.sum() - rate * rows) <= slack
    # the density of what clusters draw, which is that of the model but for what is left to components unseen
    density = model.score_samples(x) - np.log1p(-model.rest_weight_)
    assert (below != (density < model.outlier_threshold(rate))).mean() < 1e-3
    lazy = model.predict(da.from_array(x, chunks=(9_000, 2)), outliers=rate)
    np.testing.assert_array_equal(lazy.compute(), labels)
    assert model.outlier_threshold(rate / 2) < model.outlier_threshold(rate)


def test_draws_are_scored_once_a_model_and_rate(monkeypatch) -> None:
    x, asked = np.random.default_rng(0).normal(size=(300, 2)), list[str]()
    model = mixture(family=Gaussian(), max_laps=2).fit(x)
    scores_of = outliers.scores_of
    monkeypatch.setattr(outliers, "scores_of", lambda *given: asked.append(given[3]) or scores_of(*given))
    labels = [model.predict(x, outliers=True) for _ in range(2)]
    assert len(asked) == 1 and model.outlier_threshold() == model.outlier_threshold()
    model.decision_function(x), model.scattered_
    assert len(asked) == 1 and model.outlier_threshold(0.1) > model.outlier_threshold()
    assert len(asked) == 2
    other = mixture(family=Gaussian(), max_laps=2).fit(x + 100.0)
    np.testing.assert_array_equal(other.predict(x, outliers=True), -1)
    assert len(asked) == 3
    np.testing.assert_array_equal(labels[0], model.set_params(max_laps=3).fit(x).predict(x, outliers=True))
    assert len(asked) == 4 and (labels[0] == labels[1]).all()


def test_the_command_labels_outliers(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(500, 2))
    zarr.create_array("rows.zarr", shape=x.shape, dtype="float64", chunks=(300, 2))[...] = x
    model = mixture(family=Gaussian(), max_laps=2, background=0.01).fit(x)
    model.save("model.zarr")
    for option, expected in (
        (["--outliers"], model.predict(x, outliers=True)),
        (["--outlier-rate", "0.1"], model.predict(x, outliers=0.1)),
    ):
        app(["predict", "model.zarr", "rows.zarr", "--serial", "--overwrite", *option], standalone_mode=False)
        found = xr.open_zarr("labels.zarr", consolidated=False)["label"].values
        np.testing.assert_array_equal(found, expected)
        app(
            ["predict", "model.zarr", "rows.zarr", "--serial", "--out", "t.csv", "--overwrite", *option],
            standalone_mode=False,
        )
        table = pd.read_csv("t.csv")
        np.testing.assert_array_equal(table["label"], expected)
        np.testing.assert_array_equal(table["component_id"] == -1, expected == -1)
    assert (expected == -1).any()
    for wrong in (2.0, 0.0, "no"):
        with pytest.raises(dpdist.InputError, match="outliers should be true or false, or a rate"):
            model.predict(x, outliers=wrong)
    with pytest.raises(dpdist.InputError, match="rate should be"):
        model.outlier_threshold(1.0)
    with pytest.raises(dpdist.InputError, match="background should be"):
        mixture(background=1.0).fit(x)


def test_the_thinnest_components_are_tried_as_far_as_so_few_rows_may_be_scattered() -> None:
    shares, levels = np.array([0.5, 0.38, 0.06, 0.03, 0.03]), np.array([-1.0, -2.0, -5.0, -9.0, -7.0])
    weighed, every = np.repeat(levels[:, None, None], 20, axis=1), np.ones(5, dtype=bool)
    assert _thinnest(shares, weighed, every).tolist() == [False, False, False, True, True]
    without = np.arange(5) != 3
    assert _thinnest(shares, weighed, without).tolist() == [False, False, True, False, True]


def test_the_region_of_a_component_has_nine_in_ten_of_its_draws() -> None:
    densities = np.random.default_rng(0).normal(size=(3, 1000, 3))
    shares = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(np.diag(_rows_within(shares, densities)), 0.9 * shares, rtol=1e-6)


def test_of_thin_components_those_are_given_back_that_are_least_thin() -> None:
    """One whose draws lie where the large cluster has some is of that, not of what is scattered."""
    shares, rng = np.array([0.92, 0.04, 0.04]), np.random.default_rng(0)
    densities = np.full((3, 400, 3), -60.0)
    densities[0, :, 0] = rng.normal(-3, 1, size=400)
    densities[1, :, 0], densities[1, :, 1] = -40.0, -12.0
    densities[2, :, 0], densities[2, :, 2] = -4.5, -9.0
    assert chosen_components(shares, np.full(3, -9.0), densities).tolist() == [False, True, False]


def test_a_cluster_listed_as_two_halves_leaves_others_as_thin_as_they_were() -> None:
    densities = np.random.default_rng(0).normal(np.array([-9.0, -3, -3, -20])[:, None, None], 1.0, size=(4, 400, 4))
    shares, halves = np.array([0.5, 0.25, 0.16, 0.09]), np.array([0, 0, 1, 2, 3])
    split = shares[halves] / np.array([2, 2, 1, 1, 1])
    whole = _nearness(shares, densities + np.log(shares), np.arange(4) == 3)
    twice = densities[halves][:, :, halves] + np.log(split)
    np.testing.assert_allclose(_nearness(split, twice, np.arange(5) == 4), whole, rtol=1e-9)


@pytest.mark.parametrize("above", [False, True])
def test_a_component_apart_is_a_cluster_where_it_gains_more_than_to_be_one_of_the_scattered(monkeypatch, above) -> None:
    shares, densities = np.array([0.93, 0.05, 0.02]), np.full((3, 400, 3), -60.0)
    densities[np.arange(3), :, np.arange(3)] = -9.0
    gains = np.array([9.0, np.log(0.07 / 0.05) + (0.01 if above else -0.01), -9.0])
    model = SimpleNamespace(shares=lambda: shares, rows=500.0, gains_as_clusters=lambda: 500 * shares * gains)
    monkeypatch.setattr(scattering, "_densities_of_draws", lambda *_: densities)
    found = scattering.scattered_components(model, SerialBackend(), 0)
    assert found.tolist() == [False, not above, True]
