"""Estimators: scikit-learn's conventions, every kind of input, and bad input refused with a sentence."""

from __future__ import annotations

import copy
import warnings

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

import dpdist
from dpdist.data import ArraySource
from dpdist.data.corpora import write_corpus
from dpdist.models.families import Bernoulli, Gaussian, Multinomial, Poisson
from tests.runs import ALL_MOVES, FEW_MOVES, clusters, mixture


def test_every_kind_of_input_gives_the_same_clustering(tmp_path) -> None:
    rows = clusters(1)
    stored = zarr.create_array(tmp_path / "rows.zarr", shape=rows.shape, dtype="float64", chunks=(300, 3))
    stored[...] = rows
    kinds = [
        rows,
        rows.tolist(),
        da.from_array(rows, chunks=(300, 3)),
        xr.DataArray(rows, dims=("row", "column")),
        xr.DataArray(da.from_array(rows, chunks=(300, 3))),
        stored,
        tmp_path / "rows.zarr",
        str(tmp_path / "rows.zarr"),
    ]
    for kind in kinds:
        model = mixture(max_laps=40).fit(kind)
        assert model.n_components_ == 5
        assert len(np.unique(np.asarray(model.predict(kind)))) == 5


FITTED = {
    "mixture": lambda: mixture(max_laps=2),
    "finite": lambda: dpdist.FiniteMixture(n_components=2, max_laps=2, moves=FEW_MOVES, random_state=0),
    "pass": lambda: dpdist.SVA(random_state=0),
    "topics": lambda: dpdist.HDPTopicModel(initial_topics=2, max_laps=2, random_state=0),
    "online topics": lambda: dpdist.HDPTopicModel(
        initial_topics=2, max_laps=2, weights="point", schedule=dpdist.schedules.Stochastic(batches=2), random_state=0
    ),
}
NAMED = {
    "pandas": lambda rows, names: pd.DataFrame(rows, columns=names),
    "xarray": lambda rows, names: xr.DataArray(rows, dims=("row", "column"), coords={"column": names}),
    "xarray of dask": lambda rows, names: xr.DataArray(
        da.from_array(rows, chunks=(50, 4)), dims=("row", "column"), coords={"column": names}
    ),
    "source": lambda rows, names: ArraySource(rows, names=tuple(names)),
}


def asked(model, data) -> list[np.ndarray]:
    """All that a model says of rows, one by one and as a whole."""
    methods = ("transform", "predict", "predict_proba", "score_samples", "score")
    return [np.asarray(getattr(model, method)(data)) for method in methods if hasattr(model, method)]


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize("estimator", FITTED)
def test_columns_are_known_by_name_whoever_asks_and_after_saving(tmp_path, estimator, kind) -> None:
    rows, names = np.random.default_rng(0).poisson([1, 5, 2, 9], size=(200, 4)).astype(float), ["q", "b", "z", "a"]
    model = FITTED[estimator]().fit(NAMED[kind](rows, names))
    model.save(tmp_path / "model.zarr")
    for each in (model, dpdist.load(tmp_path / "model.zarr")):
        assert each.feature_names_in_.dtype == object and each.feature_names_in_.tolist() == names
        assert each.n_features_in_ == 4
        expected = asked(each, NAMED["pandas"](rows, names))
        for found, known in zip(asked(each, NAMED[kind](rows, names)), expected, strict=True):
            np.testing.assert_allclose(found, known, rtol=1e-9)
        turned = NAMED[kind](rows[:, ::-1], names[::-1])
        for method in ("transform", "predict", "score"):
            if hasattr(each, method):
                with pytest.raises(
                    dpdist.InputError, match=r"should match those that were|should have the vocabulary of "
                ):
                    getattr(each, method)(turned)
    again = model.fit(rows)
    assert not hasattr(again, "feature_names_in_")


def test_a_stream_and_an_extension_go_on_with_the_same_columns(tmp_path) -> None:
    rows = pd.DataFrame(clusters(0), columns=["x", "y", "z"])
    model = dpdist.SVA(random_state=0).fit(iter([rows[:300], rows[300:600]]))
    assert model.feature_names_in_.tolist() == ["x", "y", "z"]
    with pytest.raises(dpdist.InputError, match="same order"):
        model.partial_fit(rows[["z", "y", "x"]])
    model.save(tmp_path / "model.zarr")
    with pytest.raises(dpdist.InputError, match="same order"):
        dpdist.extend(tmp_path / "model.zarr", rows[["y", "x", "z"]])
    with pytest.raises(dpdist.InputError, match="same order"):
        dpdist.SVA(random_state=0).fit(rows, holdout=rows[["y", "x", "z"]])
    assert dpdist.extend(tmp_path / "model.zarr", rows[600:]).feature_names_in_.tolist() == ["x", "y", "z"]


