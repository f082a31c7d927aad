"""Checks of a cluster before a run (``dpdist doctor``): what is wrong, and what to do about it.

They check that the run's place can be written, that workers arrive with the versions of this process, and that they
read the same data. Other faults, such as invalid certificates, are reported by the launch itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from distributed import Client
from rich.table import Table
from rich.text import Text

from dpdist.cli.terminal import MESSAGES, OUTPUT, as_options
from dpdist.cluster.certificates import ending_soon
from dpdist.cluster.kinds import ClusterConfig, read_cluster
from dpdist.core.errors import DpdistError
from dpdist.core.places import LocalPlace, Place, absolute, place_of
from dpdist.core.places.objects import ObjectPlace
from dpdist.data import as_source
from dpdist.execution.dask import refuse_other_versions

#: Seconds for which requests to an object store are repeated in these checks.
_PATIENCE = 20.0


class Level(Enum):
    """The severity of a finding, with its colour; a fault makes runs fail or end with other bits."""

    OK = "ok", "green"
    WARNING = "warning", "yellow"
    FAULT = "fault", "bold red"


class Finding(NamedTuple):
    """A result of a check: severity, subject, and what was found or has to be done."""

    level: Level
    subject: str
    found: str


def doctor(
    cluster: Annotated[Path, typer.Option(help="TOML file of the cluster, such as those in cluster_configs/.")],
    run: Annotated[str | None, typer.Option(help="Folder or s3:// URL to which a run will be written.")] = None,
    data: Annotated[str | None, typer.Option(help="Zarr array of rows that workers will read.")] = None,
    wait: Annotated[float, typer.Option(min=1, help="Seconds to wait for workers.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Plain values for scripts.")] = False,
) -> None:
    """Check a cluster, a run's place and data, and say what to fix; exits with 1 if there is a fault."""
    with MESSAGES.status("examining"):
        findings = [each._replace(found=as_options(each.found)) for each in examine(cluster, run, data, wait)]
    if as_json:
        typer.echo(json.dumps([{**each._asdict(), "level": each.level.value[0]} for each in findings], indent=2))
    else:
        table = Table("", "checked", "found", box=None, header_style="bold")
        for each in findings:
            table.add_row(Text(*each.level.value), Text(each.subject), Text(each.found))
        OUTPUT.print(table)
    if any(finding.level is Level.FAULT for finding in findings):
        raise typer.Exit(1)


def examine(cluster: Path, run: str | None, data: str | None, wait: float) -> list[Finding]:
    """All findings; the cluster is launched, given `wait` seconds for workers to arrive, and closed again."""
    found: list[Finding] = []
    with _faults_of("configuration", found):
        config = read_cluster(cluster)
        config.require()
        found.append(Finding(Level.OK, "configuration", f"{cluster}, type {config.type}"))
        if run is not None:
            with _faults_of("run", found):
                found += check_run(config, absolute(run))
        seen = None
        if data is not None:
            with _faults_of("data", found):
                seen = look_at_data()(absolute(data))
                found.append(Finding(Level.OK, "data", f"rows and columns: {as_source(absolute(data)).shape}"))
        with _faults_of("cluster", found), contextlib.closing(config.launch()) as backend:
            client = backend.client
            found += check_certificates(config)
            found += check_workers(client, config.expected, wait)
            if data is not None and seen is not None:
                found += check_data_on(client, absolute(data), seen)
    return found


@contextlib.contextmanager
def _faults_of(subject: str, found: list[Finding]) -> Iterator[None]:
    """Convert errors and warnings to findings."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            yield
        except (DpdistError, OSError, RuntimeError) as error:
            found.append(Finding(Level.FAULT, subject, str(error) or type(error).__name__))
    told = dict.fromkeys(str(each.message) for each in raised if each.category is UserWarning)
    found += [Finding(Level.WARNING, subject, each) for each in told]


def check_certificates(config: ClusterConfig) -> list[Finding]:
    """Findings about certificates in use that end soon."""
    soon = [] if config.certificates is None else ending_soon(config.certificates, config.roles)
    return [Finding(Level.WARNING, "certificates", each) for each in soon]


def check_workers(client: Client, expected: int | None, wait: float) -> list[Finding]:
    """A finding on whether the expected workers arrived in time; raises if one has other versions."""
    began = time.monotonic()
    with contextlib.suppress(TimeoutError):
        client.wait_for_workers(expected or 1, timeout=wait)
    there = len(client.scheduler_info(n_workers=-1)["workers"])
    refuse_other_versions(client)
    told = f"{there} of {expected or 'any'} at {client.scheduler.address} after {time.monotonic() - began:.1f} s"
    if there >= (expected or 1):
        return [Finding(Level.OK, "workers", told)]
    return [
        Finding(
            Level.WARNING if there else Level.FAULT, "workers", f"{told}; see their logs or queue, or increase --wait."
        )
    ]


def check_run(config: ClusterConfig, run: str) -> list[Finding]:
    """Findings on whether the coordinator can write a run at a path or URL."""
    config.check_run_path(run)
    place = place_of(run)
    place = LocalPlace(_existing(place.path)) if isinstance(place, LocalPlace) else ObjectPlace(run, _PATIENCE)
    faults = [Finding(Level.FAULT, "run", f"{run} {told}; choose another place.") for told in try_place(place)]
    return faults or [Finding(Level.OK, "run", f"{run} can be written")]


def _existing(path: Path) -> Path:
    """The nearest existing folder at or above a path, as the check must not create any."""
    return next(each for each in (path, *path.parents) if each.exists())


def try_place(place: Place) -> list[str]:
    """Guarantees that runs rely on and a place does not give; no files remain there."""
    folder = f"doctor-{uuid.uuid4().hex}"
    name, first, second = f"{folder}/trial", b"first", os.urandom(1000)
    try:
        created, again = place.create(name, first), place.create(name, second)
        kept = created and place.read(name) == first
        place.replace(name, second)
        kept = kept and place.read(name) == second
    finally:
        with contextlib.suppress(OSError):
            place.remove(folder)
    wrong = {
        "does not return what was written": not kept,
        "lets two processes create the same file, so that two coordinators could write to one run": again,
        "still lists files that were removed": bool(place.names(folder)),
    }
    return [told for told, found in wrong.items() if found]


def check_data_on(client: Client, data: str, ours: str) -> Sequence[Finding]:
    """Findings on whether every worker reads the same rows as this process."""
    seen = client.run(look_at_data(), data, on_error="return")
    wrong = {
        f"a worker on {address} read other rows ({theirs}); put the data at a path that all hosts share, or on s3://."
        for address, theirs in seen.items()
        if theirs != ours
    }
    right = Finding(Level.OK, "data", f"every worker ({len(seen)}) reads the same rows")
    return [Finding(Level.FAULT, "data", each) for each in sorted(wrong)] or [right]


def look_at_data() -> Callable[[str], str]:
    """A function that reads both ends of the rows at a path, and returns their shape and a digest of a few partitions.

    It is a closure, so that it is sent as code and not by name: workers may have another dpdist.
    """

    def tell(data: str) -> str:
        from dpdist.data import as_source

        source = as_source(data)
        ends = [source.partitions[i].load()[0].shape for i in (0, -1)]
        return f"{source.shape} {ends} {source.glance()}"

    return tell
