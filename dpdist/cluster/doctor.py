"""``dpdist doctor``: what is wrong with a cluster before a run finds out, and what to do about it.

Do workers come, with this process's versions; does everybody see the run's place and the data; is TLS in force.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from distributed import Client
from rich.table import Table
from rich.text import Text

from dpdist.cluster.certificates import certificate_faults, ending_soon
from dpdist.cluster.kinds import ClusterConfig, read_cluster
from dpdist.cluster.kinds.ssh import is_loopback
from dpdist.cluster.terminal import MESSAGES, OUTPUT
from dpdist.core.errors import DpdistError, InputError
from dpdist.core.places import LocalPlace, Place, absolute
from dpdist.core.places.connections import is_object_url
from dpdist.core.places.objects import ObjectPlace
from dpdist.core.versions import VERSIONED
from dpdist.data import as_source
from dpdist.execution.versions import code_versions, refusal
from dpdist.storage.lease import describe, latest_lease, lives

#: Seconds for which requests to an object store are repeated here.
_PATIENCE = 20.0
#: Dask tells at length of what the doctor finds by itself.
_FOUND_ANYWAY = (".*runs without TLS", "Mismatched versions found")


class Level(Enum):
    """How bad a finding is; a fault makes runs fail, or end at other bits. With the colour it is shown in."""

    OK = "ok", "green"
    WARNING = "warning", "yellow"
    FAULT = "fault", "bold red"


class Finding(NamedTuple):
    """One line of the examination: how bad, what was looked at, and what there is and what to do about it."""

    level: Level
    subject: str
    found: str


def doctor(
    cluster: Annotated[Path, typer.Option(help="TOML file of the cluster, such as those of cluster_configs/.")],
    run: Annotated[str | None, typer.Option(help="Folder or s3:// URL that a run is to be written to.")] = None,
    data: Annotated[str | None, typer.Option(help="Zarr array of rows that workers are to read.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for workers.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Plain values for scripts.")] = False,
) -> None:
    """Check a cluster, a run's place and data, and say what to fix; exits with 1 if there is a fault."""
    with MESSAGES.status("examining"):
        findings = examine(cluster, run, data, wait)
    if as_json:
        typer.echo(json.dumps([{**each._asdict(), "level": each.level.value[0]} for each in findings], indent=2))
    else:
        OUTPUT.print(as_table(findings))
    if any(finding.level is Level.FAULT for finding in findings):
        raise typer.Exit(1)


def as_table(findings: Sequence[Finding]) -> Table:
    """A line each, for people."""
    table = Table("", "looked at", "found", box=None, header_style="bold")
    for each in findings:
        table.add_row(Text(*each.level.value), Text(each.subject), Text(each.found))
    return table


def examine(cluster: Path, run: str | None, data: str | None, wait: float) -> list[Finding]:
    """All findings; the cluster is launched, and closed again, with `wait` seconds for workers to come."""
    try:
        config = read_cluster(cluster)
        config.require()
    except InputError as error:
        return [_fault("configuration", error)]
    found = [_ok("configuration", f"{cluster}, type {config.type}"), *check_certificates(config)]
    found += [] if run is None else check_run(config, absolute(run))
    look = None
    if data is not None:
        told, rows = check_data(absolute(data))
        found += told
        look = None if rows is None else (absolute(data), rows)
    return [*found, *_check_cluster(config, look, max(wait, 1.0))]


def _check_cluster(config: ClusterConfig, data: tuple[str, str] | None, wait: float) -> list[Finding]:
    began = time.monotonic()
    try:
        with warnings.catch_warnings():
            for message in _FOUND_ANYWAY:
                warnings.filterwarnings("ignore", message=message)
            with config.looked_at() as client:
                address = client.scheduler.address
                found = [_ok("cluster", f"{address} reached after {time.monotonic() - began:.1f} s")]
                with contextlib.suppress(TimeoutError):
                    client.wait_for_workers(config.expected or 1, timeout=wait)
                workers = client.scheduler_info(n_workers=-1)["workers"]
                found += judge_arrival([worker["host"] for worker in workers.values()], config.expected, wait)
                found += judge_versions(client.get_versions(packages=list(VERSIONED))["workers"])
                found.append(judge_tls(config.encrypted, [address, *workers]))
                return found if data is None else [*found, *check_data_on(client, *data)]
    except (DpdistError, OSError, RuntimeError) as error:
        return [_fault("cluster", error)]


def judge_arrival(hosts: Sequence[str], expected: int | None, seconds: float) -> list[Finding]:
    """Did the workers come that were asked for, in the time given?

    Parameters
    ----------
    hosts : of each worker
    expected : number of workers; None where others start them
    """
    found = f"{len(hosts)} on {len(set(hosts))} host(s)"
    if len(hosts) >= (expected or 1):
        return [_ok("workers", found)]
    told = f"{found}, of {expected or 1}, came within {seconds:g} s; look at their logs or queue, or raise --wait."
    return [Finding(Level.WARNING if hosts else Level.FAULT, "workers", told)]


