"""What is stored comes back: every part, every parameter of every estimator, and a person's own classes."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.storage import MemoryStore

import dpdist
from dpdist.core.errors import CheckpointError, InputError
from dpdist.inference.moves.accept import Reason
from dpdist.inference.schedules import SCHEDULES, Batch, Memoized, Stochastic
from dpdist.inference.state import Record
from dpdist.inference.sva import DistanceTest
from dpdist.models.allocations import ALLOCATIONS, Allocation, DirichletProcess, LearnedDirichletProcess
from dpdist.models.families import FAMILIES, Bernoulli, DiagonalGaussian, Family, IsotropicGaussian, Poisson
from dpdist.models.likelihoods import LIKELIHOODS, Dirichlet
from dpdist.runs.config import parse_config
from dpdist.runs.events import Happening
from dpdist.storage.codec import read, write
from dpdist.storage.commits import commits
from dpdist.storage.descriptions import TAKEN
from dpdist.storage.importing import path_of_class
from dpdist.testing import check_stored
from tests import own_parts
from tests.cases import PARTS
from tests.own_parts import Cut, Exponential, GeometricSticks, KnownSpread, Never
from tests.runs import clusters

OWN = [
    Exponential(3.0, np.array([1.0, 2.0]), ("a", "b")),
    GeometricSticks(0.25),
    KnownSpread(2.0, 5.0, 50),
    Never("no"),
]


# Parts


def test_the_registry_holds_every_part() -> None:
    held = {type(part) for part in PARTS}
    assert held >= {*FAMILIES.values(), *ALLOCATIONS.values(), *LIKELIHOODS.values(), *SCHEDULES.values()}
    for kind in held:
        differ = {field.name for part in PARTS if type(part) is kind for field in fields(kind) if _differs(part, field)}
        assert differ == {field.name for field in fields(kind) if field.init}


def _differs(part: Any, field: Any) -> bool:
    value = getattr(part, field.name)
    return field.init and (not np.isscalar(value) or isinstance(value, str) or value != field.default)


@pytest.mark.parametrize("part", [*PARTS, *OWN], ids=lambda part: type(part).__name__)
def test_a_part_comes_back_as_it_was(part) -> None:
    check_stored(part)


@dataclass(frozen=True, eq=False)
class Holder(dpdist.Merge):
    """A part that holds whatever it is given."""

    held: Any = None


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2.5,
        float("inf"),
        float("-inf"),
        float("nan"),
        "words",
        [1, [2.5, "a"], ()],
        ((1.0, None), [True]),
        np.float32(0.1),
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.array(7.0),
        np.zeros((0, 3)),
        np.array([[True, False]]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([np.nan, np.inf]),
        {"a": 1, "b": [np.ones(2)]},
        {3: (1.0, 2)},
        [np.ones(2), np.zeros((2, 3), dtype=np.int8)],
        (np.float32, Reason.ACCEPTED, Happening.STUCK),
        Exponential(),
        Holder(held=Holder(held=np.ones(2))),
        (Holder(held=np.ones(2)), Holder(held=np.zeros(3)), Holder(held=np.arange(2.0))),
        [Holder(held=np.ones(2)), Holder(held=np.ones(2))],
        [Holder(held=np.ones(2)), Holder(held=np.ones((2, 2))), Holder(held="other")],
        (Record("merge", (3, 1), -np.inf, Reason.CONFLICT), Record("split", (2,), 0.1, Reason.ACCEPTED)),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_a_value_comes_back_as_it_was(value) -> None:
    check_stored(Holder(held=value))


@pytest.mark.parametrize(
    "value",
    [object(), {"a": object()}, {(1, 2): 3}, {1.5: 3}, [1j], np.array(["a"]), 1j, slice(None)],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_cannot_be_stored_is_refused_by_name(value) -> None:
    with pytest.raises(
        InputError, match=r"held of Holder should be a number, a string, .*got \w+\. Give one of these\."
    ):
        check_stored(Holder(held=value))


def test_names_that_are_text_too_come_back_as_names() -> None:
    store = MemoryStore()
    write(zarr.create_group(store=store), Holder(held=(Happening.STUCK, "stuck")))
    assert [type(each) for each in read(zarr.open_group(store, mode="r")).held] == [Happening, str]


def test_long_arrays_are_stored_in_chunks(monkeypatch) -> None:
    monkeypatch.setattr("dpdist.storage.arrays.CHUNK", 100)
    check_stored(Holder(held=np.arange(60.0).reshape(20, 3)))
    group = zarr.create_group(store=MemoryStore())
    write(group, Holder(held=np.arange(60.0).reshape(20, 3)))
    assert group["held"].chunks == (4, 3)


def test_classes_are_named_by_the_shortest_way_to_them() -> None:
    assert path_of_class(IsotropicGaussian) == "dpdist.models.families:IsotropicGaussian"
    assert path_of_class(dpdist.SVA) == "dpdist:SVA"
    assert path_of_class(Exponential) == "tests.own_parts:Exponential"


def stored(part: Any, name: str = "", **values: Any) -> zarr.Group:
    """A group that holds `part`, whose class is of another `name` and some of whose fields have other values."""
    group = zarr.create_group(store=MemoryStore())
    write(group, part)
    tree: Any = group.attrs["value"]
    group.attrs["value"] = {"class": name or tree["class"], "fields": {**tree["fields"], **values}}
    return group


@pytest.mark.parametrize("path", ["os:system", "builtins:eval", "dpdist:DPMixture", "numpy:ndarray", "dpdist:families"])
def test_a_class_that_is_no_part_is_imported_but_never_called(path) -> None:
    with pytest.raises(CheckpointError, match=r"which is not the expected Family and is not used"):
        read(stored(Exponential(), path), Family)
    for held in ({"class": path, "fields": {}}, {"enum": path, "name": "ACCEPTED"}):
        with pytest.raises(CheckpointError, match=r"is not used; the file is damaged or not from dpdist"):
            read(stored(Holder(), held=held))


def test_a_part_of_another_kind_is_refused() -> None:
    with pytest.raises(
        CheckpointError,
        match=r"refers to dpdist\.models\.allocations\.DirichletProcess, which is not the expected Family",
    ):
        read(stored(DirichletProcess(2.0)), Family)


@pytest.mark.parametrize("path", ["no_such_module:Mine", "tests.own_parts:Gone", "__main__:Mine", "", ":", ".:x", "a"])
def test_a_class_that_cannot_be_imported_is_a_sentence_with_a_way_out(path) -> None:
    where = "this script or notebook" if path.startswith("__main__") else "a module"
    with pytest.raises(CheckpointError, match=rf"cannot be imported .*define or import it in {where}.*load again\."):
        read(stored(Exponential(), path or ":"), Family)


def test_parameters_that_a_class_refuses_are_a_sentence() -> None:
    with pytest.raises(CheckpointError, match=r"Exponential does not accept the parameters .*, gone .*use the version"):
        read(stored(Exponential(), gone=3), Family)
    with pytest.raises(InputError, match="concentration should"):
        read(stored(DirichletProcess(), concentration=-1.0), Allocation)


def test_a_lost_field_is_never_read_as_its_default() -> None:
    group = stored(Gaussian := FAMILIES["gaussian"](np.ones(2), scale=np.eye(2)))
    del group["mean"]
    with pytest.raises(CheckpointError, match="has no array 'mean'"):
        read(group, type(Gaussian))


def local_family() -> Family:
    """A family that nobody can import."""

    @dataclass(frozen=True, eq=False)
    class Local(IsotropicGaussian):
        name = "local"

    return Local()


@pytest.mark.parametrize("estimator", [dpdist.DPMixture, dpdist.SVA])
def test_a_class_out_of_reach_is_refused_before_anything_is_done(tmp_path, estimator) -> None:
    model = estimator(local_family(), random_state=0)
    with pytest.raises(
        InputError, match=r"Local should be defined at the top level of an importable module, .*Move it there"
    ):
        next(model.iter_fit(clusters(0, rows=50), checkpoint_path=tmp_path / "run.zarr"))
    with pytest.raises(InputError, match="Local should be defined at the top level of an importable module"):
        model.fit(clusters(0, rows=50)).save(tmp_path / "model.zarr")
    assert not commits(dpdist.core.places.place_of(tmp_path / "model.zarr"))


def test_a_part_that_is_no_dataclass_is_refused() -> None:
    class Plain(Allocation):
        """Not even decorated."""

    Plain.__abstractmethods__ = frozenset()
    with pytest.raises(InputError, match=r"Plain should be a dataclass, whose fields are stored"):
        check_stored(Plain())


# Estimators

X = clusters(0, rows=60, columns=2)
COUNTS = np.random.default_rng(0).poisson(1.0, size=(60, 5))

#: Every parameter of every estimator as it is not by default, one fit or more each.
ASKED: list[tuple[type, dict[str, Any], np.ndarray]] = [
    (
        dpdist.DPMixture,
        {
            "family": DiagonalGaussian(shape=2.0),
            "concentration": LearnedDirichletProcess(2.0, 0.5, 32, 7),
            "initial": "sva",
            "initial_components": 2,
            "initial_rows": 40,
            "max_components": 7,
            "schedule": Memoized(2, 1, False),
            "moves": [dpdist.Split(), dpdist.Delete()],
            "sampling": dpdist.Sampling(50),
            "candidates": dpdist.Candidates(3, 2),
            "prior": "clusters",
            "background": 0.1,
            "row_transform": dpdist.TransformPlan(scale=True),
            "compute_dtype": "float32",
            "floor": 1e-6,
            "tolerance": 1e-3,
            "max_laps": 2,
            "max_time": 50.5,
            "random_state": 3,
        },
        X,
    ),
    (dpdist.DPMixture, {"initial": np.arange(60) % 3, "max_laps": None, "max_time": 0.1, "max_components": 4}, X),
    (dpdist.DPMixture, {"initial": np.full((60, 2), 0.5), "concentration": 3, "initial_rows": None, "max_laps": 1}, X),
    (dpdist.DPMixture, {"family": Poisson((1.0,) * 5), "schedule": Stochastic(2), "moves": [], "max_laps": 1}, COUNTS),
    (
        dpdist.FiniteMixture,
        {
            "family": DiagonalGaussian(),
            "n_components": 3,
            "concentration": 2.5,
            "initial": "one",
            "initial_rows": 33,
            "schedule": Memoized(1),
            "moves": [dpdist.Merge(), dpdist.Delete()],
            "sampling": dpdist.Sampling(50),
            "candidates": dpdist.Candidates(3, 2),
            "prior": "clusters",
            "background": 0.1,
            "row_transform": dpdist.TransformPlan(pca=1),
            "compute_dtype": "float32",
            "floor": 0.0,
            "tolerance": 0.0,
            "max_laps": 2,
            "max_time": 99,
            "random_state": 4,
        },
        X,
    ),
    (
        dpdist.SVA,
        {
            "family": IsotropicGaussian(1.0),
            "concentration": 2.0,
            "threshold": 0.25,
            "merge": "absolute distance",
            "merge_threshold": 0.125,
            "prune": 0.0,
            "max_components": 5,
            "parallel": False,
            "round_partitions": 3,
            "shuffle": False,
            "row_transform": dpdist.TransformPlan(center=True),
            "compute_dtype": "float32",
            "floor": 1e-7,
            "forgetting": 0.6,
            "own_clock": False,
            "random_state": 5,
        },
        X,
    ),
    (dpdist.SVA, {"merge": DistanceTest(0.25, False), "family": KnownSpread(1.0, 9.0, 20)}, X),
    (dpdist.SVA, {"merge": None, "family": Dirichlet(20.0)}, np.full((30, 4), 0.25)),
    (dpdist.SVA, {"merge": Never("not now"), "family": Exponential()}, np.abs(X)),
    (
        dpdist.HDPTopicModel,
        {
            "concentration": 3.0,
            "document_concentration": 0.5,
            "pseudocount": 0.25,
            "learn": ("pseudocount",),
            "initial_topics": 3,
            "schedule": Memoized(2),
            "moves": dpdist.TopicPlan(birth=False),
            "effort": dpdist.Effort(1e-3, 20),
            "tolerance": 1e-3,
            "max_laps": 1,
            "max_time": 77.0,
            "random_state": 6,
        },
        COUNTS,
    ),
    (
        dpdist.HDPTopicModel,
        {
            "learn": ["concentration"],
            "initial_topics": 2,
            "weights": "point",
            "schedule": Stochastic(2),
            "moves": dpdist.OnlinePlan(merge=False),
            "max_laps": 1,
        },
        COUNTS,
    ),
    (dpdist.HDPTopicModel, {"initial_topics": 2, "weights": "point", "schedule": Batch(), "max_laps": 1}, COUNTS),
    (dpdist.HDPTopicModel, {"initial_topics": 2, "max_laps": 1}, COUNTS),
]

every_estimator = pytest.mark.parametrize(
    ("kind", "parameters", "x"), ASKED, ids=lambda value: getattr(value, "__name__", "")
)


def assert_asked(found: Any, expected: Any) -> None:
    """The same estimator with the same parameters."""
    assert type(found) is type(expected)
    mine, theirs = found.get_params(deep=False), expected.get_params(deep=False)
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        check_equal(name, mine[name], value)


def check_equal(name: str, found: Any, expected: Any) -> None:
    expected = expected.item() if isinstance(expected, np.generic) else expected
    assert type(found) is type(expected), name
    if is_dataclass(expected):
        for field in fields(expected):
            check_equal(f"{name}.{field.name}", getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(expected, tuple):
        assert len(found) == len(expected), name
        for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            check_equal(f"{name}[{place}]", mine, theirs)
    elif isinstance(expected, type):
        assert found is expected, name
    else:
        np.testing.assert_array_equal(found, expected, name)


#: How a fit is begun and shown, which is no part of what is stored.
MANNER = {"verbose", "n_init", "warm_start"}


def test_no_parameter_is_left_out() -> None:
    for kind in (dpdist.DPMixture, dpdist.FiniteMixture, dpdist.SVA, dpdist.HDPTopicModel):
        asked = [parameters for other, parameters, _ in ASKED if other is kind]
        for name, parameter in inspect.signature(kind).parameters.items():
            assert name in MANNER or any(name in each and each[name] is not parameter.default for each in asked), (
                kind,
                name,
            )


@every_estimator
def test_a_saved_model_is_the_estimator_with_its_parameters(tmp_path, kind, parameters, x) -> None:
    model = kind(**parameters).fit(x)
    model.save(tmp_path / "model.zarr")
    again = dpdist.load(tmp_path / "model.zarr")
    again.save(tmp_path / "again.zarr")
    for loaded in (again, dpdist.load(tmp_path / "again.zarr")):
        assert_asked(loaded, model)
        check_equal("problem", loaded._problem, model._problem)
        check_equal("fitted", loaded._fitted, model._fitted)
        assert loaded.history_.identical(model.history_)


@every_estimator
def test_a_resumed_run_is_the_estimator_with_its_parameters(tmp_path, kind, parameters, x) -> None:
    model = kind(**parameters)
    for _ in model.iter_fit(x, checkpoint_path=tmp_path / "run.zarr"):
        pass
    again = dpdist.resume(tmp_path / "run.zarr", x)
    assert_asked(again, model)
    assert_asked(dpdist.load(tmp_path / "run.zarr"), model)


def test_a_run_resumed_at_its_end_has_the_rows_it_was_given(tmp_path) -> None:
    for _ in dpdist.DPMixture(max_laps=1).iter_fit(X, checkpoint_path=tmp_path / "run.zarr"):
        pass
    model = dpdist.resume(tmp_path / "run.zarr", X)
    assert np.array_equal(model.labels_, model.predict(X))


def test_limits_given_to_resume_are_those_of_the_model(tmp_path) -> None:
    for _ in dpdist.DPMixture(max_laps=1, max_time=50.0).iter_fit(X, checkpoint_path=tmp_path / "run.zarr"):
        pass
    again = dpdist.resume(tmp_path / "run.zarr", X, max_laps=2)
    assert (again.max_laps, again.max_time) == (2, 50.0)


def test_a_random_state_is_kept_as_the_seed_it_gave(tmp_path) -> None:
    model = dpdist.DPMixture(max_laps=1, random_state=np.random.RandomState(7)).fit(X)
    model.save(tmp_path / "model.zarr")
    again = dpdist.load(tmp_path / "model.zarr")
    assert again.random_state == model._problem.seed
    assert again.fit(X).elbo_ == model.elbo_


def test_a_model_fitted_again_after_loading_is_the_same(tmp_path) -> None:
    far = X + 1e3
    model = dpdist.DPMixture(max_laps=3, random_state=0, row_transform=dpdist.TransformPlan(scale=True)).fit(far)
    model.save(tmp_path / "model.zarr")
    assert dpdist.load(tmp_path / "model.zarr").fit(far).elbo_ == model.elbo_


def test_an_extension_has_the_likelihood_and_transform_of_what_it_extends(tmp_path) -> None:
    plan = dpdist.TransformPlan(scale=True)
    family, bounds = IsotropicGaussian(0.5), {"max_components": 4, "row_transform": plan}
    model = dpdist.DPMixture(family, max_laps=2, concentration=3.0, **bounds)
    model.fit(X).save(tmp_path / "model.zarr")
    grown = dpdist.extend(tmp_path / "model.zarr", X + 0.1, out=tmp_path / "grown.zarr")
    seed = model._problem.seed
    asked = dpdist.SVA(family, 3.0, random_state=seed, **bounds)
    for found in (grown, dpdist.load(tmp_path / "grown.zarr")):
        assert_asked(found, asked)
    assert_asked(dpdist.extend(tmp_path / "grown.zarr", X + 0.2), asked)
    assert_asked(dpdist.extend(tmp_path / "grown.zarr", X + 0.3, out=tmp_path / "more.zarr"), asked)


class Patient(dpdist.DPMixture):
    """An estimator of a person's own."""


