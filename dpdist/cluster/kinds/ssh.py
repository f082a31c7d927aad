"""Scheduler and workers on hosts reached by SSH, with :func:`distributed.SSHCluster` and its keywords."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import shlex
import sys
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from distributed import Nanny, Scheduler, SSHCluster, Worker
from pydantic import Field, model_validator

from dpdist.cluster.certificates import Role
from dpdist.cluster.kinds.base import HIDDEN_DASHBOARD, ClusterConfig, is_worker_memory
from dpdist.core.checks import COUNT
from dpdist.core.errors import InputError
from dpdist.execution.connecting import backend_on
from dpdist.execution.dask import DaskBackend

if TYPE_CHECKING:
    from asyncssh import SSHClientProcess, SSHReader

Options = dict[str, Any]

_LOGGER = logging.getLogger(__name__)
#: Time without tasks after which a scheduler whose coordinator is gone ends, with its workers.
_IDLE = "30 minutes"
#: Time without a scheduler after which a worker ends.
_ALONE = "5 minutes"
#: Keywords of Dask's processes; `n_workers` is SSHCluster's number of workers on a host.
_TAKEN = {
    "worker_options": {"n_workers", *inspect.signature(Nanny).parameters, *inspect.signature(Worker).parameters},
    "scheduler_options": {*inspect.signature(Scheduler).parameters},
}
#: Options that only [security] may set.
_RESERVED = ("protocol", "security")


class SSHConfig(ClusterConfig):
    """The configuration of a cluster over SSH.

    Parameters
    ----------
    hosts : the first runs the scheduler, the others run workers; a host may be repeated
    connect_options : of ``asyncssh.connect``, or a list with one table per host
    worker_options, scheduler_options : of Dask's nannies and scheduler
    remote_python : interpreter on the hosts, or a list with one per host; default: the path of this interpreter
    remote_certificates : folder of the certificates on the hosts, if different from the one on this machine
    """

    library: ClassVar[tuple[str, str] | None] = ("asyncssh", "ssh")

    type: Literal["ssh"] = "ssh"
    hosts: Annotated[list[str], Field(min_length=2)]
    connect_options: Options | list[Options] = Field(default_factory=dict)
    worker_options: Options = Field(default_factory=dict)
    scheduler_options: Options = Field(default_factory=dict)
    remote_python: str | list[str] | None = None
    remote_certificates: str | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name, value in (("connect_options", self.connect_options), ("remote_python", self.remote_python)):
            if isinstance(value, list) and len(value) != len(self.hosts):
                raise ValueError(f"{name} has {len(value)} entries, but there are {len(self.hosts)} hosts")
        for name, taken in _TAKEN.items():
            for key in getattr(self, name):
                if key in _RESERVED:
                    raise ValueError(f"{name}.{key} is decided by [security]: remove it")
                if key not in taken:
                    raise ValueError(f"{name}.{key} is not an option of Dask; known are {', '.join(sorted(taken))}")
        workers = self.worker_options.get("n_workers", 1)
        if not COUNT.holds(workers):
            raise ValueError(f"worker_options.n_workers should be a whole number from 1 on; got {workers!r}")
        memory = self.worker_options.get("memory_limit")
        if isinstance(memory, str) and memory != "auto":
            try:
                is_worker_memory(memory)
            except ValueError as error:
                raise ValueError(f"worker_options.memory_limit {error}; got {memory!r}") from None
        if (self.remote_certificates or "").startswith("~"):
            raise ValueError("remote_certificates should be a path without ~, which Dask does not expand on the hosts")
        given = self.connect_options
        if not all(map(_checks_host_keys, given if isinstance(given, list) else [given])):
            raise ValueError("connect_options.known_hosts should be the path of a file: host keys are always checked")
        # SSHCluster passes these in single quotes on a command line.
        if "'" in json.dumps([self._worker(), self._scheduler()]):
            raise ValueError("worker_options, scheduler_options and certificate paths cannot hold a single quote")
        return self

    @property
    def expected(self) -> int | None:
        return (len(self.hosts) - 1) * int(self.worker_options.get("n_workers", 1))

    def launch(self) -> DaskBackend:
        self.require()
        security = self.tls(("client",))
        try:
            with self.in_force():
                cluster = SSHCluster(
                    self.hosts,
                    connect_options=self.connect_options,
                    worker_options=self._worker(),
                    scheduler_options=self._scheduler(),
                    remote_python=self._python(),
                    security=security,
                    silence_logs=logging.WARNING,
                )
        except Exception as error:  # plain Exception of SSHCluster, errors of asyncssh, OSError
            raise InputError(
                f"the cluster over ssh did not start ({error}); check that each of {', '.join(self.hosts)} can be "
                "reached with ssh, and has dpdist in remote_python and its certificates."
            ) from error
        cluster.loop.add_callback(_drain, [cluster.scheduler, *cluster.workers.values()])
        return backend_on(cluster, self.limits())

    def _worker(self) -> Options:
        return {"nthreads": 1, "death_timeout": _ALONE, **self._process("worker"), **self.worker_options}

    def _scheduler(self) -> Options:
        return {"port": 0, "idle_timeout": _IDLE, **self._process("scheduler"), **self.scheduler_options}

    def _process(self, role: Role) -> Options:
        options: Options = dict(HIDDEN_DASHBOARD)
        if all(_is_loopback(host) for host in self.hosts):
            options["host"] = "127.0.0.1"
        if not self.encrypted or self.security is None:
            return options
        remote = self.security
        if self.remote_certificates is not None:
            remote = remote.model_copy(update={"certificates": self.remote_certificates})
        return {**options, "protocol": "tls", "security": remote.options(role)}

    def _python(self) -> list[str]:
        """The interpreters, each preceded by the environment for its processes."""
        given = self.remote_python or sys.executable
        each = given if isinstance(given, list) else [given] * len(self.hosts)
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.variables().items())
        return [f"env {variables} {python}" for python in each]


def _checks_host_keys(options: Options) -> bool:
    known = options.get("known_hosts", "the user's own file")
    return isinstance(known, str) and bool(known)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _drain(processes: list[SSHClientProcess[str]]) -> None:
    """Read the output of the remote processes as long as they run, because a full pipe would block them."""
    streams = [stream for process in processes for stream in (process.proc.stdout, process.proc.stderr)]
    await asyncio.gather(*(_log(stream) for stream in streams))


async def _log(stream: SSHReader[str]) -> None:
    async for line in stream:
        _LOGGER.debug(line.rstrip())