def judge_versions(workers: Mapping[str, Mapping[str, Any] | None]) -> list[Finding]:
    """Has every worker what the coordinator has, as far as bits depend on it? `workers` is as Dask tells it."""
    ours = code_versions()
    faults = [
        _fault("versions", error)
        for address, told in workers.items()
        if (error := refusal(told["packages"] if told else {"python": None}, ours, address)) is not None
    ]
    return _once(faults, _ok("versions", ", ".join(f"{name} {version}" for name, version in ours.items())))


def check_certificates(config: ClusterConfig) -> list[Finding]:
    """Are the files there, private, in time, and of one authority? One that still holds for days is but a warning."""
    if (folder := config.certificates) is None:
        return []
    if faults := certificate_faults(folder, config.roles):
        return [Finding(Level.FAULT, "certificates", each) for each in faults]
    soon = [Finding(Level.WARNING, "certificates", each) for each in ending_soon(folder, config.roles)]
    return soon or [_ok("certificates", "private, in time and of one authority")]


def judge_tls(encrypted: bool, addresses: Sequence[str]) -> Finding:
    """Do scheduler and workers speak TLS where they should? Where they do, Dask asks everybody for a certificate."""
    plain = [address for address in addresses if not address.startswith("tls://")]
    beyond = [address for address in plain if not is_loopback(_host_of(address))]
    if encrypted and plain:
        return Finding(Level.FAULT, "TLS", f"{plain[0]} goes without it; start it with --protocol tls.")
    if beyond:
        told = f"off, and {beyond[0]} can be reached from other hosts: whoever does so runs programs as you; "
        return Finding(Level.WARNING, "TLS", f"{told}make certificates with `dpdist certificates FOLDER`.")
    return _ok("TLS", "in force" if encrypted else "off; all connections stay on loopback")


def check_run(config: ClusterConfig, run: str) -> list[Finding]:
    """Can the coordinator write a run at a path or URL, and does no other do so?"""
    try:
        config.check_run_path(run)
        place = ObjectPlace(run, _PATIENCE) if is_object_url(run) else LocalPlace(run)
        number, lease = latest_lease(place)
        if lease is not None and lives(place, number, lease):
            told = f"is being written by another coordinator ({describe(lease)}); end it with: dpdist cancel {run}"
            return [Finding(Level.FAULT, "run", f"{run} {told}")]
        broken = try_place(place if is_object_url(run) else LocalPlace(_existing(Path(run))))
    except (DpdistError, OSError) as error:
        return [_fault("run", error)]
    faults = [Finding(Level.FAULT, "run", f"{run} {told}; choose another place.") for told in broken]
    return faults or [_ok("run", f"{run} can be written")]


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
        return [_fault("data", error)], None
    found = [Finding(Level.WARNING, "data", str(each.message)) for each in raised if each.category is UserWarning]
    return _once(found, _ok("data", f"{rows} rows of {columns} columns")), digest


def check_data_on(client: Client, data: str, ours: str) -> list[Finding]:
    """Does every worker read the rows that this process reads?"""
    seen = client.run(look_at_data(), data, on_error="return")
    found = []
    for address, theirs in seen.items():
        if theirs != ours:
            how = f"cannot read them ({theirs})" if isinstance(theirs, Exception) else "read other rows"
            told = f"workers on {_host_of(address)} {how}; put them where all see them under one path, or on s3://."
            found.append(Finding(Level.FAULT, "data", told))
    return _once(found, _ok("data", f"read by every worker ({len(seen)}), the same everywhere"))


def look_at_data() -> Callable[[str], str]:
    """What reads both ends of the rows at a path, and tells their shape and a digest of a few partitions.

    Made here, it is sent as code, not by name: workers may have another dpdist.
    """

    def tell(data: str) -> str:
        from dpdist.data import as_source

        source = as_source(data)
        ends = [source.partitions[i].load()[0].shape for i in (0, -1)]
        return f"{source.shape} {ends} {source.glance()}"

    return tell


def _ok(subject: str, found: str) -> Finding:
    return Finding(Level.OK, subject, found)


def _fault(subject: str, error: BaseException) -> Finding:
    return Finding(Level.FAULT, subject, str(error) or type(error).__name__)


def _once(findings: Iterable[Finding], otherwise: Finding) -> list[Finding]:
    """Each finding once, in order; `otherwise` where there is none."""
    return list(dict.fromkeys(findings)) or [otherwise]


def _host_of(address: str) -> str:
    return address.partition("://")[2].rpartition(":")[0].strip("[]")