def test_an_estimator_of_ones_own_comes_back(tmp_path) -> None:
    Patient(max_laps=1).fit(X).save(tmp_path / "model.zarr")
    assert type(dpdist.load(tmp_path / "model.zarr")) is Patient


CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("fit", {}),
    ("fit", {"random_state": 3, "concentration": {"shape": 2.0, "rate": 0.5}, "row_transform": {"pca": 2}}),
    ("fit", {"family": {"name": "poisson", "shape": [1.0, 2.0]}, "schedule": "batch", "max_laps": 7}),
    ("sva", {}),
    ("sva", {"merge": "none", "family": "dirichlet", "row_transform": {"center": True}, "own_clock": False}),
    ("topics", {}),
    ("topics", {"weights": "point", "schedule": "stochastic", "moves": {"name": "point", "split": False}}),
    ("topics", {"schedule": "batch", "effort": {"most": 7}, "learn": ["pseudocount"]}),
]


@pytest.mark.parametrize(("command", "tables"), CONFIGS)
def test_settings_ask_an_estimator_for_what_they_ask_for(command, tables) -> None:
    spec = parse_config(command, tables).spec
    estimator = getattr(dpdist, spec.estimator.removeprefix("dpdist:"))(**spec.parameters)
    assert spec.parameters.keys() == estimator.get_params(deep=False).keys() - MANNER
    for name, found in estimator.spec().parameters.items():
        check_equal(name, found, spec.parameters[name])


