"""Every backend means what the serial one means, to the bit."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import threading
import time
import uuid
import warnings
from functools import cache
from pathlib import Path

import dask.array as da
import dask.bag as db
import numpy as np
import pytest
import xarray as xr
import zarr
from dask.tokenize import tokenize
from distributed import Client, LocalCluster, Scheduler
from distributed.client import AllExit

import dpdist
from dpdist.core.errors import InputError
from dpdist.data import ArraySource, as_source
from dpdist.data.convert import convert
from dpdist.estimators.fitted import default_backend
from dpdist.execution import SerialBackend
from dpdist.execution.base import add_pairwise
from dpdist.execution.connecting import local_backend
from dpdist.execution.tasks import Sent
from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.mixture.engine import steps
from dpdist.inference.moves import pairs as pair_module
from dpdist.inference.schedules import Memoized
from dpdist.runs.labelling import write_labels
from tests.runs import ALL_MOVES, begun, clusters, digest, mixture, stored_clusters
from tests.test_pairs import Counting, overlapping, screened_gains


@pytest.fixture(scope="module", params=[1, 2, 3])
def dask_backend(request):
    """A local cluster of one, two or three worker processes."""
    backend = local_backend(request.param, memory_limit="1GB")
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def rows_path(tmp_path_factory) -> str:
    return stored_clusters(tmp_path_factory.mktemp("rows"))


def run(path: str, backend, laps: int = 6, lookahead: int = 0):
    """The state after some laps."""
    source = as_source(path)
    candidates = Candidates(every=3, components=2) if lookahead else None
    problem, state = begun(mixture(schedule=Memoized(5, lookahead), candidates=candidates, moves=ALL_MOVES), source)
    for step in steps(problem, source, state, backend):
        state = step.state
        if state.lap > laps:
            break
    return state


@pytest.fixture(scope="module")
def serial_digest(rows_path):
    """The digest of the same laps in this process, by look-ahead."""
    return cache(lambda lookahead: digest(run(rows_path, SerialBackend(), lookahead=lookahead)))


@pytest.mark.parametrize(
    ("dask_backend", "lookahead"),
    [(1, 0), (2, 1), (3, 4), *(pytest.param(2, ahead, marks=pytest.mark.slow) for ahead in (0, 4))],
    indirect=["dask_backend"],
)
def test_dask_gives_the_bits_of_serial(dask_backend, rows_path, serial_digest, lookahead) -> None:
    assert digest(run(rows_path, dask_backend, lookahead=lookahead)) == serial_digest(lookahead)


def test_in_memory_rows_run_on_an_active_client_to_the_same_bits(dask_backend) -> None:
    rows = clusters(1, rows=2500)
    serial = mixture(max_laps=6)
    for _ in serial.iter_fit(rows, backend=SerialBackend()):
        pass
    with dask_backend.client.as_current():
        distributed = mixture(max_laps=6).fit(rows)
        labels = distributed.predict(rows)
    assert serial.elbo_ == distributed.elbo_
    np.testing.assert_array_equal(serial.predict(rows), labels)


def test_a_client_has_one_backend_for_as_long_as_it_is_used(dask_backend) -> None:
    model = mixture(max_laps=1).fit(clusters(1, rows=50))
    with dask_backend.client.as_current():
        backend, topics = default_backend(), len(dask_backend.client._event_handlers)
        for _ in range(3):
            model.predict(clusters(1, rows=50))
        assert default_backend() is backend and len(dask_backend.client._event_handlers) == topics
    with Client(dask_backend.client.cluster, set_as_default=False) as other, other.as_current():
        assert default_backend() is not backend
    assert isinstance(default_backend(), SerialBackend)


@pytest.fixture(scope="module")
def blocks() -> tuple[np.ndarray, dpdist.DPMixture]:
    """Rows, and a fit of them in five partitions in this process."""
    rows = clusters(1, rows=1500)
    return rows, fitted(ArraySource(rows, partition_rows=300), SerialBackend())


ARRAYS = {
    "held here": lambda rows: da.from_array(rows, chunks=(300, 3)),
    "persisted": lambda rows: (da.from_array(rows, chunks=(300, 3)) - 0).persist(),
    "persisted in columns": lambda rows: da.from_array(rows, chunks=(300, 2)).persist(),
    "computed from persisted": lambda rows: 2 * (da.from_array(rows / 2, chunks=(300, 3)) - 0).persist(),
    "in xarray": lambda rows: xr.DataArray(da.from_array(rows, chunks=(300, 3)).persist()),
    "not persisted": lambda rows: da.from_array(rows, chunks=(300, 3)) - 0,
}


@pytest.mark.filterwarnings("ignore:the dask.array is not persisted:UserWarning")
@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("dask_backend", [2], indirect=True)
def test_a_dask_array_is_fitted_like_the_same_rows_wherever_its_blocks_are(dask_backend, blocks, kind) -> None:
    rows, serial = blocks
    with dask_backend.client.as_current():
        array = ARRAYS[kind](rows)
        distributed = fitted(array, None)
        labels = np.asarray(distributed.predict(array))  # on the cluster, which holds its blocks
        here = fitted(array, SerialBackend())
    assert serial.elbo_ == distributed.elbo_ == here.elbo_
    np.testing.assert_array_equal(serial.predict(rows), labels)


@pytest.mark.parametrize("dask_backend", [2], indirect=True)
def test_a_run_on_rows_that_a_cluster_holds_is_resumed_where_they_are(dask_backend, blocks, tmp_path) -> None:
    rows, whole = blocks
    with dask_backend.client.as_current():
        array = da.from_array(rows, chunks=(300, 3)).persist()
        for _, info in mixture(max_laps=4).iter_fit(array, checkpoint_path=tmp_path / "run.zarr"):
            if info.lap == 2:
                break
        assert dpdist.resume(tmp_path / "run.zarr", array).elbo_ == whole.elbo_
        with pytest.raises(dpdist.CheckpointError, match="data changed"):
            dpdist.resume(tmp_path / "run.zarr", (array + 1.0).persist(), max_laps=6)


def fitted(data, backend):
    """A mixture after a few laps on some backend."""
    model = mixture(max_laps=4)
    for _ in model.iter_fit(data, backend=backend):
        pass
    return model


@pytest.mark.parametrize("dask_backend", [2], indirect=True)
def test_blocks_that_a_cluster_holds_are_not_computed_again_nor_brought_here(dask_backend, tmp_path) -> None:
    def counted(block: np.ndarray, folder: str) -> np.ndarray:
        Path(folder, uuid.uuid4().hex).touch()
        return block

    rows = clusters(2, rows=1500)
    with dask_backend.client.as_current():
        array = da.from_array(rows, chunks=(300, 3)).map_blocks(counted, str(tmp_path), meta=rows[:0]).persist()
        source = as_source(array)
        assert not any(len(pickle.dumps(each.completion)) > 2000 for each in source.partitions)
        assert fitted(source, dask_backend).predict(array).shape == (1500,)
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("dask_backend", [2], indirect=True)
def test_a_persisted_stream_is_read(dask_backend) -> None:
    rows = clusters(3, rows=600)
    with dask_backend.client.as_current():
        bag = db.from_sequence([rows[:300], rows[300:]], npartitions=2).persist()
        found = dpdist.SVA(random_state=0).fit(bag)
    expected = dpdist.SVA(random_state=0).fit(iter([rows[:300], rows[300:]]))
    np.testing.assert_array_equal(found.predict_proba(rows), expected.predict_proba(rows))


@pytest.mark.parametrize("dask_backend", [2], indirect=True)
def test_rows_that_another_cluster_holds_are_refused_in_a_sentence(dask_backend) -> None:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as other,
    ):
        array = other.persist(da.ones((20, 2), chunks=(5, 2)))
        with pytest.raises(
            InputError, match=r"persisted on the Dask cluster at .*Pass the data that were not persisted"
        ):
            fitted(array, dask_backend)


def test_rows_that_went_with_their_cluster_are_told_whoever_asks() -> None:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        array = client.persist(da.from_array(clusters(0, rows=60), chunks=(30, -1)))
        bag = client.persist(db.from_sequence([clusters(0, rows=60)]))
        with client.as_current():
            model = mixture(max_laps=1).fit(array)
    asked = [
        lambda: model.labels_,
        model.tree,
        lambda: model.predict(array),
        lambda: mixture(max_laps=1).fit(array),
        lambda: dpdist.SVA().fit(bag),
    ]
    for ask in asked:
        with pytest.raises(InputError, match="persisted on a Dask cluster that ended"):
            ask()


@pytest.mark.parametrize("dask_backend", [2], indirect=True)
def test_a_failure_to_compute_blocks_is_told_as_it_is(dask_backend) -> None:
    def broken(block: np.ndarray) -> np.ndarray:
        raise KeyError("no such file")

    with dask_backend.client.as_current():
        array = da.ones((20, 2), chunks=(5, 2)).map_blocks(broken, meta=np.ones((0, 0))).persist()
        with pytest.raises(KeyError, match="no such file"):
            fitted(array, dask_backend)


def test_backends_share_map_and_sum_alike(dask_backend) -> None:
    for backend in (SerialBackend(), dask_backend):
        shared = backend.share(np.arange(3.0))
        refs = backend.map(_scaled, [shared] * 20, range(20))
        total = backend.fetch([backend.sum(refs)])[0]
        np.testing.assert_array_equal(total, 190 * np.arange(3.0))
        nested = backend.map(add_pairwise, [refs[:2]])
        np.testing.assert_array_equal(backend.fetch(nested)[0], np.arange(3.0))
        assert backend.fetch(backend.map(_scaled, [], [])) == []


def _scaled(array: np.ndarray, factor: int) -> np.ndarray:
    return factor * array


def test_calls_that_need_the_same_large_value_are_spread_over_all_workers(dask_backend) -> None:
    workers, spread = dask_backend.threads, 0
    for _ in range(6):
        shared = dask_backend.share(np.zeros(10_000))
        spread += len(set(dask_backend.fetch(dask_backend.map(_process, [shared] * 2 * workers)))) == workers
    assert spread >= 5  # calls may be stolen from a worker that is kept from beginning


def test_a_call_goes_where_the_large_value_is_that_it_alone_needs(dask_backend) -> None:
    made = dask_backend.map(_process_and_numbers, range(6))
    dask_backend.fetch(made)
    found = dask_backend.fetch(dask_backend.map(_processes, [made[i] for i in (1, 0, 3, 2, 5, 4)]))
    assert all(there == here for there, here in found)


def test_what_started_earlier_is_worked_at_earlier(dask_backend) -> None:
    """A batch that is looked ahead to must not keep the one before it from ending."""
    calls = [dask_backend.map(_scaled, [np.zeros(2)] * 5, range(5)) for _ in range(4)]  # at once, one after the other
    dask_backend.fetch([ref for refs in calls for ref in refs])  # by then the scheduler knows them
    turns = dask_backend.client.run_on_scheduler(_turns)
    of_calls = [[turns[str(ref.future.key)] for ref in refs] for refs in calls]
    assert all(max(earlier) < min(later) for earlier, later in itertools.pairwise(of_calls))


def test_fits_within_tasks_leave_their_threads_to_their_own_tasks(dask_backend) -> None:
    fits = dask_backend.client.map(_fitted_in_a_task, range(dask_backend.threads), pure=False)
    assert {fit.result(timeout=60) for fit in fits} == {mixture(max_laps=1).fit(clusters(0)).elbo_}


def _fitted_in_a_task(_: int) -> float:
    with warnings.catch_warnings(action="ignore"):
        return mixture(max_laps=1).fit(clusters(0)).elbo_


def test_what_is_sent_is_known_by_its_name_and_not_digested() -> None:
    assert tokenize(Sent("call", b"one")) == tokenize(Sent("call", b"other")) != tokenize(Sent("another", b"one"))


def _turns(dask_scheduler: Scheduler) -> dict[str, tuple[float, ...]]:
    return {str(task.key): task.priority for task in dask_scheduler.tasks.values()}


def _process(_: np.ndarray) -> int:
    time.sleep(0.02)  # so short that most are done before Dask looks for whom to steal from
    return os.getpid()


def _process_and_numbers(_: int) -> tuple[int, np.ndarray]:
    time.sleep(0.1)
    return os.getpid(), np.zeros(2_000_000)


def _processes(made: tuple[int, np.ndarray]) -> tuple[int, int]:
    return made[0], os.getpid()


def test_sums_have_one_shape_whatever_the_backend() -> None:
    values = [10.0**k for k in range(-8, 9)] * 3
    backend = SerialBackend()
    level = [add_pairwise(values[i : i + 8]) for i in range(0, len(values), 8)]
    assert backend.fetch([backend.sum(values)])[0] == add_pairwise(level)


def test_memory_is_released_each_batch(dask_backend, rows_path) -> None:
    run(rows_path, dask_backend, laps=3)
    held = dask_backend.client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
    source = as_source(rows_path)
    problem, state = begun(mixture(schedule=Memoized(5)), source)
    partitions = len(source.partitions)
    for step in steps(problem, source, state, dask_backend):
        now = dask_backend.client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
        assert now <= held + 2 * partitions + 20
        if step.state.lap > 3:
            break


def test_workers_convert_to_the_bytes_of_one_process(dask_backend, tmp_path) -> None:
    rows = clusters(2)
    for part in range(3):
        np.savetxt(tmp_path / f"{part}.csv", rows[part * 300 : (part + 1) * 300], delimiter=",", header="a,b,c")
    found, meant = tmp_path / "dask.zarr", tmp_path / "serial.zarr"
    convert(f"{tmp_path}/*.csv", found, backend=dask_backend)
    convert(f"{tmp_path}/*.csv", meant)
    files = {path.relative_to(meant): path.read_bytes() for path in meant.rglob("*") if path.is_file()}
    assert {path.relative_to(found): path.read_bytes() for path in found.rglob("*") if path.is_file()} == files
    np.testing.assert_allclose(zarr.open_array(found, mode="r")[:], rows)
    (tmp_path / "bad.csv").write_text("a\n1\nx\n")
    with pytest.raises(InputError, match="column 'a' of"):
        convert(tmp_path / "bad.csv", tmp_path / "bad.zarr", backend=dask_backend)
    assert not list(tmp_path.glob(".bad*"))


def test_workers_write_the_labels_that_one_process_writes(dask_backend, rows_path, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dpdist.runs.label_blocks.TOGETHER", 3)
    monkeypatch.setattr("dpdist.runs.label_blocks.BLOCK_ROWS", 1024)
    predictor, source = mixture(max_laps=2).fit(rows_path)._predictor, as_source(rows_path)
    found, meant = tmp_path / "dask.zarr", tmp_path / "serial.zarr"
    write_labels(predictor, source, dask_backend, found, top=2, density=True)
    write_labels(predictor, source, SerialBackend(), meant, top=2, density=True)
    files = {path.relative_to(meant): path.read_bytes() for path in meant.rglob("*") if path.is_file()}
    assert {path.relative_to(found): path.read_bytes() for path in found.rglob("*") if path.is_file()} == files
    group, whole = (
        zarr.open_group(meant, mode="r"),
        [predictor.predictions(part, 2, True) for part in source.partitions],
    )
    assert group["label"].chunks == (1024,) and group["label"].nchunks == 6
    for name in whole[0]:
        np.testing.assert_array_equal(group[name][:], np.concatenate([part[name] for part in whole]))


def test_likely_pairs_are_found_in_parts_that_know_nothing_of_workers(dask_backend, monkeypatch) -> None:
    model, total = overlapping(90)
    monkeypatch.setattr(pair_module, "_CHUNK", 200 * total.stats.shape[1])
    backend = Counting()
    here = screened_gains(model, total, backend)
    assert backend.calls > 3, "several tasks"
    np.testing.assert_array_equal(screened_gains(model, total, dask_backend), here)


def test_an_asynchronous_client_is_refused() -> None:
    async def fit() -> None:
        async with (
            LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0", asynchronous=True) as cluster,
            Client(cluster, asynchronous=True),
        ):
            mixture().fit(clusters(0))

    told = r"got an asynchronous one\. Use Client\(address\) in another thread.* or iter_fit\(x, backend="
    with pytest.raises(dpdist.InputError, match=told):
        asyncio.run(fit())


def test_waits_that_end_each_other_are_told_to_nobody_and_all_else_is(dask_backend, caplog) -> None:
    loop = dask_backend.client.loop.asyncio_loop
    for error in (AllExit(), ValueError("lost")):
        done = threading.Event()
        loop.call_soon_threadsafe(loop.call_exception_handler, {"message": "never retrieved", "exception": error})
        loop.call_soon_threadsafe(done.set)
        assert done.wait(10)
    assert [str(record.exc_info[1]) for record in caplog.records if record.name == "asyncio"] == ["lost"]
