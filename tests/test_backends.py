"""Every backend means what the serial one means, to the bit."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster

from dpdist.backends import SerialBackend
from dpdist.backends.base import add_pairwise
from dpdist.backends.dask import DaskBackend, local_backend
from dpdist.engine import steps
from dpdist.schedules import Memoized
from dpdist.sources import as_source
from tests.runs import begun, clusters, digest, mixture


@pytest.fixture(scope="module", params=[1, 2, 3])
def dask_backend(request):
    """A local cluster of one, two or three worker processes."""
    backend = local_backend(request.param, memory_limit="1GB")
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def rows_path(tmp_path_factory) -> str:
    """Rows on disk, in twelve partitions."""
    path = tmp_path_factory.mktemp("rows") / "rows.zarr"
    rows = clusters(0, rows=6000, columns=4, groups=6)
    array = zarr.create_array(path, shape=rows.shape, dtype="float64", chunks=(512, 4))
    array[...] = rows
    return str(path)


def run(path: str, backend, laps: int = 6, lookahead: int = 0):
    """The state after some laps."""
    source = as_source(path)
    problem, state = begun(mixture(schedule=Memoized(5, lookahead)), source)
    for step in steps(problem, source, state, backend):
        state = step.state
        if state.lap > laps:
            break
    return state


@pytest.mark.parametrize("lookahead", [0, 1])
def test_dask_gives_the_bits_of_serial(dask_backend, rows_path, lookahead) -> None:
    assert digest(run(rows_path, dask_backend, lookahead=lookahead)) == digest(
        run(rows_path, SerialBackend(), lookahead=lookahead)
    )


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


def test_backends_share_map_and_sum_alike(dask_backend) -> None:
    for backend in (SerialBackend(), dask_backend):
        shared = backend.share(np.arange(3.0))
        refs = backend.map(_scaled, [shared] * 20, range(20))
        total = backend.fetch([backend.sum(refs)])[0]
        np.testing.assert_array_equal(total, 190 * np.arange(3.0))
        nested = backend.map(add_pairwise, [refs[:2]])
        np.testing.assert_array_equal(backend.fetch(nested)[0], np.arange(3.0))


def _scaled(array: np.ndarray, factor: int) -> np.ndarray:
    return factor * array


def test_sums_have_one_shape_whatever_the_backend() -> None:
    values = [10.0**k for k in range(-8, 9)] * 3
    backend = SerialBackend()
    level = [add_pairwise(values[i : i + 8]) for i in range(0, len(values), 8)]
    assert backend.fetch([backend.sum(values)])[0] == add_pairwise(level)


def test_memory_is_released_each_wave(dask_backend, rows_path) -> None:
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


def test_killed_workers_change_nothing(rows_path) -> None:
    expected = digest(run(rows_path, SerialBackend()))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1") as cluster,
        Client(cluster) as client,
    ):
        source = as_source(rows_path)
        problem, state = begun(mixture(schedule=Memoized(5)), source)
        for count, step in enumerate(steps(problem, source, state, DaskBackend(client))):
            state = step.state
            if count in (3, 11):
                victims = client.run(os.getpid)
                os.kill(next(iter(victims.values())), signal.SIGKILL)
            if state.lap > 6:
                break
    assert digest(state) == expected