# A person's own


WAITING = Exponential(1.5, np.full(3, 0.01))


@pytest.fixture(scope="module")
def waits() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.exponential(np.array([1e-2, 1.0, 1e2])[rng.integers(3, size=400)][:, None], size=(400, 3))


def test_a_likelihood_and_an_allocation_of_ones_own_fit_save_load_and_resume(tmp_path, waits) -> None:
    model = dpdist.DPMixture(WAITING, concentration=GeometricSticks(0.3), max_laps=8, random_state=0)
    whole = model.fit(waits)
    assert whole.n_components_ >= 3
    part = dpdist.DPMixture(WAITING, concentration=GeometricSticks(0.3), max_laps=4, random_state=0)
    for _ in part.iter_fit(waits, checkpoint_path=tmp_path / "run.zarr"):
        pass
    again = dpdist.resume(tmp_path / "run.zarr", waits, max_laps=8)
    assert again.elbo_ == whole.elbo_
    whole.save(tmp_path / "model.zarr")
    loaded = dpdist.load(tmp_path / "model.zarr")
    for other in (again, loaded):
        np.testing.assert_array_equal(other.predict_proba(waits), whole.predict_proba(waits))
        np.testing.assert_array_equal(other.score_samples(waits), whole.score_samples(waits))
        np.testing.assert_array_equal(other.components_["waiting_time"], whole.components_["waiting_time"])
    assert_asked(loaded, whole)


