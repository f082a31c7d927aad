"""``dpdist doctor``: what is wrong with a cluster before a run finds out, and what to do about it.

Four questions: is a scheduler reached and do workers come; do they have this process's versions; does everybody see
the run's place and the data; is TLS in force. Functions that run elsewhere are made here by other functions, so that
they are sent as code, not by name: they work where another dpdist, or none, is installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import typer
from distributed import Client
from rich.console import Console

from dpdist.cluster.certificates import NOTICE_DAYS
from dpdist.cluster.findings import Finding, Level, as_table, fault, of_error, of_sentence, ok, once, warning
from dpdist.cluster.kinds import ClusterConfig, read_cluster
from dpdist.core.errors import DpdistError, InputError
from dpdist.core.places import LocalPlace, Place, absolute
from dpdist.core.places.connections import is_object_url
from dpdist.core.places.objects import ObjectPlace
from dpdist.core.versions import VERSIONED
from dpdist.data import as_source
from dpdist.execution.versions import probe, refusal
from dpdist.storage.lease import describe, latest_lease, lives

#: Packages that ought to be the same everywhere though no bit depends on them, and those that the scheduler needs.
OTHERS, SCHEDULERS = ("dask", "distributed", "zarr"), ("dask", "distributed")
#: Seconds for which requests to an object store are repeated here, and that a scheduler has to answer a stranger.
_PATIENCE, _ANSWER = 20.0, 10.0
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
        typer.echo(json.dumps([{**asdict(each), "level": each.level.value[0]} for each in findings], indent=2))
    else:
        _output.print(as_table(findings))
    if any(finding.level is Level.FAULT for finding in findings):
        raise typer.Exit(1)


def examine(cluster: Path, run: str | None, data: str | None, wait: float) -> list[Finding]:
    """All findings; the cluster is launched, and closed again.

    Parameters
    ----------
    wait : seconds to wait for workers, and for their answers
    """
    try:
        config = read_cluster(cluster)
        config.require()
    except InputError as error:
        return [of_error("configuration", error, f"correct {cluster}")]
    found = [ok("configuration", f"{cluster}, type {config.type}"), *check_certificates(config)]
    found += [] if run is None else check_run(config, absolute(run))
    look = None
    if data is not None:
        told, rows = check_data(absolute(data))
        found += told
        look = None if rows is None else (absolute(data), rows)
    return [*found, *_check_cluster(config, look, max(wait, 1.0))]


# Scheduler and workers


def _check_cluster(config: ClusterConfig, data: tuple[str, str] | None, wait: float) -> list[Finding]:
    began = time.monotonic()
    try:
        with warnings.catch_warnings():
            for message in _FOUND_ANYWAY:
                warnings.filterwarnings("ignore", message=message)
            with config.looked_at() as client:
                address = client.scheduler.address
                found = [ok("cluster", f"{address} reached after {time.monotonic() - began:.1f} s")]
                with contextlib.suppress(TimeoutError):
                    client.wait_for_workers(config.expected or 1, timeout=wait)
                workers = client.scheduler_info(n_workers=-1)["workers"]
                found += judge_arrival([worker["host"] for worker in workers.values()], config.expected, wait)
                found += check_versions(client, list(workers), wait)
                found += check_tls(config.encrypted, [address, *workers])
                return found if data is None else [*found, *check_data_on(client, list(workers), *data, wait)]
    except (DpdistError, OSError, RuntimeError) as error:
        return [of_error("cluster", error, "look at the logs of scheduler and workers")]


def judge_arrival(hosts: Sequence[str], expected: int | None, seconds: float) -> list[Finding]:
    """Did the workers come that were asked for, in the time given?

    Parameters
    ----------
    hosts : of each worker
    expected : number of workers; None where others start them
    """
    if not hosts:
        return [fault("workers", f"none came within {seconds:g} s", "look at the workers' logs or queue; raise --wait")]
    found = f"{len(hosts)} on {len(set(hosts))} host(s)"
    if len(hosts) < (expected or 1):
        told = f"{found}, of {expected}, came within {seconds:g} s"
        return [warning("workers", told, "look for those that are missing; raise --wait")]
    return [ok("workers", found)]


def check_versions(client: Client, workers: Sequence[str], seconds: float) -> list[Finding]:
    """Does every worker carry out a task, with what the coordinator has? So the scheduler, which needs but Dask."""
    ask = probe((*VERSIONED, *OTHERS))
    ours = ask()
    faults = []
    for address, theirs in ask_each(client, workers, ask, (), seconds).items():
        if isinstance(theirs, Exception):
            told = f"{address} did not carry out a task ({type(theirs).__name__}: {theirs})"
            faults.append(fault("versions", told, "look at that worker's log"))
        else:
            faults += judge_versions(theirs, ours)
    faults += judge_versions({**ours, **client.run_on_scheduler(probe(SCHEDULERS))}, ours)
    return once(faults, ok("versions", ", ".join(f"{name} {ours[name]}" for name in (*VERSIONED, *OTHERS))))


def judge_versions(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Finding]:
    """What differs: a fault where bits depend on it, else a warning.

    Parameters
    ----------
    theirs, ours : package -> version, or None; and ``host``
    """
    compared = ((Level.FAULT, (*VERSIONED, "python")), (Level.WARNING, OTHERS))
    errors = (
        (level, refusal(theirs, {name: ours[name] for name in names}, theirs["host"])) for level, names in compared
    )
    return [of_sentence(level, "versions", str(error)) for level, error in errors if error is not None]


def ask_each(
    client: Client, workers: Sequence[str], function: Callable[..., Any], arguments: Sequence[Any], seconds: float
) -> dict[str, Any]:
    """Address -> the value of a call there, made as a task, or the error that came instead within `seconds`."""
    futures = {
        address: client.submit(
            function, *arguments, key=f"dpdist-doctor-{uuid.uuid4().hex}", workers=[address], pure=False
        )
        for address in workers
    }
    deadline = time.monotonic() + seconds
    try:
        return {address: _value(future, deadline) for address, future in futures.items()}
    finally:
        client.cancel(list(futures.values()))


def _value(future: Any, deadline: float) -> Any:
    try:
        return future.result(timeout=max(0.01, deadline - time.monotonic()))
    except Exception as error:  # whatever goes wrong on a worker is what is looked for
        return error


# Certificates and TLS


class Answer(Enum):
    """What a scheduler does with a TLS connection that shows no certificate."""

    REFUSED = "refuses"
    ADMITTED = "lets in"
    PLAIN = "does not speak TLS"
    ABSENT = "cannot be reached"


def check_certificates(config: ClusterConfig) -> list[Finding]:
    """Are the files there, private, in time, and of one authority? One that still holds for days is but a warning."""
    if not config.encrypted:
        return []
    soon = f"within {NOTICE_DAYS} days"
    found = [
        of_sentence(Level.WARNING if soon in each else Level.FAULT, "certificates", each)
        for each in config.certificate_faults()
    ]
    return once(found, ok("certificates", "private, in time and of one authority"))


def check_tls(encrypted: bool, addresses: Sequence[str]) -> list[Finding]:
    """Is mutual TLS in force where it should be? The scheduler, whose address comes first, is asked by a stranger."""
    answer = connect_without_certificate(addresses[0]) if encrypted else None
    return [judge_tls(addresses, answer)]


def judge_tls(addresses: Sequence[str], answer: Answer | None) -> Finding:
    """Is mutual TLS in force where it should be?

    Parameters
    ----------
    addresses : of scheduler and workers
    answer : of the scheduler to a stranger; None where there is to be no TLS
    """
    beyond = [address for address in addresses if not _is_loopback(_host_of(address))]
    plain = [address for address in addresses if not address.startswith("tls://")]
    if answer is None and beyond:
        told = f"off, and {beyond[0]} can be reached from other hosts: whoever does so runs programs as you"
        return warning("TLS", told, "make certificates with `dpdist certificates FOLDER`; name it under [security]")
    if answer is None:
        return ok("TLS", "off; all connections stay on loopback")
    if answer is not Answer.REFUSED:
        told = f"a scheduler that refuses connections without a certificate was expected; this one {answer.value}"
        return fault("TLS", told, "start it with --tls-ca-file, --tls-cert and --tls-key")
    if plain:
        return fault("TLS", f"{plain[0]} goes without TLS", "start it with --protocol tls")
    return ok("TLS", "in force; a connection without a certificate is refused")


def connect_without_certificate(address: str) -> Answer:
    """What the scheduler at an address such as ``tls://host:8786`` does with a stranger."""
    port = int(address.rpartition(":")[2])
    context = ssl.create_default_context()
    # The stranger does not care whose scheduler it is.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((_host_of(address), port), timeout=_ANSWER) as plain,
            context.wrap_socket(plain) as secured,
        ):
            return _heard(secured)
    except ssl.SSLError as error:
        return Answer.REFUSED if "ALERT" in (error.reason or "") else Answer.PLAIN
    except OSError:
        return Answer.ABSENT


