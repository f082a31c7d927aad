"""Settings of worker processes and the scheduler, with the reason for each, and its effect if measured.

The measurements are those of ``workflows/benchmarks/worker_settings.py``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

#: Set before workers start. With Dask's default, glibc returns large buffers to the system after every partition, and
#: each read causes page faults again. BLAS and Numba use one thread, because workers already fill the cores. A task
#: reads one chunk, for which Zarr's ten concurrent reads and its thread pool are overhead.
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

#: Variables that select a processor's instructions in libraries, which affects the last bits of results.
INSTRUCTIONS = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "MKL_CBWR",
    "NPY_DISABLE_CPU_FEATURES",
    "NPY_ENABLE_CPU_FEATURES",
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
)

#: Dask's sampling and polling take several per cent of every core, and are reduced because tasks are long and few. Two
#: tasks per thread hide the scheduler's latency; the rest wait at the scheduler, so that the death of a worker counts
#: against few tasks. A task may be on ten dying workers before it is given up. The preload ignores Ctrl-C in workers.
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
    """Dask's settings. The scheduler checks once per ttl, so that a worker silent for `stuck_after` is restarted by
    then."""
    return {**WORKER_SETTINGS, "distributed.scheduler.worker-ttl": f"{stuck_after / 2:g}s"}


def worker_environment() -> dict[str, str]:
    """The environment of processes on other hosts: the fixed settings, and the instruction set of this process."""
    return {**WORKER_ENVIRONMENT, **{name: os.environ[name] for name in INSTRUCTIONS if name in os.environ}}


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process temporarily, for the processes started meanwhile.

    Dask's own setting for them is read once per process, and ignored for variables that are already set.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
