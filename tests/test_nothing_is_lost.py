"""What is interrupted, refused or replaced loses nothing that somebody has, and leaves nothing that nobody needs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from scipy.sparse import csr_array
from typer.testing import CliRunner

import dpdist
from dpdist.cli.root import app
from dpdist.cluster.running import AGAIN, OrderedToEnd, drive
from dpdist.core.lease import latest_lease
from dpdist.core.outputs import put_in_place
from dpdist.core.places import LocalPlace, local, place_of
from dpdist.core.places.connections import ObjectStoreError, WrongStoreError
from dpdist.data import as_source
from dpdist.data.convert import convert
from dpdist.data.corpora import write_corpus
from dpdist.data.filling import Filling
from dpdist.execution import SerialBackend
from dpdist.runs import opening
from dpdist.runs.events import Broadcast, Event, Happening, note
from dpdist.runs.labelling import write_labels
from dpdist.runs.methods.mixture import MemoizedMixture
from dpdist.runs.opening import grow_stored_tree, refit_stored
from dpdist.storage import codec
from dpdist.storage.commits import commits
from dpdist.storage.preparing import PreparationStore
from tests.runs import another_process, clusters, is_finished, mixture


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for _ in mixture(max_laps=2).iter_fit(clusters(0), checkpoint_path=tmp_path / "run.zarr"):
        pass
    return tmp_path / "run.zarr"


LOOKS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "tree": ("grow_tree", lambda path: grow_stored_tree(path, as_source(clusters(0)), SerialBackend())),
    "stability": ("refit", lambda path: refit_stored(path, as_source(clusters(0)), SerialBackend(), 2, 2, print)),
}


def test_the_state_of_a_run_is_told(run: Path, tmp_path: Path, monkeypatch) -> None:
    def state(path: Path) -> tuple[object, object]:
        values = json.loads(CliRunner().invoke(app, ["status", str(path), "--json"]).output)
        return values["state"], values.get("go_on")

    assert state(run) == ("ended", None)
    broken = tmp_path / "broken.zarr"
    steps = mixture(max_laps=4, tolerance=0.0).iter_fit(clusters(0), checkpoint_path=broken)
    next(steps)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("dpdist.core.lease.this_process", another_process)
        assert state(broken) == ("running", None)
    steps.close()
    assert state(broken) == ("stopped", f"dpdist resume {broken}")


@pytest.mark.parametrize("look", LOOKS)
def test_nobody_goes_on_with_a_run_while_it_is_looked_at_closely(look: str, run: Path, monkeypatch) -> None:
    """Its findings would be kept beside another model than the one they are of."""
    name, find = LOOKS[look]
    found, refused = getattr(opening, name), []

    def looking(*given: object) -> object:
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("dpdist.core.lease.this_process", another_process)
            with pytest.raises(dpdist.CheckpointError, match="is being written by another coordinator"):
                dpdist.resume(run, clusters(0), max_laps=4)
        refused.append(True)
        return found(*given)

    monkeypatch.setattr(opening, name, looking)
    find(run)
    assert refused and hasattr(dpdist.load(run), f"{look}_")
    assert dpdist.resume(run, clusters(0), max_laps=4).history_.sizes["lap"] == 4


@pytest.mark.parametrize("look", LOOKS)
def test_a_run_that_is_written_is_not_looked_at_for_hours_in_vain(look: str, run: Path, monkeypatch) -> None:
    name, find = LOOKS[look]
    monkeypatch.setattr(opening, name, lambda *given: pytest.fail("it was looked at"))
    going = opening.gone_on(run, as_source(clusters(0)), SerialBackend(), max_laps=3)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("dpdist.core.lease.this_process", another_process)
        with pytest.raises(dpdist.CheckpointError, match="is being written by another coordinator"):
            find(run)
    going.close()


def test_a_loop_that_nobody_goes_on_with_is_left_in_silence_where_another_went_on(tmp_path: Path) -> None:
    path = tmp_path / "run.zarr"
    steps = mixture(max_laps=4, tolerance=0.0).iter_fit(clusters(0), checkpoint_path=path)
    next(steps)
    model = dpdist.resume(path, clusters(0))
    steps.close()
    assert dpdist.load(path).elbo_ == model.elbo_ and model.history_.sizes["lap"] == 4


def folder(path: Path, text: str) -> Path:
    """A folder of one file."""
    path.mkdir()
    (path / "file").write_text(text)
    return path


def test_what_cannot_be_replaced_stays(tmp_path: Path) -> None:
    target = folder(tmp_path / "rows.zarr", "before")
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "nothing", target)
    assert (target / "file").read_text() == "before" and [path.name for path in tmp_path.iterdir()] == ["rows.zarr"]


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_folder_takes_the_place_of_another(tmp_path: Path, monkeypatch, exchanges: bool) -> None:
    aside, target = folder(tmp_path / "aside", "after"), folder(tmp_path / "rows.zarr", "before")
    if not exchanges:  # as some systems do
        monkeypatch.setattr("dpdist.core.outputs._exchanged", lambda *_: False)
    put_in_place(aside, target)
    assert (target / "file").read_text() == "after" and [path.name for path in tmp_path.iterdir()] == ["rows.zarr"]


def renamed_so_often(monkeypatch: pytest.MonkeyPatch, steps: int, end: BaseException) -> None:
    """Have so many renames go well, and the next raise what ends them."""
    rename, counted = Path.rename, itertools.count()

    def ended(path: Path, other: Path) -> Path:
        if next(counted) == steps:
            raise end
        return rename(path, other)

    monkeypatch.setattr(Path, "rename", ended)


@pytest.mark.parametrize("steps", range(4))
def test_what_was_there_comes_back_where_a_replacement_fails(tmp_path: Path, monkeypatch, steps: int) -> None:
    """Where the system cannot exchange them in one step."""
    aside, target = folder(tmp_path / "aside", "after"), folder(tmp_path / "rows.zarr", "before")
    monkeypatch.setattr("dpdist.core.outputs._exchanged", lambda *_: False)
    renamed_so_often(monkeypatch, steps, OSError("no"))
    with pytest.raises(OSError, match="no"):
        put_in_place(aside, target)
    assert (target / "file").read_text() == ("after" if steps == 3 else "before")


@pytest.mark.parametrize("steps", range(2))
def test_there_is_one_or_the_other_whenever_a_replacement_is_killed(tmp_path: Path, monkeypatch, steps: int) -> None:
    """Where the system exchanges them in one step: a process that is killed puts nothing right."""
    aside, target = folder(tmp_path / "aside", "after"), folder(tmp_path / "rows.zarr", "before")
    renamed_so_often(monkeypatch, steps, SystemExit())
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    with contextlib.suppress(SystemExit):
        put_in_place(aside, target)
    assert (target / "file").read_text() == ("before" if steps == 0 else "after")
    monkeypatch.undo()
    Filling(str(target), "plan").forget()
    assert {path.name for path in tmp_path.iterdir()} <= {"rows.zarr", "aside"}


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Rows where a run is to be kept."""
    zarr.create_array(tmp_path / "it.zarr", shape=(3,), dtype="float64")[...] = 1.0
    return tmp_path / "it.zarr"


