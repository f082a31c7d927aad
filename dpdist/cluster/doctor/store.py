"""Can the run's place be written, and are the data there for every worker?"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr

from dpdist.cluster.doctor.facts import Member, ask_each
from dpdist.cluster.doctor.findings import Finding, fault, of_error, ok, once, warning
from dpdist.cluster.kinds import ClusterConfig
from dpdist.core.errors import DpdistError
from dpdist.core.places import LocalPlace, Place
from dpdist.core.places.objects import ObjectPlace, is_object_url
from dpdist.data import Source, ZarrSource, as_source
from dpdist.data.zarr import COMPLETE
from dpdist.storage.lease import describe, latest_lease, lives

#: Bytes of the large write: about a checkpoint.
LARGE = 32 * 2**20
#: Seconds that the small and the large write may take without a warning.
SLOW = (2.0, 10.0)
#: Seconds for which requests to an object store are repeated here.
_PATIENCE = 20.0
_WRITABLE = "choose another path, or correct its permissions or credentials"


@dataclass(frozen=True)
class Trial:
    """What came of writing to a place; times in seconds.

    Parameters
    ----------
    created, created_twice : what was said of creating one file, and of creating it again
    same : whether what was read is what was written
    small, large : times of the two writes
    left : whether something was left behind
    """

    created: bool
    created_twice: bool
    same: bool
    small: float
    large: float
    left: bool


def check_run(config: ClusterConfig, run: str) -> list[Finding]:
    """Can the coordinator write a run at a path or URL, and does no other do so?"""
    try:
        config.check_run_path(run)
        place = ObjectPlace(run, _PATIENCE) if is_object_url(run) else LocalPlace(run)
        held, told = _holder(place), judge_trial(place.label, try_place(place))
    except (DpdistError, OSError) as error:
        return [of_error("run", error, _WRITABLE)]
    return [*held, *told]


def _holder(place: Place) -> list[Finding]:
    number, found = latest_lease(place)
    if found is None or not lives(place, number, found):
        return []
    told = f"{place.label} is being written by another coordinator ({describe(found)})"
    return [fault("run", told, f"wait for it, or end it with: dpdist cancel {place.label}")]


def try_place(place: Place) -> Trial:
    """Create, create again, replace by much, read back and remove a file, which leaves nothing."""
    folder = f"doctor-{uuid.uuid4().hex}"
    name, small, large = f"{folder}/trial", b"trial", os.urandom(LARGE)
    with _cleared(place):
        try:
            began = time.perf_counter()
            created = place.create(name, small)
            between = time.perf_counter()
            twice = place.create(name, large)
            same, start = place.read(name) == small, time.perf_counter()
            place.replace(name, large)
            end = time.perf_counter()
            same = same and place.read(name) == large
        finally:
            with contextlib.suppress(*place.failures):
                place.remove(folder)
        return Trial(created, twice, same, between - began, end - start, bool(place.names(folder)))


@contextlib.contextmanager
def _cleared(place: Place) -> Iterator[None]:
    """Remove, where they are empty, folders that are made meanwhile; object stores have none."""
    paths = [place.path, *place.path.parents] if isinstance(place, LocalPlace) else []
    made = [path for path in paths if not _is_there(path)]
    try:
        yield
    finally:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def judge_trial(label: str, trial: Trial) -> list[Finding]:
    """Does the place keep what a run relies on?"""
    found = []
    if not trial.created or not trial.same:
        found.append(fault("run", f"{label} does not give back what was written", "choose another place"))
    if trial.created_twice:
        told = f"{label} lets a file be created twice, so that two coordinators could write one run"
        found.append(fault("run", told, "choose a file system with hard links, or a store that heeds If-None-Match"))
    if trial.left:
        found.append(fault("run", f"{label} keeps files that were removed", "allow removing, not only writing"))
    times = f"a small write takes {trial.small:.3f} s, one of {LARGE >> 20} MiB {trial.large:.2f} s"
    if trial.small > SLOW[0] or trial.large > SLOW[1]:
        found.append(warning("run", f"{label} is slow: {times}", "choose a nearer place, or fewer checkpoints"))
    return once(found, ok("run", f"{label} can be written: {times}"))


@dataclass(frozen=True)
class Rows:
    """The data as one process sees them.

    Parameters
    ----------
    ends : (rows, columns) of the first and last partition
    glance : digests of a few partitions; empty where they were not taken
    """

    ends: tuple[tuple[int, int], ...]
    glance: str


def check_data(data: str) -> tuple[list[Finding], Rows | None]:
    """The data as this process sees them; None if it does not."""
    try:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", UserWarning)
            source = as_source(data)
            rows = look_at(source)
    except (DpdistError, OSError) as error:
        return [of_error("data", error, "check the path, and that it can be read")], None
    return judge_storage(source, [str(each.message) for each in raised if each.category is UserWarning]), rows


def look_at(source: Source) -> Rows:
    """Both ends of the data, and a look at a few partitions."""
    partitions = source.partitions
    ends = tuple(partitions[i].load()[0].shape for i in (0, -1))
    return Rows(ends, source.glance())


def judge_storage(source: Source, warned: Sequence[str]) -> list[Finding]:
    """Would a missing or damaged chunk be noticed?"""
    rows, columns = source.shape
    found = [warning("data", told.partition("; ")[0], "copy or convert the rows again") for told in warned]
    if isinstance(source, ZarrSource):
        if source.array.attrs.get(COMPLETE) is not True:
            found.append(
                warning(
                    "data",
                    f"{source.label} does not say that all of its chunks were written: one that is missing reads as "
                    f"{source.array.fill_value}",
                    "write it with dpdist convert",
                )
            )
        if not has_checksums(source.array):
            told = f"chunks of {source.label} have no checksums: a damaged one may go unnoticed"
            found.append(warning("data", told, "write it with dpdist convert, or with zarr.codecs.Crc32cCodec"))
    return once(found, ok("data", f"{rows} rows of {columns} columns, complete and with checksums"))


def has_checksums(array: zarr.Array) -> bool:
    """Whether damage of any chunk is found when it is read."""
    return _names_checksum(array.metadata.to_dict().get("codecs", ()))


def _names_checksum(codecs: Any) -> bool:
    """A shard's index may have a checksum although its chunks have none."""
    return any(
        codec["name"] == "crc32c" or _names_checksum(codec.get("configuration", {}).get("codecs", ()))
        for codec in codecs
    )


