"""Whatever fails while a run writes or is read: a whole checkpoint stays, the bits are the same, damage is named."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zarr

import dpdist
from dpdist.core import lease
from dpdist.core.errors import CheckpointError
from dpdist.core.places import LocalPlace, place_of
from dpdist.core.places.objects import ObjectPlace
from dpdist.core.places.zarr_store import zarr_store
from dpdist.data import as_source
from dpdist.execution import SerialBackend
from dpdist.runs.limits import Limits
from dpdist.runs.opening import resumed
from dpdist.runs.run import Run
from dpdist.storage.checkpoint import RunStore
from dpdist.storage.commits import commit_name, commits
from tests.daemons.s3 import BUCKET, Line, environment, line_to, moto_server
from tests.runs import clusters, mixture

ROWS, LAPS = clusters(0, rows=600), 3


def prepared(rows: Any, run: Any) -> Run:
    """A fit that checkpoints after every batch."""
    fit = mixture(max_laps=LAPS, tolerance=0.0, schedule=dpdist.schedules.Memoized(3)).prepare(rows, run)
    fit.checkpoint_seconds = 0.0
    return fit


def finished(fit: Run) -> Run:
    """The fit at its end."""
    for _ in fit:
        pass
    return fit


def gone_on(rows: Any, run: Any) -> Run:
    """The fit at its end, from its last checkpoint."""
    return finished(resumed(RunStore.open(run), as_source(rows), SerialBackend(), Limits(LAPS)))


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> str:
    """Rows on disk."""
    path = tmp_path_factory.mktemp("rows") / "rows.zarr"
    zarr.create_array(path, data=ROWS, chunks=(100, 3))
    return str(path)


@pytest.fixture(scope="module")
def undisturbed(rows, tmp_path_factory) -> Path:
    """A run that nothing disturbed."""
    path = tmp_path_factory.mktemp("undisturbed") / "run.zarr"
    finished(prepared(rows, path))
    return path


def bits(run: Any) -> tuple[Any, ...]:
    """What a fit found."""
    found = RunStore.open(run).fitted()
    return found.ids.tobytes(), found.total.stats.tobytes(), found.elbo, found.stop


# Writing


class Failing:
    """Fails some of the writes of all local places: groups filled, their files written, files created.

    Parameters
    ----------
    first : how many writes succeed
    count : how many fail then
    """

    def __init__(self, monkeypatch, first: int, count: int) -> None:
        self.failed, self._number, self._range = 0, itertools.count(), range(first, first + count)
        for name in ("fill", "_put", "create"):
            monkeypatch.setattr(LocalPlace, name, self._wrapped(getattr(LocalPlace, name)))

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(place: LocalPlace, name: str, *given: Any) -> Any:
            if not name.startswith(lease.FOLDER) and next(self._number) in self._range:
                self.failed += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(place, name, *given)

        return wrapped


@pytest.mark.parametrize("count", [1, 1000])
def test_a_write_that_fails_at_any_moment_leaves_a_whole_checkpoint(
    rows, undisturbed, tmp_path, monkeypatch, count
) -> None:
    begun = tmp_path / "begun.zarr"
    for step in prepared(rows, begun):
        if step.info is not None:
            break
    at_lap_end = RunStore.open(begun).number
    for turn, first in enumerate(range(0, 60, 14 if count == 1 else 25)):
        run = tmp_path / f"{first}.zarr"
        shutil.copytree(begun, run)
        fit = resumed(RunStore.open(run), as_source(rows), SerialBackend(), Limits(LAPS))
        fit.checkpoint_seconds = 0.0
        with monkeypatch.context() as patch:
            failing = Failing(patch, first, count)
            with contextlib.suppress(CheckpointError):
                finished(fit)
                assert not failing.failed, "a write failed and nobody was told"
        RunStore.open(run).state()
        assert RunStore.open(run).number >= at_lap_end
        if failing.failed == 0:
            break
        if turn % 2 == 0:
            assert gone_on(rows, run).store.number and bits(run) == bits(undisturbed)
        shutil.rmtree(run)
    assert first > 20


def test_a_run_that_a_failed_write_ended_writes_no_more(rows, tmp_path, monkeypatch) -> None:
    """Whoever waits for the run's end may take it over at once, though a write waited behind the one that failed."""
    fit, put, begun, under_way = prepared(rows, tmp_path / "run.zarr"), LocalPlace._put, [], set()

    def slow(place: LocalPlace, folder: str, parts: Any) -> None:
        begun.append(folder)
        under_way.add(folder)
        time.sleep(0.3)
        under_way.remove(folder)
        if folder.startswith("generations/"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(place, folder, parts)

    monkeypatch.setattr(LocalPlace, "_put", slow)
    with pytest.raises(CheckpointError):
        finished(fit)
    assert not under_way
    before = list(begun)
    fit._writer.shutdown(wait=True)
    assert begun == before


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_a_commit_that_was_made_is_whole_though_its_maker_never_heard_of_it(
    rows, undisturbed, tmp_path, monkeypatch, failure
) -> None:
    run = tmp_path / "run.zarr"
    fit = prepared(rows, run)
    create, made = LocalPlace.create, []

    def unheard(place: LocalPlace, name: str, data: bytes) -> bool:
        done = create(place, name, data)
        if name == commit_name(4):
            made.append(name)
            raise failure
        return done

    monkeypatch.setattr(LocalPlace, "create", unheard)
    with pytest.raises((failure, CheckpointError)):
        finished(fit)
    monkeypatch.undo()
    assert made and RunStore.open(run).number >= 4
    RunStore.open(run).state()
    gone_on(rows, run)
    assert bits(run) == bits(undisturbed)


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """Something mounted on a folder; the test is skipped where that is not permitted."""
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_target_that_cannot_be_written_to_is_named_and_can_still_be_read(rows, undisturbed, tmp_path) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir()
    shutil.copytree(undisturbed, folder / "run.zarr")
    with mounted(folder, "--bind", str(folder)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True, capture_output=True)
        with pytest.raises(CheckpointError, match=r"could not be written to .*new\.zarr \(Read-only file system\)"):
            prepared(rows, folder / "new.zarr")
        with pytest.raises(CheckpointError, match=r"could not be written to .*run\.zarr \(Read-only file system\)"):
            gone_on(rows, folder / "run.zarr")
        assert bits(folder / "run.zarr") == bits(undisturbed)
        assert dpdist.load(folder / "run.zarr").elbo_ == bits(undisturbed)[2]


def test_a_path_below_a_file_is_refused(rows, tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="should be the folder of a run or model; it is a file, or in one"):
        prepared(rows, tmp_path / "file" / "run.zarr")


# An object store that is gone


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """The settings that lead to a server that holds the rows."""
    with moto_server() as settings, environment(settings):
        zarr.create_array(zarr_store(f"s3://{BUCKET}/rows.zarr", read_only=False), data=ROWS, chunks=(100, 3))
        yield settings


@contextlib.contextmanager
def behind_a_line(server: dict[str, str]) -> Iterator[Line]:
    """A line to the server; the environment leads over it."""
    with line_to(server) as (line, settings), environment(settings):
        yield line


def test_a_store_that_is_gone_for_a_while_costs_nothing(server, undisturbed, monkeypatch) -> None:
    run, made, commit = f"s3://{BUCKET}/while/run.zarr", [], RunStore._commit

    def noted(store: RunStore, number: int, attributes: dict[str, Any]) -> None:
        commit(store, number, attributes)
        made.append(store.number)

    monkeypatch.setattr(RunStore, "_commit", noted)
    with behind_a_line(server) as line:
        fit, timers = prepared(f"s3://{BUCKET}/rows.zarr", run), []
        for count, _ in enumerate(fit):
            if count in (1, 5):
                line.cut = True
                timers.append(threading.Timer(0.5, setattr, (line, "cut", False)))
                timers[-1].start()
        for timer in timers:
            timer.join()
        assert bits(run) == bits(undisturbed)
    assert made == list(range(1, len(made) + 1)) and len(timers) == 2


def test_a_store_that_stays_away_ends_the_run_with_a_sentence_and_the_run_goes_on_later(
    server, undisturbed, monkeypatch
) -> None:
    rows, run = f"s3://{BUCKET}/rows.zarr", f"s3://{BUCKET}/away/run.zarr"
    monkeypatch.setattr("dpdist.core.places.zarr_store.PATIENCE", 0.3)
    monkeypatch.setattr(ObjectPlace.__init__, "__defaults__", (0.3,))
    monkeypatch.setattr(lease, "FAREWELL", 0.5)
    with behind_a_line(server) as line:
        fit = prepared(rows, run)
        with pytest.raises(dpdist.core.errors.DpdistError, match=r"did not answer.*(AWS_ENDPOINT_URL|dpdist resume)"):
            for count, _ in enumerate(fit):
                line.cut = line.cut or count == 4
        line.cut = False
        before = RunStore.open(run).number
        assert before >= 2
        RunStore.open(run).state()
        gone_on(rows, run)
    assert RunStore.open(run).number > before and bits(run) == bits(undisturbed)


# Damage on disk


@pytest.fixture
def damaged(undisturbed, tmp_path) -> Path:
    """A run to be damaged."""
    shutil.copytree(undisturbed, tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


@pytest.mark.parametrize("content", [b"", b'{"format": 2, "me', b"null", b"{}"])
def test_a_damaged_commit_is_named_and_without_it_the_one_before_goes_on(rows, undisturbed, damaged, content) -> None:
    last = commits(place_of(damaged))[-1]
    file = damaged / commit_name(last)
    file.write_bytes(content)
    for call in (lambda: dpdist.load(damaged), lambda: gone_on(rows, damaged)):
        with pytest.raises(
            CheckpointError, match=rf"{file} is damaged; .* remove it to continue from the previous checkpoint"
        ):
            call()
    file.unlink()
    assert RunStore.open(damaged).number == last - 1
    gone_on(rows, damaged)
    assert bits(damaged) == bits(undisturbed)


def test_a_damaged_commit_that_is_not_the_last_is_told_to_writers_alone(rows, undisturbed, damaged) -> None:
    before = damaged / commit_name(commits(place_of(damaged))[-2])
    before.write_bytes(json.dumps({})[:1].encode())
    assert dpdist.load(damaged).elbo_ == bits(undisturbed)[2]
    with pytest.raises(CheckpointError, match=f"{before} is damaged"):
        RunStore.open(damaged).lock()
