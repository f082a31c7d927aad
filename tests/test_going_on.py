"""Runs of every method that are gone on with under other limits, and killed once more: the bits of one undisturbed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import dpdist
from dpdist.cluster.coordinator import _prepared
from dpdist.cluster.submitted import Request
from dpdist.core.places import place_of
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.topics.problem import PointProblem
from dpdist.runs.config import parse_config
from dpdist.runs.limits import MAX_LAPS
from dpdist.runs.methods import METHODS
from dpdist.runs.methods.sva import prepared_extension
from dpdist.runs.methods.topics import as_online
from dpdist.runs.opening import gone_on, open_run
from dpdist.runs.run import Run
from tests.runs import bits, clusters, mixture

WORDS = np.random.default_rng(0).poisson(0.5, size=(120, 30)).astype(float)
#: An estimator that stops early, and its data; by the name of its method.
ENDLESS: dict[str, tuple[Callable[[], dpdist.DPMixture | dpdist.HDPTopicModel], np.ndarray]] = {
    "memoized": (lambda: mixture(max_laps=1, tolerance=0.0), clusters(2)),
    "memoized topics": (lambda: dpdist.HDPTopicModel(initial_topics=4, max_laps=1, tolerance=0.0), WORDS),
    "online topics": (
        lambda: dpdist.HDPTopicModel(
            initial_topics=4, max_laps=1, weights="point", schedule=dpdist.schedules.Stochastic(3)
        ),
        WORDS,
    ),
}
LAPS = 4
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def source_of(rows: np.ndarray) -> ArraySource:
    return ArraySource(rows, partition_rows=40)


def killed_after(run: Run, steps: int) -> None:
    """A run that writes after every batch, left as a process leaves it that is killed."""
    run.checkpoint_seconds = 0.0
    for _ in islice(iter(run), steps):
        pass
    run.settle()
    assert run.store is not None, "it is stored"
    run.store.release()  # as if its owner were dead


def test_every_method_without_an_end_of_its_own_is_gone_on_with_here() -> None:
    assert set(ENDLESS) == {name for name, method in METHODS.items() if method.endless}


@pytest.mark.parametrize("name", ENDLESS)
def test_limits_of_a_run_that_was_gone_on_with_outlive_it(name: str, tmp_path: Path) -> None:
    begin, rows = ENDLESS[name]
    whole = begin().set_params(max_laps=LAPS)
    assert len(list(whole.iter_fit(source_of(rows)))) == LAPS
    path = tmp_path / "run.zarr"
    assert [info.lap for _, info in begin().iter_fit(source_of(rows), checkpoint_path=path)] == [1]
    killed_after(gone_on(path, source_of(rows), SerialBackend(), max_laps=LAPS), 4)
    begun = open_run(path).history().laps
    assert 1 <= len(begun) < LAPS
    model = dpdist.resume(path, source_of(rows))
    assert len(model.history_.lap) == LAPS and model._fitted.stop == MAX_LAPS
    assert bits(model) == bits(dpdist.load(path)) == bits(whole)
    assert model.max_laps == dpdist.load(path).max_laps == LAPS


@pytest.mark.parametrize("steps", [0, 1])
def test_limits_are_kept_before_anything_else_is_done_under_them(steps: int, tmp_path: Path) -> None:
    path, rows = tmp_path / "run.zarr", clusters(2)
    mixture(max_laps=1).prepare(source_of(rows), path).close()
    killed_after(gone_on(path, source_of(rows), SerialBackend(), max_laps=3, max_time=1e6), steps)
    assert open_run(path).asked().parameters["max_laps"] == 3
    assert open_run(path).asked().parameters["max_time"] == 1e6
    run = gone_on(path, source_of(rows), SerialBackend(), max_time=2e6)
    assert (run.limits.max_laps, run.limits.max_time) == (3, 2e6)
    run.close()


def test_a_pass_takes_no_limits(tmp_path: Path) -> None:
    path, rows = tmp_path / "pass.zarr", clusters(2)
    killed_after(dpdist.SVA().prepare(source_of(rows), path), 1)
    for limits in ({"max_laps": 2}, {"max_time": 2.0}):
        told = rf"is a pass, which ends with its rows; leave out {next(iter(limits))}\."
        with pytest.raises(dpdist.InputError, match=told):
            dpdist.resume(path, source_of(rows), **limits)
    assert dpdist.resume(path, source_of(rows)).rows_seen_ == len(rows)


def test_a_submitted_run_begun_anew_has_the_limits_of_the_request(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", clusters(2))
    settings = parse_config("fit", {"data": str(tmp_path / "rows.npy"), "max_laps": 1, "tolerance": 0.0}).tables
    request = Request("id", "fit", settings, max_laps=2)
    run = _prepared(place_of(str(tmp_path / "run.zarr")), request, SerialBackend())
    assert run.limits.max_laps == 2
    run.close()


@pytest.mark.parametrize("killed", [1, 2])
def test_limits_of_a_preparation_that_was_gone_on_with_outlive_it(killed: int, monkeypatch, tmp_path: Path) -> None:
    path, source, begin = tmp_path / "run.zarr", source_of(clusters(2)), Run.keep_in

    def never(run: Run, store: object) -> None:
        raise dpdist.CheckpointError("as if killed before the first checkpoint")

    monkeypatch.setattr(Run, "keep_in", never)
    with pytest.raises(dpdist.CheckpointError, match="as if killed"):
        mixture(max_laps=1).prepare(source, path)
    for _ in range(killed):
        with pytest.raises(dpdist.CheckpointError, match="as if killed"):
            gone_on(path, source, SerialBackend(), *([3] if _ == 0 else []))
    monkeypatch.setattr(Run, "keep_in", begin)
    model = dpdist.resume(path, source)
    assert model.max_laps == dpdist.load(path).max_laps == 3


def test_ids_that_were_given_are_not_given_again() -> None:
    x = np.concatenate([clusters(2, groups=2), np.full((3, 3), 900.0)])
    model = dpdist.DPMixture(initial="k-means++", initial_components=9, random_state=0, max_laps=20).fit(x)
    assert model._fitted.ids.max() < 8
    assert prepared_extension(model._problem, model._fitted, dpdist.SVA().spec())[1].next_id == 9
    topics = dpdist.HDPTopicModel(initial_topics=8, max_laps=10).fit(WORDS)
    online = PointProblem(topics._problem.model, "point", dpdist.schedules.Stochastic(3), dpdist.OnlinePlan())
    assert topics._fitted.ids.max() < 247
    assert as_online(topics._problem, topics._fitted, online)[1].next_id == 248
