"""A Dask scheduler that runs already, with workers that somebody else starts and ends."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, Self

from distributed import Client
from pydantic import model_validator

from dpdist.cluster.certificates import Role
from dpdist.cluster.kinds.base import ClusterConfig, Count, Positive
from dpdist.execution.connecting import connect
from dpdist.execution.dask import DaskBackend

_ADDRESS = re.compile(r"(?P<protocol>tls|tcp)://([^\s:/\[\]]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")


class SchedulerConfig(ClusterConfig):
    """Where a running scheduler listens.

    Parameters
    ----------
    address : such as ``tls://host:8786``
    timeout : seconds to wait for an answer
    allowed_failures : if given, set on the running scheduler
    """

    roles: ClassVar[tuple[Role, ...]] = ("client",)

    type: Literal["scheduler"] = "scheduler"
    address: str
    timeout: Positive = 10.0
    allowed_failures: Count | None = None

    @model_validator(mode="after")
    def _address_fits_security(self) -> Self:
        match = _ADDRESS.fullmatch(self.address)
        if match is None:
            raise ValueError(f"address should look like tls://host:8786; got {self.address!r}")
        expected = "tls" if self.encrypted else "tcp"
        if match["protocol"] != expected:
            how = "has certificates" if self.encrypted else "says tls = false"
            raise ValueError(f"[security] {how}, so that address should start with {expected}://; got {self.address!r}")
        return self

    @contextlib.contextmanager
    def looked_at(self) -> Iterator[Client]:
        """A client that only looks on: the scheduler is left as it is."""
        with contextlib.closing(self.watch(self.address, self.timeout)) as client:
            yield client

    def launch(self) -> DaskBackend:
        self.require()
        backend = connect(self.address, self.timeout, self.tls(("client",)), self.limits())
        if self.allowed_failures is not None:
            _allow_failures(backend.client, self.allowed_failures)
        return backend


def _allow_failures(client: Client, count: int) -> None:
    def change(dask_scheduler: Any) -> None:
        dask_scheduler.allowed_failures = count

    client.run_on_scheduler(change)  # defined in here, it is sent whole: the scheduler need not import this module