def test_a_move_of_ones_own_is_made_recorded_stored_and_resumed_like_the_rest(tmp_path) -> None:
    rows = np.random.default_rng(0).normal(20.0 * (np.arange(600) % 4)[:, None], size=(600, 2))
    given = {"moves": [dpdist.Merge(), Cut(0.5)], "schedule": Memoized(3), "random_state": 0}
    whole = dpdist.DPMixture(**given, max_laps=9).fit(rows)
    assert whole.n_components_ == 4
    part = dpdist.DPMixture(**given, max_laps=4)
    for _ in part.iter_fit(rows, checkpoint_path=tmp_path / "run.zarr"):
        pass
    again = dpdist.resume(tmp_path / "run.zarr", rows, max_laps=9)
    assert again.elbo_ == whole.elbo_ and again.moves == given["moves"]
    accepted = whole.history_["proposal_reason"].str.startswith("accepted")
    assert "cut" in whole.history_["proposal_kind"].values[accepted.values]
    for name in ("proposal_kind", "proposal_gain", "proposal_component"):
        np.testing.assert_array_equal(again.history_[name], whole.history_[name])


def components_on_disk(path: Path) -> xr.Dataset:
    """What xarray alone reads of a saved model."""
    (generation,) = (path / "generations").iterdir()
    return xr.open_zarr(path, group=f"generations/{generation.name}/components", consolidated=False)


