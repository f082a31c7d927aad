"""Settings of worker processes and of the scheduler: why each is there, with its effect where one was measured.

Figures are those of ``workflows/benchmarks/worker_settings.py``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

#: Set before workers start. With Dask's own default glibc gives large buffers back to the system after every
#: partition, and each read faults its pages in again. One thread a worker thread for BLAS and Numba: workers already
#: fill the cores. A task reads one chunk, for which Zarr's ten reads and its thread pool are overhead.
WORKER_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "ZARR_ASYNC__CONCURRENCY": "1",
    "ZARR_THREADING__MAX_WORKERS": "1",
}

#: Variables that tell libraries which of a processor's instructions to use, and so which last bits to give.
INSTRUCTIONS = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "MKL_CBWR",
    "NPY_DISABLE_CPU_FEATURES",
    "NPY_ENABLE_CPU_FEATURES",
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
)

#: Dask's own sampling and polling take several per cent of every core; tasks here are long and few. Two tasks a
#: thread hide the scheduler's answer time; the rest wait at the scheduler, so that a worker's end is held against few.
#: A task that happened to be on workers that died is innocent ten times. The preload leaves Ctrl-C to the coordinator.
WORKER_SETTINGS = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "2s",
    "distributed.worker.memory.monitor-interval": "500ms",
    "distributed.scheduler.work-stealing-interval": "500ms",
    "distributed.scheduler.worker-saturation": 2.0,
    "distributed.scheduler.allowed-failures": 10,
    "distributed.worker.preload": ["dpdist.execution.preload"],
}


def worker_settings(stuck_after: float) -> dict[str, object]:
    """Dask's settings; a worker that is silent for so many seconds is restarted by the scheduler, which looks twice."""
    return {**WORKER_SETTINGS, "distributed.scheduler.worker-ttl": f"{stuck_after / 2:g}s"}


def worker_environment() -> dict[str, str]:
    """What processes on other hosts begin with: as shipped, and the instructions that this process computes with."""
    return {**WORKER_ENVIRONMENT, **{name: os.environ[name] for name in INSTRUCTIONS if name in os.environ}}


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables of this process for a while: what processes started meanwhile begin with.

    Dask's own setting for them is read once a process and ignored where a variable is already set.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