def test_of_a_file_with_further_columns_those_of_the_fit_are_taken_whoever_asks(tmp_path) -> None:
    rows = pd.DataFrame(clusters(0), columns=["x", "y", "z"])
    rows.assign(who=range(len(rows))).to_csv(path := str(tmp_path / "rows.csv"), index=False)
    sequential, mixed = dpdist.SVA(random_state=0).fit(rows), mixture(max_laps=3).fit(rows)
    for model in (sequential, mixed):
        np.testing.assert_array_equal(model.predict(path), model.predict(rows))
        np.testing.assert_array_equal(model.tree(path).linkage, model.tree(rows).linkage)
    found = [mixed.stability(given, refits=2, max_laps=2).jaccard for given in (path, rows)]
    np.testing.assert_array_equal(*found)
    sequential.save(tmp_path / "model.zarr")
    assert dpdist.extend(tmp_path / "model.zarr", path).rows_seen_ == 2 * len(rows)
    assert sequential.partial_fit(path).rows_seen_ == 2 * len(rows)


def test_a_cut_does_not_go_on_by_itself() -> None:
    model = dpdist.SVA(random_state=0).fit(clusters(0))
    model.tree(clusters(0))
    with pytest.raises(dpdist.InputError, match="a cut cannot be continued"):
        model.cut(1).partial_fit(clusters(1))


def test_rows_of_a_source_count_by_their_weight_in_a_score() -> None:
    model, rows = mixture(max_laps=3).fit(clusters(0)), clusters(1)[:5]
    weights = np.array([0.0, 3.0, 1.0, 0.5, 2.0])
    expected = np.average(model.score_samples(rows), weights=weights)
    assert model.score(ArraySource(rows, weights)) == pytest.approx(expected)
    assert model.score(da.from_array(rows, chunks=(2, 3))) == pytest.approx(model.score_samples(rows).mean())


def test_lazy_answers_are_of_blocks_of_any_size_and_name_the_row_that_is_wrong() -> None:
    model, rows = mixture(max_laps=3).fit(clusters(0)), clusters(1)[:60]
    array = da.from_array(rows, chunks=((20, 0, 40), 3))
    for method in ("predict", "predict_proba", "score_samples"):
        np.testing.assert_array_equal(getattr(model, method)(array).compute(), getattr(model, method)(rows))
    rows[33, 1] = np.nan
    with pytest.raises(dpdist.InputError, match="NaN or infinity, first in row 33"):
        model.predict(da.from_array(rows, chunks=((20, 0, 40), 3))).compute()


def test_numbers_are_no_names_and_are_not_to_be_mixed_with_them() -> None:
    rows = clusters(0)
    model = mixture(max_laps=1).fit(pd.DataFrame(rows))
    assert not hasattr(model, "feature_names_in_")
    model.predict(rows)
    with pytest.raises(dpdist.InputError, match="all be strings, or none should be; got 'b' and 1"):
        mixture(max_laps=1).fit(pd.DataFrame(rows, columns=[1, "b", 2]))


def test_words_of_a_data_frame_are_the_vocabulary() -> None:
    counts = pd.DataFrame(np.kron(np.eye(2, dtype=int), np.full((30, 2), 4)), columns=["tea", "milk", "oak", "elm"])
    model = FITTED["topics"]().fit(counts)
    assert model.vocabulary_ == ["tea", "milk", "oak", "elm"]
    assert {frozenset(words) for words in model.top_words(words=2)} == {
        frozenset({"tea", "milk"}),
        frozenset({"oak", "elm"}),
    }
    assert model.transform(counts.to_numpy()).shape == (60, 2)


def test_words_of_a_corpus_are_names_of_columns(tmp_path) -> None:
    counts = sparse.csr_array(np.kron(np.eye(2, dtype=int), np.full((30, 2), 4)))
    write_corpus(tmp_path / "a.zarr", [counts], ["tea", "milk", "oak", "elm"])
    write_corpus(tmp_path / "b.zarr", [counts], ["oak", "elm", "tea", "milk"])
    model = mixture(family=Multinomial(), max_laps=2).fit(tmp_path / "a.zarr")
    assert model.feature_names_in_.tolist() == ["tea", "milk", "oak", "elm"]
    assert model.predict(tmp_path / "a.zarr").shape == (60,)
    for estimator in (model, FITTED["topics"]().fit(tmp_path / "a.zarr")):
        with pytest.raises(dpdist.InputError, match=r"in the same order as they were|should have the vocabulary of"):
            estimator.score(tmp_path / "b.zarr")


