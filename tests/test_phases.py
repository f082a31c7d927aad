"""Where the seconds of a run go: what a thread counts, what comes back from workers, what a run keeps of it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from distributed import Client

from dpdist.core.phases import Phase, add, phase, present, since, spent
from dpdist.execution.dask import DaskBackend
from dpdist.runs.run import Run
from dpdist.storage.history import UNTIMED, LapTimes
from tests.runs import clusters, mixture, source_of


def nap(seconds: float) -> float:
    """How long it took to sleep so long."""
    began = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - began


def test_time_within_an_inner_phase_is_not_the_outer_ones(monkeypatch) -> None:
    clock = iter([10.0, 11.0, 14.0, 19.0, 100.0, 200.0])
    before = spent()
    monkeypatch.setattr("dpdist.core.phases.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    with phase(Phase.LOCAL_STEP), phase(None), phase(Phase.LOAD):
        pass
    found = since(before)
    assert present() is None
    assert (found[Phase.LOAD], found[Phase.LOCAL_STEP]) == (pytest.approx(3.0), pytest.approx(1.0 + 5.0))


def test_what_raises_leaves_its_phase() -> None:
    with pytest.raises(ZeroDivisionError), phase(Phase.MOVES):
        _ = 1 / 0
    assert present() is None


def test_each_thread_has_an_account_of_its_own() -> None:
    before = spent()

    def other() -> None:
        assert present() is None
        add({Phase.LOAD: 7.0})

    with phase(Phase.MOVES):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert Phase.LOAD not in since(before) or since(before)[Phase.LOAD] < 1


def test_workers_seconds_are_counted_once_to_the_phase_that_asked() -> None:
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as client:
        backend = DaskBackend(client)
        before = spent()
        with phase(Phase.LOCAL_STEP):
            naps = backend.map(nap, [0.1] * 4)
            total = backend.sum(naps)
        took = backend.fetch([total])[0]
        with phase(Phase.MOVES):
            again = backend.map(nap, naps)  # works on what was counted already
        more = sum(backend.fetch(again))
        found = since(before)
    assert found[Phase.LOCAL_STEP] >= took and found[Phase.MOVES] >= more
    assert found[Phase.WORKERS] >= took + more and found[Phase.WAITING] > 0


def test_sending_is_waiting_whatever_it_is_for(monkeypatch) -> None:
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as client:
        backend, sent = DaskBackend(client), client.get

        def slow(*given, **more):
            time.sleep(0.2)
            return sent(*given, **more)

        monkeypatch.setattr(client, "get", slow)
        before = spent()
        with phase(Phase.GLOBAL_STEP):
            backend.share(np.zeros(100_000))
        found = since(before)
    assert found[Phase.WAITING] >= 0.2 > found.get(Phase.GLOBAL_STEP, 0.0)


def run_of(rows: np.ndarray, path: object = None) -> Run:
    run = mixture(max_laps=3).prepare(source_of(rows), path)
    run.checkpoint_seconds = 0.0
    for _ in run:
        pass
    return run


def test_phases_of_a_lap_are_what_the_lap_took() -> None:
    run = run_of(clusters(0))
    for lap, times in zip(run.history.laps, run.history.times, strict=True):
        here = [times.load, times.local_step, times.sums, times.global_step, times.moves]
        assert all(seconds > 0 for seconds in here)
        assert sum(here) < lap.seconds
        assert times[5:] == (0.0, 0.0, 0.0, 0.0, 0)  # neither held-out rows, nor checkpoints, nor workers


def test_times_are_stored_and_told_with_their_units(tmp_path) -> None:
    run = run_of(clusters(0), tmp_path / "run.zarr")
    assert run.store is not None
    stored = run.store.history()
    assert stored.times == run.history.times != [UNTIMED] * 3
    assert sum(times.checkpoint for times in stored.times) > 0
    told = stored.dataset()
    assert told["local_step_seconds"].values.tolist() == [times.local_step for times in stored.times]
    assert {told[name].attrs["units"] for name in told if str(name).endswith("_seconds")} == {"s"}
    assert len(stored.before(3).times) == 2


def test_every_phase_has_a_column() -> None:
    assert set(Phase) <= set(LapTimes._fields)
