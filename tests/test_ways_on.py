"""What is begun in one way and gone on with in another: nothing is lost, forgotten, or held against what comes next."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import dpdist
from dpdist.cli.foreground import launcher_of
from dpdist.cli.root import app
from dpdist.cluster import coordinator
from dpdist.cluster.running import AGAIN, drive
from dpdist.cluster.submitted import Request, add_request
from dpdist.core.errors import ClusterLostError, InputError, OutputExistsError
from dpdist.core.places import place_of
from dpdist.data import ArraySource, as_source
from dpdist.execution import SerialBackend
from dpdist.runs import passes
from dpdist.runs.config import parse_config
from dpdist.runs.events import Event, NoteEvent
from dpdist.runs.limits import MAX_TIME
from dpdist.runs.opening import gone_on, grow_stored_tree, source_of
from dpdist.storage.checkpoint import RunStore
from dpdist.storage.commits import commits
from tests.runs import clusters, mixture
from tests.test_kept_passes import Killed

#: Counts of words in documents.
WORDS = np.random.default_rng(0).poisson(0.5, size=(120, 30)).astype(float)


def test_a_process_that_goes_elsewhere_before_the_first_lap_keeps_documents_where_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, elsewhere = ArraySource(WORDS, partition_rows=40), tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    run = dpdist.HDPTopicModel(initial_topics=4, max_laps=1, tolerance=0.0).prepare(words, "run.zarr")
    monkeypatch.chdir(elsewhere)
    for _ in run:
        pass
    assert not any(elsewhere.iterdir())
    assert len(dpdist.resume(tmp_path / "run.zarr", words, max_laps=2).history_.lap) == 2


def test_a_preparation_outlives_what_it_is_wrongly_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killing(SerialBackend):
        def total(self, *given):
            raise Killed

    rows, path = clusters(0), tmp_path / "run.zarr"
    with pytest.raises(Killed):
        mixture(max_laps=1).prepare(rows, path, backend=Killing())
    with pytest.raises(InputError, match="rows should have 3 columns"):
        gone_on(path, as_source(rows), SerialBackend(), holdout=rows[:, :2])
    assert dpdist.resume(path, rows).n_iter_ == 1


def test_as_many_checkpoints_are_kept_by_whoever_writes_the_next(tmp_path: Path) -> None:
    rows, path = clusters(0), tmp_path / "run.zarr"
    run = mixture(max_laps=3, tolerance=0.0).prepare(rows, path)
    run.checkpoint_seconds, run.store.keep = 0.0, 5
    for _ in run:
        pass
    assert len(commits(place_of(path))) == 5
    grow_stored_tree(path, as_source(rows), SerialBackend())
    dpdist.resume(path, rows, max_laps=4)
    assert len(commits(place_of(path))) == 5


def test_a_job_whose_passes_got_further_is_queued_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(SerialBackend):
        client = SimpleNamespace(scheduler=SimpleNamespace(address="tcp://127.0.0.1:1"))
        calls = 0

        def total(self, *given):
            Told.calls += 1
            if Told.calls == 3:
                os.kill(os.getpid(), signal.SIGUSR1)
            return super().total(*given)

    monkeypatch.setattr(passes, "LOSS", 0.0)
    monkeypatch.setattr(coordinator, "parse_cluster", lambda values: SimpleNamespace(launch=Told))
    monkeypatch.setattr(coordinator, "SchedulerOutlet", lambda client: SimpleNamespace(send=lambda event: True))
    np.save(tmp_path / "rows.npy", clusters(0, rows=20_000))
    place = place_of(str(tmp_path / "run.zarr"))
    add_request(place, Request("x", "fit", {"data": str(tmp_path / "rows.npy"), "max_laps": 1}, {}), 0)
    assert coordinator.coordinate(place.label, Console(quiet=True)) == AGAIN
    assert coordinator.coordinate(place.label, Console(quiet=True)) == 0


def test_another_cluster_gives_a_run_no_more_time() -> None:
    class Losing(SerialBackend):
        calls = 0

        def total(self, *given):
            Losing.calls += 1
            if Losing.calls % 20 == 0:
                raise ClusterLostError("it is gone.")
            time.sleep(0.02)
            return super().total(*given)

    told: list[Event] = []
    sink = SimpleNamespace(tell=told.append, end=lambda *said: None)
    fit = mixture(max_laps=60, max_time=0.5, tolerance=0.0, moves=[])
    run = drive(lambda backend: fit.prepare(clusters(0), backend=backend), Losing, sink)
    assert run.fitted.stop == MAX_TIME
    notes = [event.sentence for event in told if isinstance(event, NoteEvent)]
    losses = [
        place for place, text in enumerate(notes) if text.startswith("the cluster was lost; a new one is started")
    ]
    assert losses and all(notes[place + 1].startswith("it is gone. Continuing") for place in losses)


def test_dask_tells_nothing_of_its_client_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dpdist.execution.connecting.connect", lambda address: logging.getLogger("distributed.client").level
    )
    before = logging.getLogger("distributed.client").level
    try:
        assert launcher_of(None, "tcp://127.0.0.1:1", False)() == logging.CRITICAL
    finally:
        logging.getLogger("distributed.client").setLevel(before)


def test_a_pattern_is_kept_by_every_way_from_a_folder_whose_name_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data [2024]"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for part in range(2):
        np.savetxt(f"part-{part}.csv", clusters(part), delimiter=",", header="a,b,c", comments="")
        np.savetxt(f"new-{part}.csv", clusters(part + 2, rows=500), delimiter=",", header="a,b,c", comments="")
    for _ in dpdist.SVA(random_state=0).iter_fit("part-*.csv", checkpoint_path="model.zarr"):
        pass
    assert source_of(RunStore.open("model.zarr")).shape == (1800, 3)
    told = CliRunner().invoke(app, ["extend", "model.zarr", "new-*.csv", "--serial"])
    assert told.exit_code == 0, told.output
    assert source_of(RunStore.open("model.zarr")).shape == (1000, 3)


def test_columns_are_chosen_of_rows_held_out_as_of_the_others(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = clusters(0)
    vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(rows.ravel()), 3)
    file, out = str(tmp_path / "rows.parquet"), str(tmp_path / "run.zarr")
    parquet.write_table(arrow.table({"id": arrow.array(range(len(rows))), "vector": vectors}), file)
    fit = ["fit", file, "--columns", "vector", "--holdout", file, "--out", out, "--max-laps", "1", "--serial"]
    assert CliRunner().invoke(app, fit, catch_exceptions=False).exit_code == 0
    resume = ["resume", out, "--max-laps", "2", "--serial"]
    assert CliRunner().invoke(app, resume, catch_exceptions=False).exit_code == 0
    assert not np.isnan(dpdist.load(out).history_["holdout_score"]).any()


def test_an_extension_from_a_path_knows_its_data(tmp_path: Path) -> None:
    np.save(tmp_path / "new.npy", clusters(1))
    for _ in dpdist.SVA(random_state=0).iter_fit(clusters(0), checkpoint_path=tmp_path / "model.zarr"):
        pass
    dpdist.extend(tmp_path / "model.zarr", tmp_path / "new.npy")
    assert source_of(RunStore.open(tmp_path / "model.zarr")).shape == (900, 3)


def test_a_run_that_converged_is_left_as_it_is_unless_it_is_given_more(tmp_path: Path) -> None:
    rows, path = clusters(2), tmp_path / "run.zarr"
    for _ in mixture(max_laps=100).iter_fit(rows, checkpoint_path=path):
        pass
    whole, last = dpdist.load(path), commits(place_of(path))
    again = dpdist.resume(path, rows)
    assert whole.converged_ and again.n_iter_ == whole.n_iter_
    assert commits(place_of(path)) == last
    assert dpdist.resume(path, rows, max_laps=120).n_iter_ > whole.n_iter_


def test_a_place_that_is_taken_is_refused_before_rows_are_read(tmp_path: Path) -> None:
    class Unread(ArraySource):
        def partition(self, *given):
            raise AssertionError("rows are read")

    for name in ("model", "taken"):
        for _ in dpdist.SVA(random_state=0).iter_fit(clusters(0), checkpoint_path=tmp_path / name):
            pass
    with pytest.raises(OutputExistsError, match="taken exists"):
        dpdist.extend(tmp_path / "model", Unread(clusters(1)), out=tmp_path / "taken")


@pytest.mark.parametrize("start", ["sva", "one"])
def test_a_run_may_be_called_as_a_start_is(start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", clusters(0))
    fit = ["fit", "rows.npy", "--initial", start, "--out", start, "--max-laps", "1", "--serial"]
    assert CliRunner().invoke(app, fit, catch_exceptions=False).exit_code == 0


def test_a_start_that_is_submitted_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dpdist.SVA(random_state=0).fit(clusters(0)).save("start.zarr")
    for start, kept in {"start.zarr": str(tmp_path / "start.zarr"), "sva": "sva"}.items():
        assert parse_config("fit", {"data": "rows.npy", "initial": start}).tables["initial"] == kept
