"""Runs whose batch summaries go to files or back to memory, whose files find no room, or that are killed with them."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpdist
from dpdist.core.places import LocalPlace
from dpdist.execution import SerialBackend
from dpdist.inference.mixture import kept
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.mixture.engine import memo_bytes
from dpdist.inference.mixture.kept import KeptBatchSummary
from dpdist.inference.schedules import Memoized
from dpdist.runs.limits import Limits
from dpdist.runs.opening import resumed
from dpdist.runs.run import Run
from dpdist.storage.checkpoint import RunStore
from tests.runs import Elsewhere, clusters, digest, mixture, source_of

LAPS = 3
#: By name: a schedule, and when rows are looked at for candidates.
SCHEDULES = {
    "memoized": (Memoized(3), None),
    "look-ahead and candidates": (Memoized(3, lookahead=1), Candidates(every=3, components=2)),
}


def prepared(run: Path | None, name: str = "memoized", backend: Any = None, rows: np.ndarray | None = None) -> Run:
    """A fit with moves, stored after every batch."""
    schedule, candidates = SCHEDULES[name]
    given = {"initial": "k-means++", "initial_components": 3, "candidates": candidates, "max_laps": LAPS}
    source = source_of(clusters(2, rows=350) if rows is None else rows)
    fit = mixture(schedule=schedule, tolerance=0.0, **given).prepare(source, run, backend=backend or SerialBackend())
    fit.checkpoint_seconds = 0.0
    return fit


def digests(fit: Run, run: Path | None) -> list[str]:
    """Of the state after every batch."""
    return [digest(step.state, run) for step in fit]


def check_whole(run: Path) -> None:
    """Every file that commits name is there; of what no commit names, nothing is."""
    commits = [json.loads(file.read_text()) for file in (run / "commits").iterdir()]
    named = {f"{folder}/{file}" for each in commits for folder, files in each["digests"].items() for file in files}
    assert all((run / name).exists() for name in named)
    folders = {f"objects/{each.name}" for each in (run / "objects").iterdir()}
    assert folders == {name for each in commits for name in each["objects"]}


@pytest.fixture
def in_files(monkeypatch) -> None:
    """All batch summaries go to files where there is a place for them."""
    monkeypatch.setattr(kept, "MEMO_BYTES", 0)


@pytest.mark.parametrize("place", [2, 6])
@pytest.mark.parametrize("first", ["in files", "in memory"])
def test_a_run_goes_on_wherever_its_batch_summaries_were_and_will_be(tmp_path, monkeypatch, first, place) -> None:
    name, run, limits = "look-ahead and candidates", tmp_path / "run.zarr", {"in files": 0, "in memory": 2**40}
    expected = digests(prepared(None, name), None)
    monkeypatch.setattr(kept, "MEMO_BYTES", limits.pop(first))
    fit = prepared(run, name)
    next(itertools.islice(iter(fit), place, None))
    fit.close()
    monkeypatch.setattr(kept, "MEMO_BYTES", limits.popitem()[1])
    again = resumed(RunStore.open(run), fit.source, SerialBackend(), Limits(LAPS))
    assert digests(again, run) == expected[place + 1 :]
    check_whole(run)


def test_they_go_to_files_once_they_are_large(tmp_path, monkeypatch) -> None:
    expected, fit = digests(prepared(None), None), prepared(tmp_path / "run.zarr")
    monkeypatch.setattr(kept, "MEMO_BYTES", memo_bytes(fit.problem, fit.state, 350))
    kinds, found = [], []
    for step in fit:
        found.append(digest(step.state, tmp_path / "run.zarr"))
        kinds.append({type(each) for each in step.state.batch_summaries})
    assert found == expected and {BatchSummary} in kinds and {KeptBatchSummary, BatchSummary} in kinds
    check_whole(tmp_path / "run.zarr")


def test_where_workers_do_not_reach_the_run_they_stay_in_memory(tmp_path, in_files) -> None:
    run = tmp_path / "run.zarr"
    assert digests(prepared(run, backend=Elsewhere()), run) == digests(prepared(None), None)
    assert not list((run / "objects").glob("*-batches-*"))
    fit = prepared(tmp_path / "other.zarr")
    next(itertools.islice(iter(fit), 4, None))
    fit.close()
    with pytest.raises(dpdist.CheckpointError, match=r"sums of its batches in files .* workers cannot read"):
        list(resumed(RunStore.open(tmp_path / "other.zarr"), fit.source, Elsewhere(), Limits(LAPS)))


def test_a_full_disk_is_told(tmp_path, in_files, monkeypatch) -> None:
    fit, create = prepared(tmp_path / "run.zarr"), LocalPlace.create

    def full(place: LocalPlace, name: str, data: bytes) -> bool:
        if name.endswith("000001.npy"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(place, name, data)

    monkeypatch.setattr(LocalPlace, "create", full)
    with pytest.raises(dpdist.CheckpointError, match=r"No space left .*Free some space.*dpdist resume"):
        list(fit)
    monkeypatch.undo()
    run = tmp_path / "run.zarr"
    assert digests(resumed(RunStore.open(run), fit.source, SerialBackend(), Limits(LAPS)), run)


def fit_until_killed(run: str) -> None:
    """Fit with batch summaries in files, and end as by ``kill -9`` in the middle of the third lap."""
    kept.MEMO_BYTES = 0
    for count, _ in enumerate(prepared(Path(run), "look-ahead and candidates")):
        if count == 7:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_coordinator_costs_no_bit_and_leaves_nothing(tmp_path, in_files) -> None:
    name, run = "look-ahead and candidates", tmp_path / "run.zarr"
    expected = digests(prepared(None, name), None)
    child = os.fork()
    if child == 0:
        fit_until_killed(str(run))
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    state, fit = RunStore.open(run).state()[0], prepared(None, name)
    again = resumed(RunStore.open(run), fit.source, SerialBackend(), Limits(LAPS))
    assert digests(again, run) == expected[3 * (state.lap - 1) + state.visited :]
    check_whole(run)
