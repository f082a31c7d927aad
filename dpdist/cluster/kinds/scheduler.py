"""A running Dask scheduler, whose workers are started and ended elsewhere."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from dpdist.cluster.certificates import Role
from dpdist.cluster.kinds.base import ClusterConfig, Positive
from dpdist.execution.connecting import check_address, connect
from dpdist.execution.dask import DaskBackend


class SchedulerConfig(ClusterConfig):
    """The address of a running scheduler.

    Parameters
    ----------
    address : such as ``tls://host:8786``
    timeout : seconds to wait for an answer
    """

    roles: ClassVar[tuple[Role, ...]] = ("client",)

    type: Literal["scheduler"] = "scheduler"
    address: str
    timeout: Positive = 10.0

    @model_validator(mode="after")
    def _address_fits_security(self) -> Self:
        check_address(self.address)
        expected = "tls" if self.encrypted else "tcp"
        if not self.address.startswith(f"{expected}://"):
            how = "has certificates" if self.encrypted else "sets tls = false"
            raise ValueError(f"[security] {how}, so address should start with {expected}://; got {self.address!r}")
        return self

    def launch(self) -> DaskBackend:
        return connect(self.address, self.timeout, self.tls(("client",)), self.limits())