def test_an_array_that_only_a_person_knows_is_read_without_dpdist(tmp_path, waits) -> None:
    model = dpdist.SVA(WAITING, random_state=0).fit(waits)
    model.save(tmp_path / "model.zarr")
    read = components_on_disk(tmp_path / "model.zarr")
    np.testing.assert_array_equal(read["waiting_time"], model.components_["waiting_time"])
    assert read["waiting_time"].dims == ("component", "column")
    assert read["waiting_time"].attrs["long_name"] == "waiting_time of a component, from its likelihood"


@pytest.mark.parametrize("kind", [dpdist.DPMixture, dpdist.SVA])
def test_what_is_described_on_disk_is_what_the_model_tells(tmp_path, kind) -> None:
    model = kind(DiagonalGaussian(), row_transform=dpdist.TransformPlan(scale=True), random_state=0).fit(X + 1e3)
    model.save(tmp_path / "model.zarr")
    read = components_on_disk(tmp_path / "model.zarr")
    for name, told in model.components_.data_vars.items():
        np.testing.assert_array_equal(read[name], told)
    assert {"mean", "variance", "weight"} <= set(model.components_.data_vars)
    assert np.abs(model.components_["mean"] - 1e3).max() < 50


@pytest.mark.parametrize("parallel", [True, False])
def test_a_likelihood_of_ones_own_passes_over_rows(tmp_path, waits, parallel) -> None:
    model = dpdist.SVA(WAITING, parallel=parallel, random_state=0).fit(waits)
    groups = model.components_["waiting_time"].mean("column").values[model.weights_ > 0.1]
    np.testing.assert_allclose(np.sort(groups), [1e-2, 1.0, 1e2], rtol=0.25)
    model.save(tmp_path / "model.zarr")
    loaded = dpdist.load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.predict(waits), model.predict(waits))
    grown = dpdist.extend(tmp_path / "model.zarr", waits)
    assert grown.rows_seen_ == 2 * len(waits)