def check_data_on(client: Any, workers: Sequence[Member], data: str, ours: Rows, seconds: float) -> list[Finding]:
    """Does every worker read the rows that this process reads?"""
    if not workers:
        return []
    firsts = {worker.host: worker.address for worker in reversed(workers)}.values()
    look = _ask_rows()
    asked = {worker.address: (look, (data, worker.address in firsts)) for worker in workers}
    told = ask_each(client, asked, seconds)
    hosts = {worker.address: worker.host for worker in workers}
    seen = [(hosts[name], Rows(*each) if isinstance(each, tuple) else each) for name, each in told.items()]
    return judge_rows(seen, ours)


def judge_rows(seen: Sequence[tuple[str, Rows | Exception]], ours: Rows) -> list[Finding]:
    """Do workers see the rows that this process sees?

    Parameters
    ----------
    seen : a worker's host, and rows there or why they could not be read
    """
    found = []
    for host, rows in seen:
        if isinstance(rows, Exception):
            told = f"workers on {host} cannot read them ({type(rows).__name__}: {rows})"
            found.append(fault("data", told, "put them where every worker sees them under the same path, or on s3://"))
        elif rows.ends != ours.ends or rows.glance not in ("", ours.glance):
            told = f"workers on {host} read other rows than this process"
            found.append(fault("data", told, "copy the same data to every host, or name a place that all share"))
    return once(found, ok("data", f"read by every worker ({len(seen)}), the same on every host"))


def _ask_rows() -> Callable[[str, bool], tuple[tuple[tuple[int, int], ...], str]]:
    """Made here, so that it is sent as code: another dpdist may have no doctor."""

    def tell(data: str, with_glance: bool) -> tuple[tuple[tuple[int, int], ...], str]:
        from dpdist.data import as_source

        source = as_source(data)
        partitions = source.partitions
        ends = tuple(partitions[i].load()[0].shape for i in (0, -1))
        return ends, source.glance() if with_glance else ""

    return tell
