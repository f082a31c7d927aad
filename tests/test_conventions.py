"""What scikit-learn asks of estimators, and what its users bring along."""

from __future__ import annotations

import copy
import doctest
import importlib
import itertools
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
from rich.console import Console
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

import dpdist
from dpdist.models.families import FAMILIES, IsotropicGaussian
from dpdist.runs import progress
from dpdist.runs.config import parse_config
from tests.runs import clusters, mixture, source_of

ESTIMATORS = [
    dpdist.DPMixture(max_laps=2, random_state=0),
    dpdist.FiniteMixture(n_components=2, max_laps=2, random_state=0),
    dpdist.SVA(IsotropicGaussian(), random_state=0),
    dpdist.HDPTopicModel(initial_topics=5, max_laps=3, random_state=0),
]
#: Checks that do not hold, and why, by estimator; three at most.
EXCEPTIONS: dict[str, dict[str, str]] = {
    "SVA": {
        "check_sample_weight_equivalence_on_dense_data": "the order of rows decides what a pass finds, and repeated "
        "rows are other rows; a row's weight counts (test_a_row_of_weight_w_counts_w)",
    },
}
#: Of all estimators: it needs an environment variable that SciPy reads at its import, and so a process of its own.
NOT_RUN = "check_array_api_input"


def exceptions(estimator: BaseEstimator) -> dict[str, str]:
    return EXCEPTIONS.get(type(estimator).__name__, {})


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=exceptions)
def test_scikit_learn_conventions(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
def test_checks_are_many_and_exceptions_are_few_and_among_them(estimator: BaseEstimator) -> None:
    names = {check.func.__name__ for _, check in estimator_checks_generator(estimator)}
    assert len(names) > 35 and {*exceptions(estimator), NOT_RUN} <= names
    assert len({*exceptions(estimator), NOT_RUN}) <= 3


@pytest.mark.slow
def test_the_check_that_needs_a_process_of_its_own_holds_there() -> None:
    code = (
        "from tests.test_conventions import *\n"
        "for each in ESTIMATORS:\n"
        "    [check(one) for one, check in estimator_checks_generator(each) if check.func.__name__ == NOT_RUN]\n"
        "    print(type(each).__name__)"
    )
    given = {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=given, capture_output=True, text=True)
    assert done.stdout.split() == [type(each).__name__ for each in ESTIMATORS], done.stderr


def test_tags_say_what_estimators_take() -> None:
    topics = dpdist.HDPTopicModel().__sklearn_tags__()
    assert topics.input_tags.sparse and topics.input_tags.positive_only and topics.estimator_type is None
    mixture = dpdist.DPMixture().__sklearn_tags__()
    assert not mixture.input_tags.sparse and not mixture.input_tags.positive_only


# What people know from elsewhere


@pytest.mark.parametrize("family", ["gaussian", "diagonal_gaussian", "isotropic_gaussian"])
def test_attributes_and_criteria_are_those_of_scikit_learn(family: str) -> None:
    x = clusters(1)
    model = mixture(family=family, max_laps=40, max_components=5).fit(x)
    kind = {"gaussian": "full", "diagonal_gaussian": "diag", "isotropic_gaussian": "spherical"}[family]
    known = GaussianMixture(model.n_components_, covariance_type=kind, means_init=model.means_).fit(x)
    np.testing.assert_allclose(model.means_, known.means_, atol=0.1)
    if kind == "spherical":
        with pytest.raises(AttributeError, match=r"no covariances_; use components_, which has mean"):
            _ = model.covariances_
    else:
        np.testing.assert_allclose(model.covariances_, known.covariances_, rtol=0.2, atol=0.1)
    free = known._n_parameters() - (model.n_components_ if kind == "spherical" else 0)  # the variance is known here
    assert model.bic(x) - model.aic(x) == pytest.approx(free * (np.log(len(x)) - 2))
    assert model.aic(x) == pytest.approx(2 * free - 2 * len(x) * model.score(x))
    weights = np.random.default_rng(0).integers(0, 4, len(x))
    repeated = np.repeat(x, weights, axis=0)
    for criterion in (model.aic, model.bic):
        for found in (criterion(x, sample_weight=weights), criterion(source_of(x, weights=weights))):
            assert found == pytest.approx(criterion(repeated)) != pytest.approx(criterion(x))


def test_free_parameters_of_counts_are_those_that_nothing_ties() -> None:
    known = {"zero_mean_gaussian": (7, 6), "multinomial": (4, 2), "bernoulli": (4, 3), "poisson": (4, 3)}
    assert {name: FAMILIES[name]().free_parameters(features) for name, (features, _) in known.items()} == {
        name: free for name, (_, free) in known.items()
    }


def test_labels_are_those_of_the_rows_fitted_until_others_are() -> None:
    x = clusters(1)
    model = mixture(max_laps=2).fit(x[::-1])
    assert np.array_equal(model.labels_, model.predict(x[::-1])) and model.labels_ is model.labels_
    model.fit(x)
    assert np.array_equal(model.labels_, model.predict(x))
    assert np.array_equal(dpdist.SVA(random_state=0).fit_predict(x), dpdist.SVA(random_state=0).fit(x).predict(x))


def test_copies_and_pickles_of_a_model_hold_no_rows() -> None:
    x = clusters(1)
    model = mixture(max_laps=2).fit(x)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), _by_joblib(model)):
        assert np.array_equal(again.predict(x), model.predict(x))
        with pytest.raises(AttributeError, match=r"Use predict\(x\)"):
            _ = again.labels_
    assert len(pickle.dumps(model)) < x.nbytes