def test_a_run_takes_the_place_of_runs_alone_and_nothing_else_takes_its(foreign: Path, run: Path) -> None:
    for write in (lambda: begun(foreign, clusters(0)), lambda: dpdist.load(run).save(foreign, overwrite=True)):
        with pytest.raises(FileExistsError, match="exists and is not a dpdist run, so it is not replaced"):
            write()
    np.testing.assert_array_equal(zarr.open_array(foreign)[...], 1.0)
    before = dpdist.load(run).elbo_
    np.save(run.parent / "rows.npy", clusters(0))
    for replace in (
        lambda: convert(run.parent / "rows.npy", run, overwrite=True),
        lambda: write_labels(dpdist.load(run)._predictor, as_source(clusters(0)), SerialBackend(), run, overwrite=True),
        lambda: write_corpus(run, [csr_array(np.eye(3, dtype=np.int32))], overwrite=True),
    ):
        with pytest.raises(FileExistsError, match="is a run or model of dpdist, which other data do not replace"):
            replace()
    assert dpdist.load(run).elbo_ == before
    begun(run, clusters(1))


WRITES: dict[str, Callable[[Path, Path, bool], object]] = {
    "save": lambda run, out, overwrite: dpdist.load(run).save(out, overwrite=overwrite),
    "extend": lambda run, out, overwrite: dpdist.extend(run, clusters(3), out=out, overwrite=overwrite),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_was_killed_before_its_first_commit_is_written_again(
    name: str, run: Path, tmp_path: Path, monkeypatch
) -> None:
    """What is there before some of the files are written, as a killed process leaves it."""
    out, write, left, written = tmp_path / "out.zarr", local._write, list[Path](), itertools.count()

    def seen(*given: Any) -> None:
        number = next(written)
        if (number < 4 or number % 30 == 0) and not commits(place_of(out)):
            left.append(tmp_path / f"left-{number}.zarr")
            shutil.copytree(out, left[-1])
        write(*given)

    with monkeypatch.context() as watched:
        watched.setattr(local, "_write", seen)
        watched.setattr(local.ThreadPoolExecutor, "map", lambda _, function, items: [function(item) for item in items])
        WRITES[name](run, out, False)
    monkeypatch.setattr("dpdist.core.lease.lives", lambda *_: False)
    monkeypatch.setattr("dpdist.core.outputs.lives", lambda *_: False)
    asked = 0
    for path in left:
        try:
            WRITES[name](run, path, False)
        except dpdist.OutputExistsError as error:
            asked += "replace it with overwrite=True" in str(error)
            WRITES[name](run, path, True)
        assert dpdist.load(path).n_components_ == dpdist.load(out).n_components_
        for kind in ("objects", "generations", "problems"):
            assert len(place_of(path).names(kind)) == len(place_of(out).names(kind))
    assert asked and len(left) > 5


def test_a_link_to_nowhere_is_told_before_anything_is_done(run: Path) -> None:
    rows, link = as_source(clusters(0)), run.parent / "link"
    link.symlink_to("gone")
    for write in (
        lambda: begun(link, clusters(0)),
        lambda: write_labels(dpdist.load(run)._predictor, rows, SerialBackend(), link),
        lambda: write_corpus(link, [csr_array(np.eye(3, dtype=np.int32))]),
    ):
        with pytest.raises(dpdist.InputError, match=r"link is a link to gone, which does not exist; create it, or"):
            write()
    (run.parent / "gone").mkdir()
    begun(link, clusters(0))
    assert (run.parent / "gone" / "commits").is_dir()


def test_nothing_is_written_into_the_folders_of_a_run(run: Path) -> None:
    found, rows = dpdist.load(run)._predictor, as_source(clusters(0))
    for folder in ("objects", "commits", "jobs"):
        inside = run / folder / "it"
        inside.parent.mkdir(exist_ok=True)
        for write in (begun, lambda out, _: write_labels(found, rows, SerialBackend(), out)):
            with pytest.raises(dpdist.InputError, match=r"it lies within the run .*run.zarr, which deletes files"):
                write(inside, clusters(0))
    write_labels(found, rows, SerialBackend(), run / "labels")
    (run.parent / "objects").mkdir()
    begun(run.parent / "objects" / "it", clusters(0))


def begun(path: Path, rows: np.ndarray) -> None:
    mixture(max_laps=1).prepare(as_source(rows), path, overwrite=True).close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ObjectStoreError, WrongStoreError, RuntimeError, MemoryError])