def test_a_likelihood_of_ones_own_begins_with_a_sequential_pass(waits) -> None:
    model = dpdist.DPMixture(WAITING, initial="sva", max_laps=1, random_state=0)
    _, info = next(model.iter_fit(waits))
    assert info.n_components >= 3


def test_a_likelihood_without_a_conjugate_prior_of_ones_own_comes_back(tmp_path) -> None:
    x = clusters(0, rows=300, columns=2, groups=3, spread=6.0)
    model = dpdist.SVA(KnownSpread(1.0, 10.0), random_state=0, concentration=2.0).fit(x)
    model.save(tmp_path / "model.zarr")
    again = dpdist.load(tmp_path / "model.zarr")
    assert_asked(again, model)
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    np.testing.assert_array_equal(again.components_["place"], model.components_["place"])


@dataclass(frozen=True, eq=False)
class WithoutPlugIn(GeometricSticks):
    """An allocation that says nothing of a concentration."""

    plug_in = Allocation.plug_in


def test_a_pass_that_an_allocation_has_no_concentration_for_is_a_sentence(tmp_path, waits) -> None:
    model = dpdist.DPMixture(WAITING, concentration=WithoutPlugIn(), initial="sva", max_laps=1)
    with pytest.raises(InputError, match=r"needs a concentration; WithoutPlugIn has none. Let its plug_in"):
        model.fit(waits)
    model.set_params(initial="one").fit(waits).save(tmp_path / "model.zarr")
    with pytest.raises(InputError, match="needs a concentration; WithoutPlugIn has none"):
        dpdist.extend(tmp_path / "model.zarr", waits, out=tmp_path / "grown.zarr")


