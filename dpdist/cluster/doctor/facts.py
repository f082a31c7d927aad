"""What scheduler and workers say of themselves, gathered without judging it.

Functions that run elsewhere are made here by other functions, so that they are sent as code, not by name: they work
where another dpdist, or none, is installed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpdist.core.versions import VERSIONED
from dpdist.execution.settings import WORKER_ENVIRONMENT

#: Packages whose versions are compared beside those on which bits depend.
OTHERS = ("dask", "distributed", "zarr")


@dataclass(frozen=True)
class Member:
    """A worker as the scheduler knows it; `memory_limit` in bytes, 0 for none."""

    address: str
    host: str
    threads: int
    memory_limit: int
    folder: str


@dataclass(frozen=True)
class Process:
    """A worker process as it sees itself.

    Parameters
    ----------
    host : name of its machine
    processor : kind and instruction sets of the processor, and for which kind BLAS is compiled
    blas_threads : largest number of threads of the BLAS libraries
    environment : variables it began with, of those that dpdist ships
    zarr_threads : chunks read at once, and threads to decode them
    memory, disk_free : of the machine, and where the worker spills, in bytes
    """

    host: str
    processor: str
    blas_threads: int
    environment: Mapping[str, str]
    zarr_threads: tuple[int, int]
    memory: int
    disk_free: int


@dataclass(frozen=True)
class Listening:
    """Where a process's pages can be reached, and by how many seconds at least its clock differs from this one's."""

    pages: str
    clock: float


@dataclass(frozen=True)
class SchedulerFacts:
    """What the scheduler says of itself."""

    saturation: float
    allowed_failures: int
    listening: Listening


Versions = dict[str, dict[str, str | None]]


def members(client: Any) -> list[Member]:
    """The workers that the scheduler knows."""
    return [
        Member(address, each["host"], each["nthreads"], int(each["memory_limit"] or 0), each["local_directory"])
        for address, each in sorted(client.scheduler_info(n_workers=-1)["workers"].items())
    ]


def versions_everywhere(client: Any) -> Versions:
    """Package -> version by process: ``client``, ``scheduler``, and addresses; None where it is not installed."""
    wanted = (*VERSIONED, *OTHERS)
    told = client.get_versions(packages=wanted)
    return {
        name: {**{package: each["packages"].get(package) for package in wanted}, "python": _minor(each["packages"])}
        for name, each in {"client": told["client"], "scheduler": told["scheduler"], **told["workers"]}.items()
    }


def scheduler_facts(client: Any) -> SchedulerFacts:
    """What the scheduler says of itself."""
    began = time.time()
    now, saturation, failures, pages = client.run_on_scheduler(_ask_scheduler())
    listening = Listening(pages, clock_difference(began, now, time.time()))
    return SchedulerFacts(float(saturation), int(failures), listening)


def listenings(client: Any, addresses: Sequence[str]) -> dict[str, Listening]:
    """Address -> what a worker says; those that cannot say are left out."""
    if not addresses:
        return {}
    began = time.time()
    told = client.run(_ask_worker(), workers=list(addresses), on_error="return")
    ended = time.time()
    return {
        address: Listening(each[1], clock_difference(began, each[0], ended))
        for address, each in told.items()
        if isinstance(each, tuple)
    }


def clock_difference(began: float, told: float, ended: float) -> float:
    """Seconds by which a clock read between `began` and `ended` differs at least; 0.0 if it need not differ."""
    return max(0.0, told - ended, began - told)


def ask_each(
    client: Any, asked: Mapping[str, tuple[Callable[..., Any], Sequence[Any]]], seconds: float
) -> dict[str, Any]:
    """The value of a call on each worker, made as a task of its own, or the error that came instead.

    Parameters
    ----------
    asked : address -> function and arguments
    seconds : for all together
    """
    futures = {
        address: client.submit(
            function, *arguments, key=f"dpdist-doctor-{uuid.uuid4().hex}", workers=[address], pure=False
        )
        for address, (function, arguments) in asked.items()
    }
    deadline = time.monotonic() + seconds
    try:
        return {address: _value(future, deadline) for address, future in futures.items()}
    finally:
        client.cancel(list(futures.values()))


def processes(client: Any, workers: Sequence[Member], seconds: float) -> dict[str, Process | Exception]:
    """Address -> what a task there found, or the error that came instead."""
    look = _ask_process(tuple(WORKER_ENVIRONMENT))
    told = ask_each(client, {worker.address: (look, (worker.folder,)) for worker in workers}, seconds)
    return {address: Process(**each) if isinstance(each, dict) else each for address, each in told.items()}


def _value(future: Any, deadline: float) -> Any:
    try:
        return future.result(timeout=max(0.01, deadline - time.monotonic()))
    except Exception as error:  # whatever goes wrong on a worker is what is looked for
        return error


def _minor(packages: Mapping[str, str | None]) -> str:
    """Python's version without its last number, which brings no other code."""
    return ".".join((packages.get("python") or "").split(".")[:2])


def _ask_scheduler() -> Callable[..., tuple[float, float, int, str]]:
    def tell(dask_scheduler: Any) -> tuple[float, float, int, str]:
        import time

        scheduler = dask_scheduler
        return time.time(), scheduler.WORKER_SATURATION, scheduler.allowed_failures, scheduler.http_server.address

    return tell


def _ask_worker() -> Callable[..., tuple[float, str]]:
    def tell(dask_worker: Any) -> tuple[float, str]:
        import time

        return time.time(), dask_worker.http_server.address

    return tell


def _ask_process(variables: tuple[str, ...]) -> Callable[[str], dict[str, Any]]:
    def tell(folder: str) -> dict[str, Any]:
        import os
        import platform
        import shutil
        import socket

        import numpy
        import psutil
        import scipy.linalg  # noqa: F401 - brings its own BLAS
        import threadpoolctl
        import zarr

        pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
        kinds = sorted({str(pool.get("architecture", pool["internal_api"])) for pool in pools})
        sets = numpy.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
        # What a process sets later does not reach malloc.
        began = psutil.Process().environ() or os.environ
        return {
            "host": socket.gethostname(),
            "processor": " ".join([platform.machine(), *kinds, *sets]),
            "blas_threads": max((pool["num_threads"] for pool in pools), default=1),
            "environment": {name: began[name] for name in variables if name in began},
            "zarr_threads": (zarr.config.get("async.concurrency"), zarr.config.get("threading.max_workers") or 32),
            "memory": psutil.virtual_memory().total,
            "disk_free": shutil.disk_usage(folder).free,
        }

    return tell