def test_attributes_after_a_fit() -> None:
    rows = clusters(1)
    model = mixture(max_laps=40).fit(rows)
    assert model.n_components_ == len(model.weights_) == len(model.component_ids_) == 5
    assert model.weights_.sum() + model.rest_weight_ == pytest.approx(1)
    assert (np.diff(model.weights_) <= 1e-12).all()
    assert model.converged_ and model.stop_reason_.startswith("converged")
    assert model.history_.sizes["lap"] == model.n_iter_ and model.history_["elbo"].values[-1] == model.elbo_
    assert set(model.components_.data_vars) >= {"mean", "covariance", "weight"}
    means = model.components_["mean"].values
    labels = model.predict(rows)
    np.testing.assert_allclose(means, [rows[labels == k].mean(axis=0) for k in range(5)], atol=0.05)
    np.testing.assert_allclose(model.predict_proba(rows).sum(axis=1), 1)
    places, shares = model.predict_top(rows, 2)
    np.testing.assert_array_equal(places[:, 0], labels)
    np.testing.assert_allclose(shares[:, 0], model.predict_proba(rows).max(axis=1))


def test_limits_stop_a_fit_and_are_named() -> None:
    rows = clusters(2)
    assert mixture(max_laps=3).fit(rows).stop_reason_ == "stopped: max_laps reached"
    assert mixture(max_laps=None, max_time=1e-6).fit(rows).stop_reason_ == "stopped: max_time reached"


