"""The command ``dpdist doctor``: look at everything, one line each, and leave nothing running."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dpdist.cluster.doctor import judgements
from dpdist.cluster.doctor.facts import (
    Listening,
    Member,
    Process,
    listenings,
    members,
    processes,
    scheduler_facts,
    versions_everywhere,
)
from dpdist.cluster.doctor.findings import (
    Finding,
    as_table,
    as_values,
    fault,
    has_fault,
    of_error,
    ok,
    warning,
)
from dpdist.cluster.doctor.security import check_certificates, connect_without_certificate, judge_tls
from dpdist.cluster.doctor.store import Rows, check_data, check_data_on, check_run
from dpdist.cluster.kinds import ClusterConfig, read_cluster
from dpdist.cluster.kinds.kubernetes import KubernetesConfig
from dpdist.cluster.kinds.local import LocalConfig
from dpdist.cluster.kinds.scheduler import SchedulerConfig
from dpdist.cluster.kinds.slurm import SlurmConfig
from dpdist.cluster.kinds.ssh import SSHConfig
from dpdist.core.errors import DpdistError, InputError

#: Seconds a program has to answer.
_ANSWER = 20.0
#: Dask tells at length of what the doctor finds by itself.
_FOUND_ANYWAY = (".*runs without TLS", "Mismatched versions found")

_output, _messages = Console(), Console(stderr=True)


def doctor(
    cluster: Annotated[Path, typer.Option(help="TOML file of the cluster, such as those of cluster_configs/.")],
    run: Annotated[str | None, typer.Option(help="Folder or s3:// URL that a run is to be written to.")] = None,
    data: Annotated[str | None, typer.Option(help="Zarr array of rows that workers are to read.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for workers, and for their answers.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Plain values for scripts.")] = False,
) -> None:
    """Check a cluster, a run's place and data, and say what to fix; exits with 1 if there is a fault."""
    with _messages.status("examining"):
        findings = examine(cluster, run, data, wait)
    if as_json:
        typer.echo(json.dumps(as_values(findings), indent=2))
    else:
        _output.print(as_table(findings))
    if has_fault(findings):
        raise typer.Exit(1)


def examine(cluster: Path, run: str | None, data: str | None, wait: float) -> list[Finding]:
    """All findings; the cluster is launched, and closed again.

    Parameters
    ----------
    wait : seconds to wait for workers, and for their answers
    """
    try:
        config = read_cluster(cluster)
    except InputError as error:
        return [of_error("configuration", error, f"correct {cluster}")]
    found = [ok("configuration", f"{cluster}, type {config.type}"), *check_installed(config)]
    found += check_certificates(config)
    found += [] if run is None else check_run(config, _absolute(run))
    storage, rows = ([], None) if data is None else check_data(_absolute(data))
    return [*found, *storage, *_examine_cluster(config, None if data is None else _absolute(data), rows, wait)]


def check_installed(config: ClusterConfig) -> list[Finding]:
    """Is there what this kind of cluster needs here?"""
    try:
        config.require()
    except InputError as error:
        name = config.library[1] if config.library else "test"
        return [fault("installed", str(error).partition(":")[0], f"pip install 'dpdist[{name}]'")]
    tools = slurm_tools() if isinstance(config, SlurmConfig) else {}
    wrong = [each for name, arguments in tools.items() if (each := check_tool(name, *arguments)) is not None]
    told = [f"dpdist {importlib.metadata.version('dpdist')}", *([config.library[0]] if config.library else []), *tools]
    return wrong or [ok("installed", ", ".join(told))]


def slurm_tools() -> dict[str, tuple[str, ...]]:
    """Commands of SLURM that runs use, with arguments by which they show that they work; one asks the controller."""
    asking = ("--noheader", "--user", str(os.getuid()))
    return {"sbatch": ("--version",), "squeue": asking, "scontrol": ("--version",), "scancel": ("--version",)}