def _by_joblib(model: BaseEstimator) -> BaseEstimator:
    file = BytesIO()
    joblib.dump(model, file)
    return joblib.load(file)


@pytest.mark.parametrize("part", ["family", "schedule"])
def test_a_part_may_be_given_by_its_name(part: str) -> None:
    name, kind = {"family": ("diagonal_gaussian", dpdist.families.DiagonalGaussian), "schedule": ("batch", None)}[part]
    made = dpdist.DPMixture(**{part: name}).spec()
    asked = parse_config("fit", {part: name, "data": "x.zarr"}).spec
    assert type(getattr(made, part)) is type(getattr(asked, part)) and kind in (None, type(getattr(made, part)))
    with pytest.raises(dpdist.InputError, match=f"{part} should be .*its name .*{name}.*got 'gausian'"):
        dpdist.DPMixture(**{part: "gausian"}).fit(clusters(1))
    assert dpdist.DPMixture("poisson").__sklearn_tags__().input_tags.sparse


def test_more_starts_keep_the_one_of_the_highest_bound_and_begin_with_the_key_given() -> None:
    x = np.random.default_rng(0).normal(size=(600, 2)) * np.linspace(0.2, 3, 600)[:, None]
    fit = {"initial": "k-means++", "max_laps": 4}
    alone, several = mixture(**fit).fit(x), mixture(**fit, n_init=3).fit(x)
    bounds = [mixture(**fit, random_state=key).fit(x).elbo_ for key in several.manner().seeds(0)]
    assert bounds[0] == alone.elbo_ and len({*bounds}) > 1
    assert several.elbo_ == max(bounds) and np.array_equal(several.labels_, several.predict(x))


def test_more_starts_that_are_interrupted_keep_the_best_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    x, fit = clusters(1), {"initial": "k-means++", "max_laps": 4}
    alone, several = mixture(**fit).fit(x), mixture(**fit, n_init=3)
    adopt, laps = dpdist.DPMixture.adopt, itertools.count(1)

    def interrupted(model: dpdist.DPMixture, *found: object) -> None:
        adopt(model, *found)
        if next(laps) == alone.n_iter_ + 1:  # the first lap of the second fit
            raise KeyboardInterrupt

    monkeypatch.setattr(dpdist.DPMixture, "adopt", interrupted)
    with pytest.raises(KeyboardInterrupt):
        several.fit(x)
    assert several.elbo_ == alone.elbo_ and np.array_equal(several.labels_, alone.labels_)


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: dpdist.DPMixture().stability(x),
        lambda x: dpdist.HDPTopicModel().score(x),
        lambda x: dpdist.HDPTopicModel().top_words(["a", "b", "c"]),
    ],
    ids=["stability", "score", "top_words"],
)
def test_what_is_not_fitted_says_so(ask: Callable[[np.ndarray], object]) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        ask(np.ones((4, 3)))


