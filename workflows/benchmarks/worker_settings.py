"""Effect of the shipped worker settings, each compared with Dask's or Zarr's own: reads in a worker, and time per task.

Reads: one task reads every partition of a float32 array on disk, warm, for several malloc thresholds and Zarr settings.
Tasks: trivial tasks are mapped and summed, for several values of worker-saturation. Every line has its own cluster; the
variables are set in this process before it starts, which is the only way that Dask never overrides.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import dask
import numpy as np
from common import options, print_table, store_rows
from distributed import Client, LocalCluster

from dpdist.data import as_source
from dpdist.data.base import Partition
from dpdist.execution.dask import DaskBackend
from dpdist.execution.settings import WORKER_ENVIRONMENT, WORKER_SETTINGS, environment

DASK_MALLOC = {"MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_MMAP_THRESHOLD_": "131072"}
ZARR = {"ZARR_ASYNC__CONCURRENCY": "10", "ZARR_THREADING__MAX_WORKERS": "4"}
ENVIRONMENTS = {
    "shipped": WORKER_ENVIRONMENT,
    "Dask's malloc": {**WORKER_ENVIRONMENT, **DASK_MALLOC},
    "Zarr's own": {**WORKER_ENVIRONMENT, **ZARR},
}
SATURATIONS = [1.0, 2.0, 4.0]


def cluster(settings: dict, workers: int) -> LocalCluster:
    """A cluster of single-threaded workers under the settings."""
    with dask.config.set({**WORKER_SETTINGS, **settings}):
        return LocalCluster(n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0")


def read(partitions: list[Partition]) -> list[float]:
    """Megabytes a second of each of three readings of all partitions after one that is not counted, in a worker."""
    speeds = []
    for _ in range(4):
        began, size = time.perf_counter(), 0
        for partition in partitions:
            size += partition.load()[0].nbytes
        speeds.append(size / 2**20 / (time.perf_counter() - began))
    return speeds[1:]


def zarr_settings() -> tuple[int, int | None]:
    """What Zarr goes by in a worker."""
    import zarr

    return zarr.config.get("async.concurrency"), zarr.config.get("threading.max_workers")


def _call(function: Callable, arguments: list) -> object:
    return function(*arguments)


def nothing(number: int) -> float:
    """A task without work."""
    return float(number)


def reads(path: str) -> list[list[str]]:
    """A line for each environment."""
    lines = []
    for name, variables in ENVIRONMENTS.items():
        with environment(variables), cluster({}, 1) as started, Client(started) as client:
            backend = DaskBackend(client)
            speeds, found = backend.fetch(backend.map(_call, [read, zarr_settings], [[as_source(path).partitions], []]))
        lines.append([name, str(found), f"{np.median(speeds):.0f}"])
    return lines


def tasks(count: int) -> list[list[str]]:
    """A line for each saturation."""
    lines = []
    for saturation in SATURATIONS:
        with (
            environment(WORKER_ENVIRONMENT),
            cluster({"distributed.scheduler.worker-saturation": saturation}, 2) as started,
            Client(started) as client,
        ):
            backend, seconds = DaskBackend(client), []
            for _ in range(3):
                began = time.perf_counter()
                backend.fetch([backend.sum(backend.map(nothing, range(count)))])
                seconds.append(time.perf_counter() - began)
        lines.append([str(saturation), f"{1000 * min(seconds) / count:.2f}"])
    return lines


def main() -> None:
    """Measure and print two tables."""
    given = options(__doc__).parse_args()
    rows, count = (20_000, 60) if given.small else (2_000_000, 2000)
    given.out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    blocks = (rng.standard_normal((min(rows, 65_536), 128), dtype=np.float32) for _ in range(-(-rows // 65_536)))
    kept = -(-rows // 65_536) * min(rows, 65_536)
    path = store_rows(given.out / f"settings-{kept}.zarr", (kept, 128), "float32", blocks, min(rows, 65_536))
    print_table(["environment", "zarr", "read (MB/s)"], reads(path))
    print_table(["worker-saturation", "ms a task"], tasks(count))


if __name__ == "__main__":
    main()
