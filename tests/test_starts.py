"""Starts of memoized runs by a sequential pass: over a sample or over everything, for every family."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import dpdist
from dpdist.data import ArraySource
from dpdist.data.base import Partitioning
from dpdist.execution import SerialBackend
from dpdist.execution.connecting import local_backend
from dpdist.inference import starts
from dpdist.inference.moves.seeding import nearest_seeds
from dpdist.inference.sva.combine import pass_over
from dpdist.models.families import IsotropicGaussian
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.methods.mixture import prepared_problem, start_summary
from tests.cases import FAMILIES, FamilyCase, entropy_of
from tests.runs import clusters, mixture, source_of

CASES = pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)


def start(model: dpdist.DPMixture, source, backend=None) -> Summary:
    """The statistics that a model starts from."""
    backend = backend or SerialBackend()
    spec = model.spec()
    summary = start_summary(spec, prepared_problem(spec, source, backend), source, backend)
    assert summary is not None
    return summary


@CASES
@pytest.mark.parametrize("rows", [None, 300], ids=["everything", "sample"])
def test_a_sequential_start_holds_the_weight_of_all_rows(case: FamilyCase, rows: int | None) -> None:
    x = case.rows(np.random.default_rng(0), 900, 4)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, size=len(x))
    model = mixture(family=case.make(), initial="sva", initial_rows=rows, initial_components=5)
    found = start(model, ArraySource(x, weights, 100))
    assert found.counts.sum() == pytest.approx(weights.sum(), rel=1e-9)
    assert (found.counts > 0).all() and (found.entropy >= -1e-9).all()


@CASES
@pytest.mark.parametrize("start_name", ["k-means++", "sva", "labels", "responsibilities"])
def test_rows_without_weight_are_as_if_absent_from_a_start(case: FamilyCase, start_name: str) -> None:
    rng = np.random.default_rng(0)
    rows, kept = case.rows(rng, 400, 3), rng.random(400) < 0.5
    kept[100:200] = False
    weights = np.where(kept, rng.uniform(0.5, 2, 400), 0.0)
    masked = np.where(kept[:, None], rows, 1e30)
    labels = np.arange(400) % 3
    shares = rng.dirichlet(np.ones(3), 400)
    given = {"labels": (labels, labels[kept]), "responsibilities": (shares, shares[kept])}
    initial = given.get(start_name, (start_name, start_name))
    usual = {"family": case.make(), "initial_components": 3, "initial_rows": 300}
    ends = np.cumsum(kept)[[99, 299, 399]]
    one = start(
        mixture(**usual, initial=initial[0]), ArraySource(masked, weights, cut=Partitioning((0, 100, 200, 300, 400)))
    )
    two = start(
        mixture(**usual, initial=initial[1]),
        ArraySource(rows[kept], weights[kept], cut=Partitioning((0, *map(int, ends)))),
    )
    if start_name in given:  # other draws are keyed by the partition, of which the one without weight is missing
        np.testing.assert_allclose(one.stats, two.stats, rtol=1e-9, atol=1e-7)
        np.testing.assert_allclose(one.entropy, two.entropy, rtol=1e-9, atol=1e-9)
    assert one.counts.sum() == pytest.approx(weights.sum(), rel=1e-9) and one.base == pytest.approx(two.base, rel=1e-9)
    assert np.isfinite(one.stats).all() and (one.counts > 0).all()


@CASES
def test_labels_and_responsibilities_give_their_weighted_statistics(case: FamilyCase) -> None:
    rng = np.random.default_rng(1)
    rows, weights = case.rows(rng, 330, 3), rng.uniform(0.1, 3, 330)
    source = ArraySource(rows, weights, 100)
    labels, shares = rng.integers(4, size=330), rng.dirichlet(np.ones(4), 330)
    for given, resp in ((labels, np.eye(4)[labels]), (shares, shares)):
        model = mixture(family=case.make(), initial=given)
        spec = model.spec()
        problem = prepared_problem(spec, source, SerialBackend())
        prepared = problem.preparation.apply(rows)
        found = start(model, source)
        expected = (weights[:, None] * resp).T @ problem.model.family.features(prepared)
        np.testing.assert_allclose(found.stats, expected, rtol=1e-9, atol=1e-7)
        np.testing.assert_allclose(found.entropy, entropy_of(resp, weights), rtol=1e-9, atol=1e-9)
        assert found.base == pytest.approx(weights @ problem.model.family.log_base_measure(prepared), rel=1e-9)


@CASES
def test_a_kmeans_start_holds_rows_whole_each_with_its_nearest_seed(case: FamilyCase) -> None:
    rng = np.random.default_rng(2)
    rows, weights = case.rows(rng, 330, 3), rng.integers(1, 4, 330).astype(float)
    model = mixture(family=case.make(), initial="k-means++", initial_components=4)
    found = start(model, ArraySource(rows, weights, 100))
    assert not found.entropy.any() and found.counts.sum() == weights.sum()
    np.testing.assert_allclose(found.counts, np.rint(found.counts))
    order = rng.permutation(330)
    repeated = start(model, ArraySource(np.repeat(rows[order], weights[order].astype(int), axis=0), partition_rows=70))
    np.testing.assert_allclose(repeated.stats, found.stats, rtol=1e-9, atol=1e-7)
    other = start(mixture(**{**model.get_params(), "random_state": 1}), ArraySource(rows, weights, 100))
    assert not np.array_equal(other.counts, found.counts)


def test_kmeans_seeds_lie_far_apart() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(990, 2)), 1000.0 + rng.normal(size=(10, 2))])
    for seed in range(5):
        model = mixture(initial="k-means++", initial_components=2, random_state=seed)
        assert sorted(start(model, source_of(rows)).counts) == [10, 990]


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({"initial": "k-means++", "initial_components": 5}, 10_000),
        ({"initial": "k-means++", "initial_components": 150}, 15_000),
        ({"initial": "sva", "initial_rows": 4000}, 4000),
    ],
)
def test_starts_draw_as_many_rows_of_those_that_count_as_they_say(parameters, wanted, monkeypatch) -> None:
    drawn = []

    def spy(points, weights, seeds, rng):
        drawn.append(len(points))
        return nearest_seeds(points, weights, seeds, rng)

    monkeypatch.setattr("dpdist.inference.starts.nearest_seeds", spy)
    monkeypatch.setattr("dpdist.inference.empirical.nearest_seeds", spy)
    rows = clusters(0, 30_000, 1)
    weights = np.where(np.arange(30_000) % 3, 7.0, 0.0)
    found = start(mixture(family=dpdist.families.DiagonalGaussian(), **parameters), source_of(rows, 5000, weights))
    assert drawn[0] == pytest.approx(wanted, abs=4 * wanted**0.5)
    assert found.counts.sum() == pytest.approx(140_000, rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_a_start_that_is_to_draw_a_row_or_two_draws_some(seed: int) -> None:
    for name in ("sva", "k-means++"):
        model = mixture(initial=name, initial_rows=1, random_state=seed)
        assert start(model, source_of(clusters(seed, 30_000, 1))).counts.sum() == pytest.approx(30_000)


def test_starts_draw_from_every_partition_by_keys_of_its_own(monkeypatch) -> None:
    drawn = []

    def spy(points, weights, seeds, rng):
        drawn.append(points[:, 0])
        return nearest_seeds(points, weights, seeds, rng)

    monkeypatch.setattr("dpdist.inference.starts.nearest_seeds", spy)
    rows = np.tile(np.arange(10_000.0), 2)[:, None]
    for seed in (0, 1):
        model = mixture(initial="k-means++", initial_components=5, random_state=seed)
        start(model, ArraySource(rows, partition_rows=10_000))
    for points in drawn:  # half of all: a quarter of the numbers twice, not half of them
        assert (np.unique(points, return_counts=True)[1] == 2).sum() == pytest.approx(2500, abs=200)
    assert len(drawn[0]) != len(drawn[1]) or (drawn[0] != drawn[1]).any()


def test_a_sequential_start_keeps_small_groups_and_no_more_components_than_may_be() -> None:
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [40.0, 0.0], [0.0, 40.0], [40.0, 40.0]])
    rows = centres[rng.choice(4, size=3000, p=[0.4, 0.3, 0.29, 0.01])] + rng.normal(size=(3000, 2))
    given = {"family": IsotropicGaussian(1.0), "initial": "sva", "initial_rows": 3000}
    found = start(mixture(**given), source_of(rows, 500))
    assert len(found.counts) == 4
    np.testing.assert_allclose(np.sort(found.counts)[0], (rows.min(axis=1) > 20).sum(), rtol=1e-6)
    assert len(start(mixture(**given, max_components=3), source_of(rows, 500)).counts) <= 3


def test_a_sequential_start_over_a_sample_passes_in_a_random_order(monkeypatch) -> None:
    passed = []

    def spy(blocks, *given):
        passed.append(np.concatenate([rows[:, 0] for rows, _ in blocks]))
        return pass_over(blocks, *given)

    monkeypatch.setattr("dpdist.inference.starts.pass_over", spy)
    given = {"family": IsotropicGaussian(1.0), "initial": "sva", "initial_rows": 20_000}
    start(mixture(**given), source_of(np.arange(5000.0)[:, None] / 500, 1000))
    assert abs(np.corrcoef(passed[0], np.arange(5000))[0, 1]) < 0.1


def test_a_start_over_everything_sums_the_statistics_of_all_rows() -> None:
    x = clusters(0, 900, 3)
    model = mixture(family=dpdist.families.DiagonalGaussian(), initial="sva", initial_rows=None)
    source = source_of(x)
    found = start(model, source)
    spec = model.spec()
    problem = prepared_problem(spec, source, SerialBackend())
    features = problem.model.family.features(problem.preparation.apply(x))
    np.testing.assert_allclose(found.stats.sum(axis=0), features.sum(axis=0), rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("rows", [None, 500], ids=["everything", "sample"])
def test_a_sequential_start_has_the_same_bits_on_dask(rows: int | None) -> None:
    source = source_of(clusters(1, 900, 3))
    model = mixture(initial="sva", initial_rows=rows)
    here = start(model, source)
    backend = local_backend(2)
    try:
        there = start(model, source, backend)
    finally:
        backend.close()
    assert here.stats.tobytes() == there.stats.tobytes() and here.entropy.tobytes() == there.entropy.tobytes()


@pytest.mark.parametrize("family", [dpdist.families.Gaussian(), dpdist.families.IsotropicGaussian(1.0)], ids=repr)
def test_a_run_from_a_sequential_start_finds_the_groups(family) -> None:
    model = dpdist.DPMixture(family, initial="sva", random_state=0, max_laps=30).fit(
        clusters(3, 1500, 4, 6, spread=9.0)
    )
    assert model.n_components_ == 6


def test_a_sequential_start_of_rows_on_a_few_points_has_no_more_components() -> None:
    found = start(mixture(initial="sva"), source_of(np.repeat(np.eye(3), 100, axis=0)))
    assert len(found.counts) <= 3 and found.counts.sum() == pytest.approx(300)


def test_a_pass_over_all_rows_draws_none_of_them_for_families_without_spread(monkeypatch) -> None:
    monkeypatch.setattr(starts, "draw_rows", lambda *_: pytest.fail("rows were drawn"))
    counts = np.random.default_rng(0).poisson(3.0, size=(90, 4)).astype(float)
    assert mixture(family="poisson", initial="sva", initial_rows=None, max_laps=1).fit(source_of(counts)).n_iter_ == 1


def test_an_unknown_start_is_refused_by_name() -> None:
    with pytest.raises(dpdist.InputError, match="'sva'"):
        start(mixture(initial="svd"), source_of(clusters(0)))


# a start from another model


@CASES
def test_a_model_starts_a_run_with_its_responsibilities_however_it_is_given(case: FamilyCase, tmp_path) -> None:
    rows, weights = case.rows(np.random.default_rng(0), 400, 3), np.random.default_rng(1).integers(0, 4, 400) * 1.0
    source, given = source_of(rows, 90, weights), {"family": case.make(), "initial_components": 4}
    model = mixture(**given, initial="k-means++", max_laps=2).fit(rows)
    model.save(tmp_path / "model.zarr")
    shares = model.predict_proba(rows)
    expected = start(mixture(**given, initial=shares[:, (weights @ shares) > 0]), source)
    found = [start(mixture(**given, initial=each), source) for each in (model, tmp_path / "model.zarr")]
    for each in found:
        np.testing.assert_allclose(each.stats, expected.stats, rtol=1e-9, atol=1e-7)
        np.testing.assert_allclose(each.entropy, expected.entropy, rtol=1e-7, atol=1e-7)
    assert found[0].stats.tobytes() == found[1].stats.tobytes()


@pytest.mark.parametrize("plan", [{}, {"center": True, "scale": True}, {"pca": 2}], ids=str)
@pytest.mark.parametrize("family", [IsotropicGaussian(1.0), dpdist.families.DiagonalGaussian()], ids=repr)
def test_a_model_of_the_same_rows_starts_a_run_with_its_own_sums(family, plan, monkeypatch) -> None:
    rows, plan = clusters(2, 1200, 4, 5, 12.0), dpdist.TransformPlan(**plan)
    passed = dpdist.SVA(family, row_transform=plan, prune=0.1, random_state=0).fit(source_of(rows, 300))
    fitted = mixture(family=family, row_transform=plan, initial="k-means++", max_laps=2).fit(source_of(rows, 500))
    assert passed.pruned_weight_ > 0 or family.name != "diagonal_gaussian"
    monkeypatch.setattr(starts, "_sums_under_on_partition", None)
    for model in (passed, fitted):
        found = start(mixture(family=family, row_transform=plan, initial=model), source_of(rows, 90))
        stats = model._predictor.mixture()[1].stats
        np.testing.assert_allclose(found.stats, stats * (1200 / stats[:, -1].sum()), rtol=1e-12)


@pytest.mark.parametrize(
    ("changed", "given"),
    [
        (lambda rows: rows[:-1], {}),
        (lambda rows: rows, {"family": dpdist.families.DiagonalGaussian()}),
        (lambda rows: rows, {"row_transform": dpdist.TransformPlan(scale=True)}),
        (lambda rows: rows, {"row_transform": dpdist.TransformPlan(pca=3)}),
    ],
    ids=["other rows", "another family", "scaled", "axes"],
)
def test_a_model_of_others_starts_a_run_with_what_it_says_of_all_rows(changed, given) -> None:
    rows = clusters(2, 1200, 4, 5, 3.0)
    model = mixture(family=IsotropicGaussian(1.0), initial="k-means++", max_laps=2).fit(rows)
    given = {"family": IsotropicGaussian(1.0), **given, "initial": model}
    found = start(mixture(**given), source_of(changed(rows)))
    np.testing.assert_allclose(found.counts, model.predict_proba(changed(rows)).sum(axis=0), rtol=1e-9)
    assert np.abs(found.counts - model._fitted.total.counts * found.counts.sum() / 1200).max() > 1e-3


def test_a_pass_over_a_sample_starts_a_run_of_another_family_and_transform() -> None:
    rows = clusters(2, 1200, 4, 5, 12.0)
    passed = dpdist.SVA(IsotropicGaussian(1.0), random_state=0).fit(rows[:300])
    plan = dpdist.TransformPlan(center=True, pca=3)
    found = start(mixture(initial=passed, row_transform=plan), source_of(rows))
    assert found.counts.sum() == pytest.approx(1200) and found.stats.shape == (passed.n_components_, 10)
    np.testing.assert_allclose(found.counts, passed.predict_proba(rows).sum(axis=0), rtol=1e-9)


def test_a_start_leaves_out_the_components_that_no_row_belongs_to() -> None:
    near, far = clusters(0, 300), clusters(1, 300) + 1e4
    model = mixture(initial=np.arange(600) // 300, max_laps=1, moves=[]).fit(np.concatenate([near, far]))
    assert model.n_components_ == 2
    assert start(mixture(initial=model), source_of(near)).counts == pytest.approx([300])


def test_a_start_leaves_out_the_components_that_a_model_of_the_same_rows_kept_empty(monkeypatch) -> None:
    rows = np.concatenate([clusters(0, 300), clusters(1, 300) + 1e3])
    model = mixture(initial=2 * (np.arange(600) // 300), max_laps=1, moves=[]).fit(rows)
    assert model._fitted.total.counts.tolist() == [300, 0, 300]
    monkeypatch.setattr(starts, "_sums_under_on_partition", None)
    assert start(mixture(initial=model), source_of(rows)).counts == pytest.approx([300, 300])


def test_a_run_from_another_resumes_to_the_same_bits_when_the_other_is_gone(tmp_path) -> None:
    rows, other = clusters(0, 600), tmp_path / "other.zarr"
    mixture(initial="k-means++", max_laps=1).fit(rows).save(other)
    whole = mixture(initial=other, max_laps=6).fit(rows)
    for _ in mixture(initial=other, max_laps=6).iter_fit(rows, checkpoint_path=tmp_path / "run", checkpoint_seconds=0):
        break
    shutil.rmtree(other)
    resumed = dpdist.resume(tmp_path / "run", rows)
    assert resumed.initial == str(other)
    assert resumed._fitted.total.stats.tobytes() == whole._fitted.total.stats.tobytes()


def test_a_fitted_start_comes_back_with_a_saved_model(tmp_path) -> None:
    rows = clusters(0, 300)
    passed = dpdist.SVA(random_state=0).fit(rows)
    model = mixture(initial=passed).fit(rows)
    model.save(tmp_path / "model")
    again = dpdist.load(tmp_path / "model").fit(rows)
    assert again._fitted.total.stats.tobytes() == model._fitted.total.stats.tobytes()


def test_a_start_that_is_no_model_of_such_rows_is_refused_in_a_sentence(tmp_path) -> None:
    rows = clusters(0, 200)
    dpdist.HDPTopicModel(initial_topics=2, max_laps=1).fit(np.eye(4, dtype=int)).save(tmp_path / "topics")
    for given in (tmp_path / "nowhere", tmp_path / "topics", "k-means"):
        with pytest.raises(
            dpdist.InputError, match=r"initial should be 'one', .* the path of an existing run or model of rows"
        ):
            mixture(initial=given).fit(rows)
    with pytest.raises(dpdist.InputError, match=r"initial should be a fitted estimator; got .* Call its fit first"):
        mixture(initial=mixture()).fit(rows)
    with pytest.raises(dpdist.InputError, match="but initial is expecting 3"):
        mixture(initial=mixture(max_laps=1).fit(rows)).fit(rows[:, :2])