def check_tool(name: str, *arguments: str) -> Finding | None:
    """A fault if a program is not there or does not answer."""
    where = shutil.which(name)
    if where is None:
        return fault("installed", f"there is no {name} on the PATH", "run this where jobs are submitted")
    try:
        done = subprocess.run([where, *arguments], capture_output=True, text=True, timeout=_ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return fault("installed", f"{name} does not answer ({error})", "ask who runs the cluster")
    if done.returncode:
        return fault("installed", f"{name} fails ({done.stderr.strip()})", "ask who runs the cluster")
    return None


def _examine_cluster(config: ClusterConfig, data: str | None, rows: Rows | None, wait: float) -> list[Finding]:
    began = time.monotonic()
    try:
        with _reached(config) as client:
            told = f"{client.scheduler.address} reached after {time.monotonic() - began:.1f} s"
            return [ok("cluster", told), *_examine_client(client, config, data, rows, wait, began)]
    except (DpdistError, OSError, RuntimeError) as error:
        return [of_error("cluster", error, "look at the logs of scheduler and workers")]


@contextlib.contextmanager
def _reached(config: ClusterConfig) -> Iterator[Any]:
    """A client of the cluster, which is closed in the end; a scheduler that runs already is only looked at."""
    with warnings.catch_warnings(), contextlib.ExitStack() as ending:
        for message in _FOUND_ANYWAY:
            warnings.filterwarnings("ignore", message=message)
        if isinstance(config, SchedulerConfig):
            client = config.watch(config.address, config.timeout)
            ending.callback(client.close)
        else:
            backend = config.launch()
            ending.callback(backend.close)
            client = backend.client
        yield client


def _examine_client(
    client: Any, config: ClusterConfig, data: str | None, rows: Rows | None, wait: float, began: float
) -> list[Finding]:
    expected = expected_workers(config)
    with contextlib.suppress(TimeoutError):
        client.wait_for_workers(expected or 1, timeout=max(wait, 0.01))
    workers = members(client)
    found = [judgements.judge_arrival(workers, expected, time.monotonic() - began)]
    told = processes(client, workers, max(wait, 1.0))
    found += [*judgements.judge_tasks(told), *compare_versions(client, workers, silent(told))]
    found += judge_processes(workers, {name: each for name, each in told.items() if isinstance(each, Process)})
    facts = scheduler_facts(client)
    found += judgements.judge_scheduler(facts, config.allowed_failures)
    found += judge_connections(client, config, workers)
    found += judge_listening(facts.listening, listenings(client, [name for name in told if name not in silent(told)]))
    if data is not None and rows is not None:
        found += check_data_on(client, workers, data, rows, max(wait, 1.0))
    return found


def expected_workers(config: ClusterConfig) -> int | None:
    """Workers that the configuration asks for; None if others start them."""
    match config:
        case LocalConfig():
            return config.n_workers or len(os.sched_getaffinity(0))
        case SSHConfig():
            return (len(config.hosts) - 1) * int(config.worker_options.get("n_workers", 1))
        case SlurmConfig():
            return config.jobs * (config.job.processes or config.job.cores)
        case KubernetesConfig():
            return config.n_workers
    return None


def silent(told: dict[str, Process | Exception]) -> list[str]:
    """Addresses of workers that did not answer; asking them more would take as long again."""
    return [address for address, each in told.items() if isinstance(each, TimeoutError)]


def compare_versions(client: Any, workers: list[Member], without_answer: list[str]) -> list[Finding]:
    """Versions of scheduler and workers against those of this process."""
    if without_answer:
        told = f"not compared, since {len(without_answer)} of {len(workers)} workers do not answer"
        return [warning("versions", told, "look at those workers first")]
    versions, hosts = versions_everywhere(client), {worker.address: worker.host for worker in workers}
    theirs = [(hosts[name], each) for name, each in versions.items() if name in hosts]
    found = judgements.judge_scheduler_versions(versions["scheduler"], versions["client"])
    return [*found, *judgements.judge_worker_versions(theirs, versions["client"])]


def judge_processes(workers: list[Member], told: dict[str, Process]) -> list[Finding]:
    """Processors, threads, buffers and memory of the workers that answered."""
    each = list(told.values())
    return [
        *judgements.judge_processors(each),
        *judgements.judge_threads(each),
        *judgements.judge_malloc(each),
        *judgements.judge_memory(workers, told),
    ]


def judge_connections(client: Any, config: ClusterConfig, workers: list[Member]) -> list[Finding]:
    """Whether connections are encrypted, asking the scheduler by one without a certificate."""
    address = client.scheduler.address
    answer = connect_without_certificate(address) if config.encrypted else None
    return judge_tls(config.encrypted, [address, *(worker.address for worker in workers)], answer)


def judge_listening(scheduler: Listening, workers: dict[str, Listening]) -> list[Finding]:
    """Pages and clocks of scheduler and workers."""
    clocks = {"the scheduler": scheduler.clock}
    for address, each in workers.items():
        name = f"workers on {judgements.host_of(address)}"
        clocks[name] = max(each.clock, clocks.get(name, 0.0))
    return [*judgements.judge_pages(scheduler, workers), *judgements.judge_clocks(clocks)]


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())