def test_a_notebook_s_own_classes_come_back_in_it_and_are_named_elsewhere(tmp_path) -> None:
    code = (
        inspect.getsource(own_parts)
        + f"""
import dpdist
model = dpdist.DPMixture(Exponential(2.0), concentration=GeometricSticks(0.3), max_laps=1, random_state=0)
model.fit(np.arange(1.0, 21.0)[:, None]).save({str(tmp_path / "model.zarr")!r})
again = dpdist.load({str(tmp_path / "model.zarr")!r})
assert type(again.family) is Exponential and again.elbo_ == model.elbo_
"""
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = r"the class (Exponential|GeometricSticks) of __main__, .* in this script or notebook, under that name"
    with pytest.raises(CheckpointError, match=told):
        dpdist.load(tmp_path / "model.zarr")


# Descriptions


@dataclass(frozen=True, eq=False)
class Describing(Bernoulli):
    """A family that describes what it is told to."""

    told: str = "weight"
    dims: tuple[str, ...] = ("component", "column")

    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        ones, _ = self.posterior(stats)
        return {"probability": (("component", "column"), ones), self.told: (self.dims, ones[:, :1])}


@pytest.mark.parametrize(
    ("told", "dims", "sentence"),
    [
        *(
            (name, ("component", "one"), "the name of an array should be an identifier other than")
            for name in sorted(TAKEN)
        ),
        ("a/b", ("component", "one"), "the name of an array should be an identifier other than"),
        ("other", ("component", "column"), "dimension 'column' of .* has another length in other arrays"),
        ("other", ("component", "feature"), "dimension 'feature' of .* has another length in other arrays"),
        ("other", ("component",), "a different name for each of its 2 dimensions"),
        ("other", ("component", "component"), "a different name for each of its 2 dimensions"),
        ("other", ("one", "component"), "with 'component' first"),
    ],
)
@pytest.mark.parametrize("estimator", [dpdist.DPMixture, dpdist.SVA])
def test_a_description_that_could_not_be_stored_is_refused_before_the_first_lap(
    estimator, told, dims, sentence
) -> None:
    rows = (np.random.default_rng(0).random((50, 3)) < 0.5).astype(float)
    with pytest.raises(InputError, match=rf"Describing\.describe: .*{sentence}.*\.$"):
        estimator(Describing(told=told, dims=dims)).fit(rows)


def test_a_description_may_use_a_listed_name_in_dimensions_of_its_own(tmp_path) -> None:
    rows = (np.random.default_rng(0).random((50, 3)) < 0.5).astype(float)
    for name in ("mean", "factor", "elbo"):
        model = dpdist.DPMixture(Describing(told=name, dims=("component", "one")), max_laps=1).fit(rows)
        model.save(tmp_path / f"{name}.zarr")
        assert dpdist.load(tmp_path / f"{name}.zarr").components_[name].dims == ("component", "one")
        assert model.components_[name].attrs["long_name"].startswith(f"{name} of a component")