def test_a_preparation_that_ends_in_the_middle_is_gone_on_with_and_nothing_stays_hidden(
    error: type[BaseException], tmp_path: Path, monkeypatch
) -> None:
    begin = MemoizedMixture.begin

    def ending(self, spec, source, backend):
        begin(self, spec, source, backend)
        raise error("as it was about to be kept")

    monkeypatch.setattr(MemoizedMixture, "begin", ending)
    path = tmp_path / "it.zarr"
    with pytest.raises(error):
        begun(path, clusters(0))
    assert PreparationStore.found(place_of(path)) is not None
    monkeypatch.undo()
    dpdist.resume(path, clusters(0))
    assert is_finished(path) and [each.name for each in tmp_path.iterdir()] == ["it.zarr"]


def test_a_preparation_is_held_until_nothing_of_it_is_left(tmp_path: Path, monkeypatch) -> None:
    """Else who takes its turn meanwhile loses what it begins."""
    place = LocalPlace(tmp_path / "run.zarr")
    rows = clusters(0)
    rows[7, 0] = np.nan
    held: list[bool] = []
    remove = LocalPlace.remove

    def watched(self: LocalPlace, *names: str) -> None:
        if "preparing" in names or "zarr.json" in names:
            _, lease = latest_lease(place)
            held.append(lease is not None and not lease["released"])
        remove(self, *names)

    monkeypatch.setattr(LocalPlace, "remove", watched)
    with pytest.raises(dpdist.InputError, match="NaN"):
        mixture(max_laps=1).prepare(as_source(rows), place.path)
    assert held and all(held) and not place.exists()


class _Slow:
    """An outlet that takes its time, on a cluster that is closed when the run is over."""

    def __init__(self) -> None:
        self.open, self.sent = True, list[str]()

    def send(self, event: Event) -> bool:
        time.sleep(0.3)
        self.sent.append(str(event) if self.open else "too late")
        return self.open


class _Told:
    """Passes on the events of a run, as a coordinator does."""

    def __init__(self, outlet: _Slow) -> None:
        self.broadcast = Broadcast("a run", outlet.send)

    def tell(self, event: Event) -> None:
        self.broadcast.tell(event)

    def end(self, sentence: str, happening: Happening = Happening.ENDED) -> None:
        self.broadcast.tell(note(happening, sentence))
        self.broadcast.close()


def test_that_a_job_is_queued_again_is_told_before_its_cluster_goes() -> None:
    outlet = _Slow()

    class Closing(SerialBackend):
        def close(self) -> None:
            outlet.open = False

    def prepare(backend: object) -> object:
        raise OrderedToEnd(AGAIN)

    with pytest.raises(OrderedToEnd):
        drive(prepare, Closing, _Told(outlet))
    assert len(outlet.sent) == 1 and "queued again" in outlet.sent[0]


def test_damage_is_told_with_the_place_where_it_is(tmp_path: Path) -> None:
    place = LocalPlace(os.path.relpath(tmp_path / "run.zarr"))
    digests = place.fill("a/group", lambda group: None)
    with pytest.raises(dpdist.CheckpointError, match=f"^{place.label}/a/group has no value"):
        codec.read(place.group("a/group", digests))
