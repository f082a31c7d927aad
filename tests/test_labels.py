"""Laws of labelling that is killed: what was written stays, the rest follows, and the files are the same."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dpdist.core.errors import InputError, OutputExistsError
from dpdist.data import ArraySource, as_source
from dpdist.data.arrays import ArrayPartition
from dpdist.execution import SerialBackend
from dpdist.inference.outliers import flagged
from dpdist.inference.prediction import Predictor
from dpdist.runs import label_blocks, label_table, labelling
from dpdist.runs.label_table import RowIds
from dpdist.runs.labelling import write_labels
from tests.runs import another_process, clusters, mixture

ROWS = 900


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    """Blocks of 64 rows, and few partitions under way at once."""
    monkeypatch.setattr(label_blocks, "BLOCK_ROWS", 64)
    monkeypatch.setattr(label_blocks, "TOGETHER", 3)


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return mixture(max_laps=2).fit(clusters(1))._predictor


def source_of(rows: np.ndarray) -> ArraySource:
    """Partitions of 50 rows, which lie across blocks."""
    return ArraySource(rows, partition_rows=50)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Killed(SerialBackend):
    """Ends, or kills its process, once so many blocks were written."""

    def __init__(self, blocks: int, kills: bool = False) -> None:
        super().__init__()
        self.left, self.kills, self.predicted = blocks, kills, 0

    def map(self, function, *columns):
        def once(*row):
            self.predicted += function is labelling._predictions
            if function is labelling._write_block:
                self.left -= 1
                if self.left < 0:
                    if self.kills:
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise KeyboardInterrupt
            return function(*row)

        return super().map(once, *columns)


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("flags", [False, True])
def test_rows_are_read_once_whatever_is_said_of_them(tmp_path, predictor, monkeypatch, top: int, flags: bool) -> None:
    read, reads = ArrayPartition.read, []
    source = source_of(clusters(1))
    model = flagged(predictor, SerialBackend(), 0, True) if flags else predictor
    monkeypatch.setattr(ArrayPartition, "read", lambda self: (reads.append(self.index), read(self))[1])
    write_labels(model, source, SerialBackend(), tmp_path / "labels.zarr", top=top, density=True)
    assert sorted(reads) == list(range(len(source.partitions)))


def test_there_is_work_for_every_thread() -> None:
    class Many(SerialBackend):
        threads = 500

    assert Many().at_a_time(3) >= 500 and SerialBackend().at_a_time(3) == 3


@pytest.mark.parametrize("blocks", [0, 1, 7, 14])
def test_a_killed_labelling_goes_on_with_the_same_bytes(tmp_path, predictor, blocks: int) -> None:
    source, out, told = source_of(clusters(1)), tmp_path / "labels.zarr", []
    asked = {"top": 2, "density": True}
    write_labels(predictor, source, SerialBackend(), tmp_path / "whole.zarr", **asked)
    child = os.fork()
    if child == 0:
        write_labels(predictor, source, Killed(blocks, kills=True), out, **asked)
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]) and not out.exists()
    again = Killed(10**9)
    write_labels(predictor, source, again, out, **asked, tell=told.append)
    assert contents(out) == contents(tmp_path / "whole.zarr")
    assert told == ([64 * blocks] if blocks else [])
    partitions = len(source.partitions)
    assert again.predicted == partitions - sum(part.stop <= 64 * blocks for part in source.partitions)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.zarr", "whole.zarr"]


@pytest.mark.parametrize("damage", ["gone", "half", "other"])
def test_labels_that_were_damaged_since_are_written_anew(tmp_path, predictor, damage: str) -> None:
    source, out, told = source_of(clusters(1)), tmp_path / "labels.zarr", []
    with pytest.raises(KeyboardInterrupt):
        write_labels(predictor, source, Killed(9), out, density=True)
    (chunk,) = tmp_path.glob(".labels.zarr.partial-*/log_density/c/3")
    if damage == "gone":
        chunk.unlink()
    else:
        chunk.write_bytes(chunk.read_bytes()[:20] if damage == "half" else chunk.with_name("4").read_bytes())
    write_labels(predictor, source, SerialBackend(), out, density=True, tell=told.append)
    write_labels(predictor, source, SerialBackend(), tmp_path / "whole.zarr", density=True)
    assert contents(out) == contents(tmp_path / "whole.zarr") and told == [64 * 8]


def test_rows_that_changed_since_are_labelled_anew(tmp_path, predictor) -> None:
    rows, out, told = clusters(1), tmp_path / "labels.zarr", []
    source = source_of(rows)
    with pytest.raises(KeyboardInterrupt):
        write_labels(predictor, source, Killed(9), out, density=True)
    rows[70] += 1.0
    source = source_of(rows)
    write_labels(predictor, source, SerialBackend(), out, density=True, tell=told.append)
    write_labels(predictor, source, SerialBackend(), tmp_path / "whole.zarr", density=True)
    assert contents(out) == contents(tmp_path / "whole.zarr")
    changed = next(part for part in source.partitions if part.start <= 70 < part.stop)
    anew = sum(start < changed.stop and start + 64 > changed.start for start in range(0, ROWS, 64))
    assert told == [64 * (9 - anew)] and 0 < anew < 9


@pytest.mark.parametrize("other", ["model", "top", "density"])
def test_what_was_begun_for_another_question_is_of_no_use_and_goes(tmp_path, predictor, other: str) -> None:
    source, out, told = source_of(clusters(1)), tmp_path / "labels.zarr", []
    with pytest.raises(KeyboardInterrupt):
        write_labels(predictor, source, Killed(5), out)
    if other == "model":
        predictor = mixture(max_laps=3).fit(clusters(1))._predictor
    asked = {"top": 2} if other == "top" else {"density": other == "density"}
    write_labels(predictor, source, SerialBackend(), out, **asked, tell=told.append)
    assert not told and not list(tmp_path.glob(".labels*"))


@pytest.mark.parametrize("name", ["labels.csv", "labels.csv.gz", "labels.parquet"])
def test_a_table_of_labels_goes_on_too(tmp_path, predictor, name: str) -> None:
    source, out, told = source_of(clusters(1)), tmp_path / name, []
    with pytest.raises(KeyboardInterrupt):
        write_labels(predictor, source, Killed(5), out)
    write_labels(predictor, source, SerialBackend(), out, tell=told.append)
    write_labels(predictor, source, SerialBackend(), tmp_path / f"whole-{name}")
    assert 0 < told[0] < ROWS and out.read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["labels.csv", "labels.parquet", "labels.zarr"])
@pytest.mark.parametrize("ids", [ROWS - 1, ROWS + 1])
def test_labels_outlive_ids_that_are_refused(tmp_path, predictor, name: str, ids: int) -> None:
    source, out, told = source_of(clusters(1)), tmp_path / name, []
    with pytest.raises(InputError, match=f"'who' should have {ROWS} ids"):
        write_labels(predictor, source, SerialBackend(), out, ids=RowIds("who", iter([["a"] * ids])))
    assert not out.exists()
    right = RowIds("who", iter([["a"] * ROWS]))
    write_labels(predictor, source, again := Killed(10**9), out, ids=right, tell=told.append)
    assert told == [ROWS] and not again.predicted and out.exists() and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("name", "ids"), [("t.csv", "label"), ("t.csv", "component_id"), ("t.parquet", "label"), ("z.zarr", "label")]
)
def test_ids_that_cannot_stand_beside_labels_are_refused_before_rows_are_read(
    tmp_path, predictor, name: str, ids: str
) -> None:
    backend = Killed(10**9)
    with pytest.raises(InputError, match=f"column of ids has the name of a column of the output, '{ids}'"):
        write_labels(predictor, source_of(clusters(1)), backend, tmp_path / name, ids=RowIds(ids, iter([["a"] * ROWS])))
    assert not backend.predicted and not list(tmp_path.iterdir())


def test_a_table_that_no_library_can_write_is_refused_before_rows_are_read(tmp_path, predictor, monkeypatch) -> None:
    backend, found = Killed(10**9), importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else found(name))
    with pytest.raises(InputError, match=r"pip install 'dpdist\[parquet\]'"):
        write_labels(predictor, source_of(clusters(1)), backend, tmp_path / "labels.parquet")
    assert not backend.predicted and not list(tmp_path.iterdir())


def test_ids_of_an_attempt_that_was_killed_are_written_again(tmp_path, predictor, monkeypatch) -> None:
    source, out = source_of(clusters(1)), tmp_path / "labels.zarr"

    def killed(*_: object) -> None:
        whole(*_)
        raise KeyboardInterrupt

    whole = labelling.write_ids
    monkeypatch.setattr(labelling, "write_ids", killed)
    with pytest.raises(KeyboardInterrupt):
        write_labels(predictor, source, SerialBackend(), out, ids=RowIds("who", iter([["x"] * ROWS])))
    monkeypatch.undo()
    names = [f"r{i}" for i in range(ROWS)]
    monkeypatch.setattr(label_blocks, "BLOCK_ROWS", 64)
    write_labels(predictor, source, SerialBackend(), out, ids=RowIds("who", iter([names])))
    write_labels(predictor, source, SerialBackend(), tmp_path / "whole.zarr", ids=RowIds("who", iter([names])))
    assert contents(out) == contents(tmp_path / "whole.zarr")


@pytest.mark.parametrize("name", ["labels.zarr", "labels.csv"])
def test_of_two_labellings_to_one_place_the_later_is_refused(tmp_path, predictor, monkeypatch, name: str) -> None:
    refused = 0

    def ids():
        nonlocal refused
        with monkeypatch.context() as patch:
            patch.setattr("dpdist.core.lease.this_process", another_process)
            with pytest.raises(OutputExistsError, match="is being written by another process"):
                write_labels(predictor, source_of(clusters(1)), SerialBackend(), tmp_path / name)
        refused += 1
        yield ["x"] * ROWS

    write_labels(predictor, source_of(clusters(1)), SerialBackend(), tmp_path / name, ids=RowIds("who", ids()))
    assert refused == 1 and [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["labels.zarr", "labels.csv", "labels.parquet"])
def test_what_came_to_the_place_of_labels_meanwhile_stays(tmp_path, predictor, name) -> None:
    out = tmp_path / name

    def ids():
        out.write_text("mine")
        yield ["x"] * ROWS

    with pytest.raises(OutputExistsError, match="exists; choose another name"):
        write_labels(predictor, source_of(clusters(1)), SerialBackend(), out, ids=RowIds("who", ids()))
    assert out.read_text() == "mine"


@pytest.mark.parametrize("name", ["labels.csv", "labels.parquet"])
def test_what_a_killed_process_left_of_a_table_goes_with_the_next(tmp_path, predictor, monkeypatch, name: str) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / name
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(label_table, "claim_file", killed)  # all is written by then
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # who is killed cleans up nothing
        write_labels(predictor, source_of(clusters(1)), SerialBackend(), out)
    assert any("partial" in path.name and path.is_file() for path in tmp_path.iterdir()) and not out.exists()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    write_labels(predictor, source_of(clusters(1)), SerialBackend(), out)
    assert out.exists() and not [path for path in tmp_path.iterdir() if "partial" in path.name]


@pytest.mark.parametrize("name", ["labels.csv", "labels.parquet"])
def test_a_table_is_on_the_disk_before_it_has_its_name(tmp_path, predictor, monkeypatch, name: str) -> None:
    out, seen = tmp_path / name, list[tuple[Path, bool]]()
    monkeypatch.setattr(os, "fsync", lambda file: seen.append((Path(f"/proc/self/fd/{file}").readlink(), out.exists())))
    write_labels(predictor, source_of(clusters(1)), SerialBackend(), out)
    assert (tmp_path / f".partial-{name}", False) in seen and (tmp_path, True) in seen


@pytest.mark.parametrize("name", ["labels.txt", "labels.npy", "labels.JSON"])
def test_labels_are_not_written_as_folders_that_are_called_like_files(tmp_path, predictor, name: str) -> None:
    with pytest.raises(InputError, match=r"labels are written as \.csv, \.tsv, \.parquet or \.zarr"):
        write_labels(predictor, source_of(clusters(1)), SerialBackend(), tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_dpdist_predict_that_is_killed_goes_on_and_says_so(tmp_path) -> None:
    rows = np.tile(clusters(1), (500, 1))
    np.save(tmp_path / "rows.npy", rows)
    for _ in mixture(max_laps=2).prepare(as_source(clusters(1)), tmp_path / "run.zarr"):
        pass
    command = [sys.executable, "-m", "dpdist", "predict", "run.zarr", "rows.npy", "--serial", "--density"]
    whole = subprocess.run([*command, "--out", "whole.zarr"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "labelled already" not in whole.stderr
    begun = subprocess.Popen([*command, "--out", "labels.zarr"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    while begun.poll() is None and not any(
        path.name.isdigit() for path in tmp_path.glob(".labels.zarr.partial-*/written/*")
    ):
        time.sleep(0.01)
    begun.kill()
    begun.wait()
    again = subprocess.run([*command, "--out", "labels.zarr"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "of 450,000 rows are labelled already; continuing" in again.stderr
    assert contents(tmp_path / "labels.zarr") == contents(tmp_path / "whole.zarr")
