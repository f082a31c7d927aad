"""Worker processes on this machine, reached over loopback only."""

from __future__ import annotations

import os
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator

from dpdist.cluster.certificates import Role
from dpdist.cluster.kinds.base import ClusterConfig, Count, is_worker_memory
from dpdist.execution.connecting import local_backend
from dpdist.execution.dask import DaskBackend


def _is_limit(value: str) -> str:
    return value if value == "auto" else is_worker_memory(value)


class LocalConfig(ClusterConfig):
    """The configuration of worker processes on this machine.

    Parameters
    ----------
    n_workers : number of single-threaded processes; None for one per core
    memory_limit : per worker; ``auto`` divides the machine's memory among them
    """

    roles: ClassVar[tuple[Role, ...]] = ()

    type: Literal["local"] = "local"
    n_workers: Count | None = None
    memory_limit: Annotated[str, AfterValidator(_is_limit)] = "auto"

    @property
    def expected(self) -> int | None:
        return self.n_workers or len(os.sched_getaffinity(0))

    def launch(self) -> DaskBackend:
        return local_backend(self.n_workers, self.memory_limit, self.limits())