def _heard(secured: ssl.SSLSocket) -> Answer:
    """In TLS 1.3 a refusal comes after the handshake, with the first read."""
    try:
        return Answer.ADMITTED if secured.recv(100) else Answer.REFUSED
    except TimeoutError:
        return Answer.ADMITTED
    except ConnectionResetError:
        return Answer.REFUSED


def _host_of(address: str) -> str:
    return address.partition("://")[2].rpartition(":")[0].strip("[]")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# The run's place and the data


def check_run(config: ClusterConfig, run: str) -> list[Finding]:
    """Can the coordinator write a run at a path or URL, and does no other do so?"""
    advice = "choose another path, or correct its permissions or credentials"
    try:
        config.check_run_path(run)
        place = ObjectPlace(run, _PATIENCE) if is_object_url(run) else LocalPlace(run)
        number, lease = latest_lease(place)
        if lease is not None and lives(place, number, lease):
            told = f"{place.label} is being written by another coordinator ({describe(lease)})"
            return [fault("run", told, f"wait for it, or end it with: dpdist cancel {place.label}")]
        broken = try_place(place if is_object_url(run) else LocalPlace(_existing(Path(run))))
    except (DpdistError, OSError) as error:
        return [of_error("run", error, advice)]
    return [fault("run", f"{run} {told}", advice) for told in broken] or [ok("run", f"{run} can be written")]


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest above it that is there: trying to write makes none."""
    return next(each for each in (path, *path.parents) if each.exists())


def try_place(place: Place) -> list[str]:
    """What a place does not keep of that on which a run relies; nothing is left there."""
    folder = f"doctor-{uuid.uuid4().hex}"
    name, first, second = f"{folder}/trial", b"first", os.urandom(1000)
    try:
        created, again = place.create(name, first), place.create(name, second)
        kept = created and place.read(name) == first
        place.replace(name, second)
        kept = kept and place.read(name) == second
    finally:
        with contextlib.suppress(*place.failures):
            place.remove(folder)
    wrong = {
        "does not give back what was written": not kept,
        "lets a file be created twice, so that two coordinators could write one run": again,
        "keeps files that were removed": bool(place.names(folder)),
    }
    return [told for told, found in wrong.items() if found]


def check_data(data: str) -> tuple[list[Finding], str | None]:
    """The data as this process sees them, and a digest to compare with; None if it does not see them."""
    try:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", UserWarning)
            rows, columns = as_source(data).shape
            digest = look_at_data()(data)
    except (DpdistError, OSError) as error:
        return [of_error("data", error, "check the path, and that it can be read")], None
    advice = "copy or convert the rows again"
    found = [
        of_sentence(Level.WARNING, "data", str(each.message), advice) for each in raised if each.category is UserWarning
    ]
    return once(found, ok("data", f"{rows} rows of {columns} columns")), digest


def check_data_on(client: Client, workers: Sequence[str], data: str, ours: str, seconds: float) -> list[Finding]:
    """Does every worker read the rows that this process reads?"""
    found = []
    for address, theirs in ask_each(client, workers, look_at_data(), (data,), seconds).items():
        host = _host_of(address)
        if isinstance(theirs, Exception):
            told = f"workers on {host} cannot read them ({type(theirs).__name__}: {theirs})"
            found.append(fault("data", told, "put them where every worker sees them under the same path, or on s3://"))
        elif theirs != ours:
            told = f"workers on {host} read other rows than this process"
            found.append(fault("data", told, "copy the same data to every host, or name a place that all share"))
    return once(found, ok("data", f"read by every worker ({len(workers)}), the same everywhere"))


def look_at_data() -> Callable[[str], str]:
    """What reads both ends of the rows at a path, and tells their shape and a digest of a few partitions."""

    def tell(data: str) -> str:
        from dpdist.data import as_source

        source = as_source(data)
        ends = [source.partitions[i].load()[0].shape for i in (0, -1)]
        return f"{source.shape} {ends} {source.glance()}"

    return tell