def test_a_warm_start_goes_on_from_the_clusters_there_are() -> None:
    x = clusters(1)
    model = mixture(max_laps=30, warm_start=True).fit(x)
    laps, bound = model.n_iter_, model.elbo_
    model.fit(x)
    assert model.n_iter_ < laps and model.elbo_ >= bound - 1e-6 * abs(bound)
    cold = mixture(max_laps=30).fit(x)
    assert cold.fit(x).n_iter_ == laps


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_frames_pipelines_and_searches(frame: Callable[..., object]) -> None:
    x = clusters(1)
    table = frame(dict(zip("abc", x.T, strict=True)))
    model, plain = mixture(max_laps=2).fit(table), mixture(max_laps=2).fit(x)
    assert list(model.feature_names_in_) == ["a", "b", "c"] and np.array_equal(model.labels_, plain.labels_)
    chain = make_pipeline(StandardScaler(), mixture(max_laps=2))
    search = GridSearchCV(chain, {"dpmixture__family": ["isotropic_gaussian", "gaussian"]}, cv=2).fit(table)
    assert search.best_params_ == {"dpmixture__family": "gaussian"} and len(search.predict(table)) == len(x)


@pytest.mark.parametrize("output", ["pandas", "polars"])
def test_topics_come_as_the_frame_that_is_asked_for(output: str) -> None:
    words = pd.DataFrame(np.random.default_rng(0).poisson(1, (30, 6)), columns=list("uvwxyz"), index=range(5, 35))
    model = dpdist.HDPTopicModel(initial_topics=2, max_laps=2, random_state=0).set_output(transform=output)
    shares = model.fit_transform(words)
    assert list(shares.columns) == list(model.get_feature_names_out())
    np.testing.assert_array_equal(shares.to_numpy(), model.set_output(transform="default").transform(words))
    assert output == "polars" or list(shares.index) == list(words.index)


def test_what_is_said_of_a_loaded_model_is_what_was_asked(tmp_path) -> None:
    model = mixture(concentration=3.0, schedule=None, moves=None, max_laps=2).fit(clusters(1))
    model.save(tmp_path / "model.zarr")
    config = parse_config("fit", {"concentration": 3.0, "max_laps": 2, "data": "x"})
    run = config.prepare(model._rows, tmp_path / "run.zarr", False, dpdist.execution.SerialBackend())
    for _ in run:
        pass
    said = "DPMixture(concentration=3.0, max_laps=2)"
    assert said == repr(model) == repr(dpdist.load(tmp_path / "model.zarr")) == repr(dpdist.load(tmp_path / "run.zarr"))


# While a fit goes on


@pytest.mark.parametrize("console", [{"force_terminal": True}, {"force_jupyter": True}, {}], ids=str)
def test_a_fit_tells_of_its_laps_where_it_is_asked_to(console: dict[str, bool], monkeypatch, capsys) -> None:
    monkeypatch.setattr(progress, "Console", lambda: Console(width=100, **{"force_terminal": False, **console}))
    shown: list[str] = []
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: shown.append(text))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", dpdist.estimators.fitted.ConvergenceWarning)
        mixture(max_laps=3).fit(clusters(1))
        assert not capsys.readouterr().out and not shown
        mixture(max_laps=3, verbose=True).fit(clusters(1))
    told = capsys.readouterr().out + "".join(shown)
    assert all(f"lap    {lap}" in told for lap in (1, 2, 3)) and "ELBO/row" in told
    assert ("laps, at most" in told and "left" in told) is ("force_terminal" in console)


EXAMPLES = [path for path in Path(dpdist.__file__).parent.rglob("*.py") if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_of_docstrings_give_what_they_say(path: Path) -> None:
    name = ".".join(path.relative_to(Path(dpdist.__file__).parents[1]).with_suffix("").parts)
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed
