"""The same calls as tasks on a Dask cluster.

Shared values are held by tasks of their own, so that a value lost with its worker is made again, and every
task is pure, so that one lost with its worker is run again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dask
from distributed import Client, LocalCluster, get_client

from dpdist.backends.base import Backend, Ref
from dpdist.errors import InputError

#: Set before workers start; Dask's own default keeps glibc from reusing large buffers.
WORKER_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}

#: Dask's own sampling and polling take several per cent of every core; tasks here are long and few. The preload
#: leaves Ctrl-C to the coordinator.
WORKER_SETTINGS = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "2s",
    "distributed.scheduler.work-stealing-interval": "500ms",
    "distributed.worker.preload": ["dpdist.backends.preload"],
}


class DaskBackend(Backend):
    """Tasks on the cluster behind `client`.

    Parameters
    ----------
    client : distributed.Client
    owned : whether :meth:`close` closes the client and its cluster
    """

    def __init__(self, client: Client, owned: bool = False) -> None:
        self.client, self._owned = client, owned
        self._run, self._calls = uuid.uuid4().hex[:12], itertools.count()

    def share(self, value: Any) -> Ref:
        return self.client.submit(_held, value, key=self._key("share"))

    def map(self, function: Callable[..., Any], *columns: Sequence[Any]) -> list[Ref]:
        call = self._key(getattr(function, "__name__", "call"))
        return [
            self.client.submit(function, *row, key=f"{call}-{i}") for i, row in enumerate(zip(*columns, strict=True))
        ]

    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        return list(self.client.gather(list(refs)))

    def close(self) -> None:
        if self._owned:
            cluster = self.client.cluster
            with _quietly():
                self.client.close()
                if cluster is not None:
                    cluster.close()

    def _key(self, name: str) -> str:
        return f"{name}-{self._run}-{next(self._calls)}"


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep Dask from telling of each connection that an orderly end closes."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _held(value: Any) -> Any:
    return value


def active_client() -> Client | None:
    """The Dask client in use here, if there is one."""
    try:
        return get_client()
    except ValueError:
        return None


def local_backend(workers: int | None = None, memory_limit: str | float | None = "auto") -> DaskBackend:
    """Start worker processes on this machine, one thread each, bound to loopback.

    Parameters
    ----------
    workers : number of processes; default: one a core
    memory_limit : per worker, as Dask takes it
    """
    before = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update(WORKER_ENVIRONMENT)
    try:
        with dask.config.set(WORKER_SETTINGS):
            cluster = LocalCluster(
                n_workers=workers or len(os.sched_getaffinity(0)),
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                memory_limit=memory_limit,
            )
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    return DaskBackend(Client(cluster), owned=True)


def connect(address: str, timeout: float = 10.0) -> DaskBackend:
    """A backend on the scheduler at `address`, such as ``tcp://host:8786``."""
    try:
        return DaskBackend(Client(address, timeout=timeout), owned=True)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address} ({error}). Start one with: dask scheduler --host 127.0.0.1"
        ) from error
