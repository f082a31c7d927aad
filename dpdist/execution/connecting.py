"""Connections to Dask: the active client, a scheduler at an address, or new worker processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from weakref import WeakValueDictionary

import dask
from distributed import Client, Security, get_client, rpc, secede
from distributed.comm import CommClosedError, parse_address, parse_host_port
from distributed.comm.core import FatalCommClosedError
from distributed.comm.registry import get_backend
from distributed.deploy.cluster import Cluster
from distributed.threadpoolexecutor import thread_state
from distributed.utils import LoopRunner

from dpdist.core.errors import DpdistError, InputError
from dpdist.core.waiting import try_until
from dpdist.execution.dask import DaskBackend
from dpdist.execution.faults import TaskLimits
from dpdist.execution.local import PersistentCluster
from dpdist.execution.settings import WORKER_ENVIRONMENT, environment, worker_settings

#: Seconds between two tries to reach a scheduler that closed the connection.
_PAUSE = 0.1
#: Backends of clients that are not ours, by client id. A client keeps its backend alive through its event handler.
_ACTIVE: WeakValueDictionary[str, DaskBackend] = WeakValueDictionary()


def active_client() -> Client | None:
    """The active Dask client, if there is one that is connected."""
    try:
        client = get_client()
    except ValueError:
        return None
    return client if client.status == "running" else None


def active_backend() -> DaskBackend | None:
    """The only backend of the active Dask client; None without one."""
    client = active_client()
    if client is None:
        return None
    if getattr(thread_state, "proceed", False):  # inside a Dask task: free its thread for the tasks of this backend
        secede()
    backend = _ACTIVE.get(client.id)
    if backend is None:
        backend = _ACTIVE[client.id] = DaskBackend(client)
    return backend


def local_backend(
    workers: int | None = None, memory_limit: str | float | None = "auto", limits: TaskLimits | None = None
) -> DaskBackend:
    """Start worker processes on this machine, one thread each, bound to loopback.

    Parameters
    ----------
    workers : number of processes; default: one a core
    memory_limit : per worker, as in Dask
    limits : of waiting times and tries

    Raises
    ------
    InputError
        If they cannot be started, for example because of Dask's own settings.
    """
    count, limits = workers or len(os.sched_getaffinity(0)), limits or TaskLimits()
    try:
        with environment(WORKER_ENVIRONMENT), dask.config.set(worker_settings(limits.stuck_after)):
            return backend_on(PersistentCluster(count, memory_limit), limits, count)
    except DpdistError:
        raise
    except Exception as error:
        raise InputError(
            f"worker processes cannot be started on this machine ({_cause(error)}); check the settings of Dask, which "
            "are in its files and in variables that begin with DASK_, or use none, as in: dpdist fit --serial."
        ) from error


def _cause(error: BaseException) -> str:
    """The message of the innermost cause of an error that has one."""
    told, inner = str(error), error.__cause__
    while inner is not None:
        told, inner = str(inner) or told, inner.__cause__
    return " ".join((told or type(error).__name__).split()).rstrip(".")


def backend_on(cluster: Cluster, limits: TaskLimits, workers: int = 0) -> DaskBackend:
    """A backend that owns a started cluster; closes the cluster if it cannot be used. `workers` is the desired number,
    if the cluster does not replace workers that end; 0 if it does."""
    with contextlib.ExitStack() as undo:
        undo.callback(cluster.close)
        client = undo.enter_context(Client(cluster, set_as_default=False))
        backend = DaskBackend(client, owned=True, limits=limits, workers=workers)
        undo.pop_all()
    return backend


def connect(
    address: str, timeout: float = 10.0, security: Security | None = None, limits: TaskLimits | None = None
) -> DaskBackend:
    """A backend on the scheduler at an address, as for :func:`client_of`; it never ends the scheduler."""
    client = client_of(address, timeout, security)
    try:
        return DaskBackend(client, owned=True, limits=limits)
    except BaseException:
        client.close()
        raise


def client_of(address: str, timeout: float = 10.0, security: Security | None = None) -> Client:
    """A client of the scheduler at `address`, such as ``tcp://host:8786``.

    Parameters
    ----------
    timeout : seconds to wait; if the scheduler dies meanwhile, another at the same address is tried
    security : certificates, if the scheduler requires them

    Raises
    ------
    InputError
        If the address is invalid or needs certificates (raised at once), or no scheduler answers in time.
    """
    check_address(address)
    known = security or Security()  # from Dask's settings
    if address.startswith("tls://") and known.get_connection_args("client")["ssl_context"] is None:
        raise InputError(
            f"the scheduler at {address} needs certificates, but there are none; name them in Dask's settings "
            "distributed.comm.tls, or in the [security] table of a file for dpdist submit --cluster."
        )

    def meet() -> Client:
        LoopRunner().run_sync(_identity, address, known, timeout)  # a loop beside a notebook's own
        return Client(address, timeout=timeout, security=security, set_as_default=False)

    try:
        return try_until(meet, time.monotonic() + timeout, _PAUSE, CommClosedError, FatalCommClosedError)
    except (OSError, ValueError, TimeoutError) as error:
        advice = (
            "Start one with: dask scheduler --host 127.0.0.1"
            if security is None
            else "Check that the scheduler is running and that its certificates were signed by the same authority."
        )
        reason = _cause(error) if str(error) else f"no answer within {timeout:g} s"
        raise InputError(f"no Dask scheduler answers at {address} ({reason}). {advice}") from error


def check_address(address: str) -> None:
    """Raise :class:`InputError` unless `address` is a valid address with a port."""
    wrong = f"the address of a scheduler should look like tcp://127.0.0.1:8786; got {address!r}"
    try:
        scheme, place = parse_address(address)
        get_backend(scheme)
        host, port = parse_host_port(place)
    except ValueError as error:
        raise InputError(f"{wrong} ({error}).") from error
    if not (host and 0 < port < 2**16):
        raise InputError(f"{wrong}.")


async def _identity(address: str, security: Security, timeout: float) -> None:
    """Ask a scheduler for its identity. A client itself would wait without end for a silent peer, and stay open on
    errors."""
    connection = security.get_connection_args("client")
    async with asyncio.timeout(timeout), rpc(address, timeout=timeout, connection_args=connection) as scheduler:
        await scheduler.identity()
