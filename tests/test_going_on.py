"""Runs of every method that are gone on with under other limits, and killed once more: the bits of one undisturbed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import typer
from scipy import sparse
from typer.testing import CliRunner

import dpdist
from dpdist.cli.foreground import drive_here
from dpdist.cli.root import app
from dpdist.core import lease
from dpdist.core.records import sealed
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.sva.sequence import advance_block, last_look
from dpdist.inference.topics.problem import PointProblem
from dpdist.runs.limits import MAX_LAPS
from dpdist.runs.methods import METHODS
from dpdist.runs.methods.sva import prepared_extension
from dpdist.runs.methods.topics import as_online
from dpdist.runs.opening import gone_on, open_run
from dpdist.runs.run import Run
from tests.runs import another_process, bits, clusters, mixture

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
        told = rf"is a sequential pass, which ends after its last row; leave out {next(iter(limits))}\."
        with pytest.raises(dpdist.InputError, match=told):
            dpdist.resume(path, source_of(rows), **limits)
    assert dpdist.resume(path, source_of(rows)).rows_seen_ == len(rows)


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
    model = mixture(initial="k-means++", initial_components=9, max_laps=20)
    run = model.prepare(x)
    assert len(list(run)) and run.fitted is not None
    assert run.fitted.ids.max() < 8 and run.fitted.next_id == run.state.next_id >= 9
    assert prepared_extension(run.problem, run.fitted, dpdist.SVA().spec())[1].next_id == run.state.next_id
    run = dpdist.HDPTopicModel(initial_topics=8, max_laps=10).prepare(WORDS)
    assert len(list(run)) and run.fitted is not None
    online = PointProblem(run.problem.model, "point", dpdist.schedules.Stochastic(3), dpdist.OnlinePlan())
    assert run.fitted.ids.max() < run.state.next_id - 1
    assert as_online(run.problem, run.fitted, online)[1].next_id == run.state.next_id


def test_an_extension_prunes_by_the_rows_of_the_fit_and_its_own() -> None:
    rows = np.concatenate([clusters(0, 900), clusters(1, 100) + 1e3])
    run = mixture(initial=np.arange(1000) // 900, max_laps=1, moves=[]).prepare(rows)
    assert len(list(run)) and run.fitted is not None
    problem, running = prepared_extension(run.problem, run.fitted, dpdist.SVA(prune=0.15, merge=None).spec())
    extended = advance_block(problem, running, rows[-10:], None)  # of 1010 rows, 110 are rare; of ten they are not
    assert last_look(problem, extended).ids.tolist() == run.fitted.ids[:1].tolist()


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A run that another process writes, which lives."""
    path = tmp_path / "live.zarr"
    mixture(max_laps=1).prepare(source_of(clusters(2)), path).close()
    owner = another_process()._asdict()
    beat = {"owner": owner, "beats": 0, "released": False, "time": "2001-01-01T00:00:00+00:00"}
    (path / "leases" / "000099.json").write_bytes(sealed(beat))
    return path


@pytest.mark.parametrize("command", ["fit", "sva", "convert", "predict", "save", "corpus", "extend"])
def test_a_run_that_is_written_is_replaced_by_nothing(command: str, written: Path, tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.npy", ["--out", str(written), "--overwrite"]
    np.save(rows, clusters(2))
    np.savez(tmp_path / "words.npz", **csr_parts(WORDS))
    model = mixture(max_laps=1).fit(clusters(2))
    model.save(tmp_path / "model.zarr")
    sources = {"predict": ["model.zarr", "rows.npy"], "corpus": ["words.npz"], "extend": ["model.zarr", "rows.npy"]}
    before = sorted(path.name for path in written.iterdir())
    if command == "save":
        with pytest.raises(dpdist.DpdistError, match="being written by another"):
            model.save(written, overwrite=True)
    else:
        given = [str(tmp_path / name) for name in sources.get(command, ["rows.npy"])]
        serial = [] if command in ("corpus", "convert") else ["--serial"]
        done = CliRunner().invoke(app, [command, *given, *out, *serial])
        assert isinstance(done.exception, dpdist.DpdistError), (done.output, done.exception)
        assert "being written by another" in str(done.exception)
    assert sorted(path.name for path in written.iterdir()) == before


def csr_parts(counts: np.ndarray) -> dict[str, np.ndarray]:
    """A CSR matrix as SciPy stores it."""
    matrix = sparse.csr_array(counts)
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    return {**parts, "shape": np.array(matrix.shape), "format": np.array(b"csr")}


def test_a_run_whose_folder_is_gone_stops_and_brings_nothing_back(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.02)
    path = tmp_path / "run.zarr"
    run = mixture(max_laps=50, tolerance=0.0).prepare(source_of(clusters(2)), path)
    run.checkpoint_seconds = np.inf
    steps = iter(run)
    next(steps)
    path.rename(tmp_path / "away")  # at once, for a beat that comes while files are removed keeps their folder
    shutil.rmtree(tmp_path / "away", ignore_errors=True)
    time.sleep(0.2)
    assert not path.exists(), "its heart beats for nobody"
    run.checkpoint_seconds = 0.0
    with pytest.raises(dpdist.CheckpointError, match="was moved, removed or replaced during the run"):
        list(steps)
    assert not path.exists(), "its place is free"


def test_who_stops_a_command_is_told_to_go_on_only_with_what_has_begun(capsys, tmp_path: Path) -> None:
    path, rows = tmp_path / "pass.zarr", clusters(2)

    def stopped(at: Path, run: Run | None) -> str:
        def launch() -> SerialBackend:
            raise KeyboardInterrupt

        with pytest.raises(typer.Exit):
            drive_here(lambda backend: run, launch, str(at))
        return capsys.readouterr().err.replace("\n", " ")

    assert "nothing had started yet. Run the command again" in stopped(tmp_path / "none.zarr", None)
    begun = dpdist.SVA().prepare(source_of(rows), path)
    assert "Continue with: dpdist resume" in stopped(path, begun)
    begun.close()
    dpdist.resume(path, source_of(rows))
    told = stopped(path, None)  # as by an extension that has not stored anything, or after the last lap
    assert "had already ended (all rows were passed), and nothing was started after that" in told, told
