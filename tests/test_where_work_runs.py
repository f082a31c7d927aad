"""Small work runs in this process and large work on a cluster, which is told, unless somebody asked for one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from typer.testing import CliRunner

from dpdist.cli import foreground
from dpdist.cli import root as cli
from dpdist.data.corpora import write_corpus
from dpdist.execution import SerialBackend
from dpdist.runs.methods.topics import UPDATES
from tests.runs import clusters


def test_every_command_judges_its_own_work(tmp_path, monkeypatch) -> None:
    """What a command would run on is decided by its data, and for topics by the updates of documents."""
    zarr.create_array(tmp_path / "rows.zarr", data=clusters(0, rows=300), chunks=(100, 3))
    write_corpus(tmp_path / "corpus.zarr", [sparse.csr_array(np.eye(40, 6, dtype=np.int64))], None)
    judged: list[tuple[tuple[int, int], int]] = []

    def noted(source: Any, updates: int = 1) -> float:
        judged.append((source.shape, updates))
        return 0.0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(foreground, "lap_seconds", noted)
    rows, documents = ((300, 3), 1), ((40, 6), UPDATES)
    commands = {
        "fit rows.zarr --out run.zarr --max-laps 1": rows,
        "resume run.zarr --max-laps 2": rows,
        "predict run.zarr rows.zarr --out labels.zarr": rows,
        "sva rows.zarr --out pass.zarr": rows,
        "extend pass.zarr rows.zarr --again": rows,
        "topics corpus.zarr --out topics.zarr --max-laps 1 --initial-topics 2": documents,
        "resume topics.zarr --max-laps 2": documents,
        "predict topics.zarr corpus.zarr --out shares.zarr": documents,
    }
    for command, work in commands.items():
        done = CliRunner().invoke(cli.app, command.split())
        assert done.exit_code == 0, (command, done.output, done.exception)
        assert judged.pop() == work and not judged, command
        assert "in this process" in done.stderr


def launched(
    monkeypatch, rows: int, columns: int, cores: int = 2, sparse: bool = False, updates: int = 1, **asked: Any
) -> Any:
    """Which kind of backend is chosen for data of a shape on so many cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr("dpdist.execution.connecting.local_backend", lambda workers=None: ("local", workers))
    monkeypatch.setattr("dpdist.execution.connecting.connect", lambda address: ("connected", address))
    source: Any = SimpleNamespace(shape=(rows, columns), sparse=sparse)
    given = {"workers": None, "scheduler": None, "serial": False} | asked
    return foreground.launcher_of(**given, source=source, updates=updates)()


@pytest.fixture
def said(monkeypatch) -> Iterator[list[str]]:
    """What is told of the choice."""
    sentences: list[str] = []
    monkeypatch.setattr(foreground, "say", lambda console, sentence: sentences.append(sentence))
    yield sentences


def test_small_work_runs_in_this_process_and_large_work_on_a_cluster_and_the_choice_is_told(monkeypatch, said) -> None:
    assert isinstance(launched(monkeypatch, 5000, 36), SerialBackend)
    assert "in this process" in said[0] and "--workers 2" in said[0]
    assert launched(monkeypatch, 1_000_000, 36) == ("local", None)
    assert "cluster of 2 workers" in said[1] and "--serial" in said[1]


def test_what_was_asked_for_is_what_runs_and_nothing_is_told(monkeypatch, said) -> None:
    for rows in (10, 10**9):
        assert launched(monkeypatch, rows, 36, workers=3) == ("local", 3)
        assert launched(monkeypatch, rows, 36, scheduler="tcp://here:1") == ("connected", "tcp://here:1")
        assert isinstance(launched(monkeypatch, rows, 36, serial=True), SerialBackend)
    assert foreground.launcher_of(None, None, False)() == ("local", None)
    assert said == []


@given(st.floats(0, 1e6), st.integers(1, 256))
def test_a_cluster_pays_where_its_lap_is_the_shorter_one(seconds, cores) -> None:
    pays = foreground.cluster_pays(seconds, cores)
    assert not foreground.cluster_pays(seconds, 1) and not foreground.cluster_pays(foreground.TASK_SECONDS, cores)
    assert not pays or foreground.cluster_pays(2 * seconds, cores)
    assert not pays or foreground.cluster_pays(seconds, cores + 1)


def seconds(rows: int, columns: int, sparse: bool = False, updates: int = 1) -> float:
    """Expected of a lap."""
    source: Any = SimpleNamespace(shape=(rows, columns), sparse=sparse)
    return foreground.lap_seconds(source, updates)


def test_a_lap_is_expected_to_take_as_long_as_it_has_numbers_to_go_over() -> None:
    same = [seconds(2000, 30), 2 * seconds(1000, 30), 2 * seconds(2000, 15), seconds(2000, 30, updates=3) / 3]
    assert same == pytest.approx([same[0]] * 4)
    assert seconds(1000, 50_000, sparse=True) == seconds(1000, 10_000, sparse=True) == seconds(1000, foreground.ENTRIES)
    assert seconds(1000, 20, sparse=True) == seconds(1000, 20)
    assert 0.05 < seconds(5000, 36) < 1 and 1 < seconds(80_000, 64) < 30