@pytest.mark.parametrize(
    ("limits", "told"),
    [({"max_laps": 2}, "at max_laps=2 before it converged"), ({"max_time": 1e-6}, "at max_time=1e-06 before")],
)
def test_who_fits_is_warned_if_a_limit_ends_it_and_only_then(limits, told, tmp_path) -> None:
    rows, counts = clusters(2), np.random.default_rng(0).poisson(1.0, size=(30, 6))
    topics = dpdist.HDPTopicModel(initial_topics=2, random_state=0, tolerance=0.0, **limits)
    online = dpdist.schedules.Stochastic(2, forgetting=0.5)
    with pytest.warns(ConvergenceWarning, match=told):
        for _ in mixture(**limits).iter_fit(rows, checkpoint_path=tmp_path / "run"):
            pass
    with pytest.warns(ConvergenceWarning, match=told):
        dpdist.resume(tmp_path / "run", rows)
    with pytest.warns(ConvergenceWarning, match=told):
        topics.fit(counts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(mixture(**limits).iter_fit(rows))
        assert mixture(max_laps=60, max_time=1e6).fit(rows).converged_
        clone(topics).set_params(weights="point", schedule=online).fit(counts)


def test_a_caller_may_break_off_and_keep_the_model() -> None:
    model = mixture()
    for _, info in model.iter_fit(clusters(3)):
        if info.lap == 4:
            break
    assert model.n_iter_ == 4 and model.elbo_ == info.elbo and not model.converged_


def test_a_copy_has_a_history_of_its_own() -> None:
    counts, model = np.random.default_rng(0).poisson(1.0, size=(40, 6)), mixture(max_laps=2)
    topics = dpdist.HDPTopicModel(initial_topics=3).partial_fit(counts)
    further = copy.copy(topics).partial_fit(counts)
    assert (topics.history_.sizes["lap"], further.history_.sizes["lap"]) == (1, 2)
    laps = [copy.copy(model) for _ in model.iter_fit(clusters(0))]
    assert [each.history_.sizes["lap"] for each in laps] == [each.n_iter_ for each in laps] == [1, 2]


def test_gaps_of_a_data_frame_are_told_by_row_and_column() -> None:
    frame = pd.DataFrame({"a": pd.array([1.0, None, 3.0], dtype="Float64"), "b": [1.0, 2.0, 4.0]})
    with pytest.raises(dpdist.InputError, match=r"NaN or infinity in 1 of 3 rows \(row 1\).*column 'a'"):
        mixture().fit(frame)


def test_a_clone_starts_from_the_same_fitted_estimator() -> None:
    rows = clusters(0)
    start = mixture(max_laps=3).fit(rows)
    model = mixture(initial=start, max_laps=2)
    again = clone(model)
    assert again.initial is start and not hasattr(clone(start), "elbo_")
    assert again.fit(rows).elbo_ == model.fit(rows).elbo_
    assert not hasattr(clone(model), "elbo_")
    search = GridSearchCV(model, {"concentration": [1.0, 5.0]}, cv=2, error_score="raise").fit(rows)
    assert search.best_estimator_.n_components_ >= 1


def test_a_clone_fits_alike() -> None:
    rows = clusters(4)
    model = mixture(family=Gaussian(mean_precision=0.01), max_laps=5)
    assert clone(model).fit(rows).elbo_ == model.fit(rows).elbo_


def test_density_integrates_to_one_with_the_leftover_stick() -> None:
    model = mixture(max_laps=30).fit(clusters(5, columns=2, groups=3, spread=2.0))
    axis = np.linspace(-40, 40, 801)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    inside = np.exp(model.score_samples(grid)).sum() * (axis[1] - axis[0]) ** 2
    assert 0.95 < inside <= 1.001  # the leftover stick's tails are heavy


def test_counts_of_all_outcomes_have_density_one() -> None:
    rng = np.random.default_rng(0)
    rows = (rng.random((300, 3)) < rng.random((2, 3))[rng.integers(2, size=300)]).astype(float)
    model = mixture(family=Bernoulli(), max_laps=20).fit(rows)
    outcomes = np.array([[a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)], dtype=float)
    assert np.exp(model.score_samples(outcomes)).sum() == pytest.approx(1)


def test_samples_come_from_the_predictive() -> None:
    rows = clusters(6, rows=3000)
    model = mixture(max_laps=40).fit(rows)
    drawn, components = model.sample(4000)
    old = components < model.n_components_
    assert old.mean() == pytest.approx(1 - model.rest_weight_, abs=0.02)
    np.testing.assert_allclose(drawn[old].mean(axis=0), rows.mean(axis=0), atol=0.5)
    np.testing.assert_array_equal(drawn, mixture(max_laps=40).fit(rows).sample(4000)[0])


def test_rows_of_a_component_not_yet_seen_are_as_large_as_others() -> None:
    family, stats = Multinomial(np.ones(4)), np.array([[30.0, 0, 0, 10, 4], [0, 8, 8, 0, 4], [0, 0, 0, 0, 0]])
    drawn = family.sample(stats, np.repeat([0, 1, 2], 50), np.random.default_rng(0)).sum(axis=1)
    np.testing.assert_array_equal(drawn, np.repeat([10, 4, 7], 50))


def test_predict_takes_raw_rows_through_the_transform() -> None:
    rng = np.random.default_rng(0)
    rows = clusters(7) @ rng.normal(size=(3, 12)) + 0.01 * rng.normal(size=(900, 12)) + 50
    plain = clusters(7)
    model = mixture(row_transform=dpdist.TransformPlan(pca=3, scale=True), max_laps=40).fit(rows)
    assert model.n_components_ == mixture(max_laps=40).fit(plain).n_components_
    assert model.predict(rows).shape == (900,) and model.components_["mean"].shape[1] == 12


@pytest.mark.parametrize("family", [Multinomial(), Poisson(), Bernoulli()], ids=lambda f: f.name)
def test_sparse_rows_give_what_dense_rows_give(family) -> None:
    rng = np.random.default_rng(0)
    rates = np.kron(np.eye(3), np.full((1, 8), 3.0)) + 0.05
    rows = rng.poisson(rates[rng.integers(3, size=600)])
    rows = np.minimum(rows, 1) if family.name == "bernoulli" else rows
    dense = mixture(family=family, max_laps=25).fit(rows)
    thin = mixture(family=family, max_laps=25).fit(sparse.csr_array(rows))
    assert thin.n_components_ == dense.n_components_ >= 3
    assert thin.elbo_ == pytest.approx(dense.elbo_, rel=1e-9)
    np.testing.assert_array_equal(thin.predict(sparse.csr_array(rows)), dense.predict(rows))


def test_a_learned_concentration_is_reported_in_the_elbo() -> None:
    rows = clusters(8)
    fixed = mixture(max_laps=40).fit(rows)
    learned = mixture(concentration=dpdist.allocations.LearnedDirichletProcess(1.0, 0.1), max_laps=40).fit(rows)
    assert learned.n_components_ == fixed.n_components_ == 5
    assert learned.elbo_ != fixed.elbo_


def test_a_finite_mixture_never_exceeds_its_components() -> None:
    given = {"moves": ALL_MOVES, "random_state": 0, "max_laps": 60}
    assert dpdist.FiniteMixture(n_components=3, **given).fit(clusters(9)).n_components_ <= 3
    assert dpdist.FiniteMixture(n_components=12, **given).fit(clusters(9)).n_components_ == 5


def test_a_cap_on_components_holds() -> None:
    assert mixture(max_components=2, max_laps=20).fit(clusters(9)).n_components_ == 2


@pytest.mark.parametrize("most", [1, 3, 5])
@pytest.mark.parametrize(
    "limited",
    [lambda most: mixture(max_components=most), lambda most: dpdist.FiniteMixture(n_components=most, random_state=0)],
    ids=["DP", "finite"],
)
def test_a_fit_with_as_many_components_as_may_be_converges_once_all_groups_were_searched(limited, most) -> None:
    """Of the five clusters there may be fewer."""
    model = limited(most).set_params(max_laps=60).fit(clusters(9))
    assert model.converged_ and model.n_components_ == most


BAD = [
    ({}, np.array([[1.0, np.nan], [2.0, 3.0]]), r"NaN or infinity in 1 of 2 rows \(row 0\)"),
    ({}, np.zeros((0, 3)), "0 sample"),
    ({}, np.zeros(5), r"Reshape your data: x\.reshape\(1, -1\) if it is one row, x\.reshape\(-1, 1\) if"),
    ({}, np.array([["a", "b"]]), "real numbers"),
    ({"family": Poisson()}, -np.ones((4, 2)), "counts from 0 to"),
    ({"family": Multinomial()}, np.full((4, 2), 0.5), "entries are not whole numbers"),
    ({"family": Bernoulli()}, 3 * np.ones((4, 2)), "0 or 1"),
    ({}, sparse.csr_array(np.ones((4, 2))), "does not accept sparse input"),
    ({"initial": np.zeros(3, int)}, np.ones((4, 2)), "initial should be 4 labels"),
    ({"initial": np.array([0, 1, 2, 4])}, np.ones((4, 2)), "labels .* number of rows minus 1; got values from 0 to 4"),
    (
        {"initial": np.arange(3)[[0, 1, 2, 2]], "max_components": 2},
        np.ones((4, 2)),
        "at most 2 components, the limit of the allocation; got 3",
    ),
    ({"initial": np.ones((4, 2))}, np.ones((4, 2)), "sum to 1"),
    ({"schedule": "stochastic"}, np.ones((4, 2)), "stochastic makes no moves, .* would keep one cluster"),
    (
        {"schedule": "stochastic", "initial": "k-means++", "moves": [dpdist.Split(), dpdist.Merge()]},
        np.ones((4, 2)),
        r"stochastic makes no moves; got moves=\['split', 'merge'\]",
    ),
    (
        {"concentration": dpdist.allocations.LearnedDirichletProcess(max_components=4), "max_components": 5},
        np.ones((4, 2)),
        "max_components should be set on the allocation .*; got max_components=5",
    ),
    ({"initial": "k-means++", "initial_components": 9}, np.ones((4, 2)), "distinct rows"),
    ({"family": Gaussian(degrees_of_freedom=0.5)}, np.ones((4, 2)), "degrees_of_freedom should be finite and exceed 1"),
    ({"family": Gaussian(scale=-1.0)}, np.ones((4, 2)), "positive definite"),
    ({"row_transform": dpdist.TransformPlan(pca=7)}, np.ones((4, 2)), "pca should be from 1"),
]


@pytest.mark.parametrize(("parameters", "rows", "sentence"), BAD, ids=[sentence[:30] for _, _, sentence in BAD])
def test_bad_input_gets_a_sentence(parameters, rows, sentence) -> None:
    with pytest.raises(dpdist.InputError, match=sentence):
        dpdist.DPMixture(**parameters).fit(rows)


@pytest.mark.parametrize(
    "weights",
    [np.ones(3), -np.ones(4), np.zeros(4), np.array([1.0, np.nan, 1.0, 1.0])],
    ids=["short", "<0", "0", "nan"],
)
def test_bad_weights_get_a_sentence(weights) -> None:
    with pytest.raises(dpdist.InputError, match="sample_weight should"):
        mixture().fit(np.ones((4, 2)), sample_weight=weights)


def test_bad_rows_at_predict_get_a_sentence() -> None:
    model = mixture(max_laps=2).fit(clusters(0))
    with pytest.raises(dpdist.InputError, match="rows should have 3 columns"):
        model.predict(np.ones((2, 4)))
    with pytest.raises(dpdist.InputError, match="NaN or infinity, first in row 1"):
        model.predict(np.array([[0.0, 0, 0], [0, np.inf, 0]]))
    with pytest.raises(dpdist.InputError, match="n_samples"):
        model.sample(0)
