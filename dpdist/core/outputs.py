"""Outputs that appear complete or not at all: swapped in on local disk; elsewhere the metadata is written last.

An output that several processes or one long process write has one writer at a time (:func:`sole_writer`).
"""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from dpdist.core.errors import InputError, OutputExistsError
from dpdist.core.lease import Beat, Lease, LeaseHeldError, describe, latest_lease, lives, take_lease
from dpdist.core.places import Place, place_of

#: File name of the metadata of a Zarr array or group.
METADATA = "zarr.json"
#: File name of the plan of an unfinished output at a URL.
PLAN = "plan.txt"
#: A folder is replaced only if it contains one of these files.
_ZARR_MARKS = (METADATA, ".zarray", ".zgroup")
#: Folders of which a run has at least one.
_RUN_MARKS = ("commits", "preparing", "requests")
#: Folders of a run, in which only the run may write; other files there are removed.
_RUN_FOLDERS = (*_RUN_MARKS, "generations", "jobs", "leases", "objects", "problems")


def check_apart(out: str | os.PathLike[str], *read: str | os.PathLike[str]) -> None:
    """Raise :class:`InputError` if writing `out` would replace an input, or would add a file to a folder or pattern of
    inputs."""
    for each in read:
        if _holds(os.fspath(out), os.fspath(each)):
            raise InputError(
                f"the result would replace {each} while it is being read; choose another path with out=PATH."
            )
        if _is_among(os.fspath(out), os.fspath(each)):
            raise InputError(
                f"{out} would become one of the input files of {each}; choose a path outside them with out=PATH."
            )


def _holds(one: str, other: str) -> bool:
    """Whether a path or URL equals another or is a folder that contains it."""
    other = other.removeprefix("file://")  # Zarr reads such URLs, but nothing is written to them
    if "://" in one or "://" in other:
        return f"{other.rstrip('/')}/".startswith(f"{one.rstrip('/')}/")
    target, path = Path(one).resolve(), Path(other).resolve()
    return target == path or target in path.parents


def _is_among(one: str, several: str) -> bool:
    """Whether a path matches a pattern, or would be a Parquet file of a folder, whether or not the files exist."""
    if "://" in one or "://" in several:
        return False
    target, path = Path(one).resolve(), Path(several).resolve()
    if path.is_dir():
        return path in target.parents and target.suffix.lower() == ".parquet"
    if "**" in several:
        return fnmatch.fnmatchcase(str(target), str(path))
    return len(target.parts) == len(path.parts) and all(map(fnmatch.fnmatchcase, target.parts, path.parts))


def claim_folder(path: str | os.PathLike[str], overwrite: bool) -> Path:
    """`path` as a folder on local disk to write to. Raises :class:`OutputExistsError` if something is there and
    `overwrite` is false, or it is not Zarr, and :class:`InputError` if its folder does not exist or it is a URL."""
    require_path(path, "this output", "out.zarr")
    target = Path(path)
    if target.is_dir():
        require_unwritten(place_of(target))
        _refuse_run(place_of(target))
    if target.exists() and not overwrite:
        raise OutputExistsError(f"{target} exists; choose another name, or replace it with overwrite=True.")
    if target.exists() and not any((target / mark).is_file() for mark in _ZARR_MARKS):
        raise OutputExistsError(f"{target} exists and is not Zarr, so it is not replaced; choose another name.")
    check_parent(target)
    return target


def claim_url(url: str, overwrite: bool) -> None:
    """Check that a URL may be written to; an unfinished output there may be replaced. Raises :class:`OutputExistsError`
    if something exists there and `overwrite` is false, or it is not Zarr."""
    require_unwritten(place_of(url))
    _refuse_run(place_of(url))
    refuse_within_run(url)
    names = place_of(url).names("")
    if METADATA in names and not overwrite and PLAN not in names:
        raise OutputExistsError(f"{url} exists; choose another name, or replace it with overwrite=True.")
    if names and not {METADATA, PLAN} & set(names):
        raise OutputExistsError(f"{url} holds other data than Zarr, so it is not replaced; choose another name.")


def claim_output(out: str | os.PathLike[str], overwrite: bool) -> None:
    """Check that Zarr may be written to a path or URL; raises as :func:`claim_folder` and :func:`claim_url`."""
    if "://" in os.fspath(out):
        claim_url(os.fspath(out), overwrite)
    else:
        claim_folder(out, overwrite)


def require_unwritten(place: Place) -> None:
    """Raise :class:`OutputExistsError` if a living process writes to the run at a place."""
    number, found = latest_lease(place)
    if found is not None and lives(place, number, found):
        raise _being_written(place.label, found)


def is_run(place: Place) -> bool:
    """Whether a run or model is at a place."""
    return any(place.names(folder) for folder in _RUN_MARKS)


def _refuse_run(place: Place) -> None:
    """Raise :class:`OutputExistsError` if a run or model is at a place."""
    if is_run(place):
        raise OutputExistsError(
            f"{place.label} is a run or model of dpdist, which other data do not replace; remove it or choose another "
            "name."
        )


def _being_written(label: str, owner: Beat | None) -> OutputExistsError:
    return OutputExistsError(
        f"{label} is being written by another process ({describe(owner)}); wait for it, or choose another name."
    )


@contextlib.contextmanager
def sole_writer(target: str) -> Iterator[Lease]:
    """A lock on an output, so that only one living process writes to a path or URL; raises :class:`OutputExistsError`
    if another process writes there."""
    path = Path(target)
    place = place_of(f"{target.rstrip('/')}/.writer" if "://" in target else path.with_name(f".{path.name}.writer"))
    try:
        lease = take_lease(place)
    except LeaseHeldError as held:
        raise _being_written(target, latest_lease(place)[1]) from held
    try:
        yield lease
    finally:
        lease.withdraw()


def require_path(out: str | os.PathLike[str], what: str, way_on: str) -> None:
    """Raise :class:`InputError` if `out`, the path of `what`, is a URL; `way_on` is an example of a path."""
    if "://" in os.fspath(out):
        raise InputError(f"{what} is written to local disk; got the URL {out}. Give a path such as {way_on}.")


def check_parent(target: Path) -> None:
    """Raise :class:`InputError` unless the parent folder of `target` exists, or if `target` is a broken link."""
    if not target.absolute().parent.is_dir():
        raise InputError(f"the folder {target.absolute().parent} does not exist; create it first.")
    if target.is_symlink() and not target.exists():
        raise InputError(
            f"{target} is a link to {target.readlink()}, which does not exist; create it, or remove the link."
        )
    refuse_within_run(target.resolve().as_posix())


def refuse_within_run(where: str) -> None:
    """Raise :class:`InputError` if a resolved path or a URL is within one of the folders of a run."""
    parts = where.split("/")
    for above in range(4 if "://" in where else 2, len(parts)):  # neither a bucket nor the root of a disk is a run
        if parts[above] in _RUN_FOLDERS:
            run = place_of("/".join(parts[:above]))
            if run.names("leases") and is_run(run):
                raise InputError(
                    f"{where} lies within the run {run.label}, which deletes files of others; choose another path."
                )


def put_in_place(aside: Path, target: Path) -> None:
    """Replace `target` by the folder `aside`, in one atomic step if the system supports it.

    Otherwise `target` is first moved away, and moved back if the rest fails.
    """
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if not target.exists():
        aside.rename(target)
        return
    try:
        aside.rename(old)  # under a name that no process continues with, before and after the exchange
        if not _exchanged(old, target):
            target.rename(aside)
            old.rename(target)
            aside.rename(old)
    except BaseException:
        if not target.exists() and aside.exists():
            aside.rename(target)
        raise
    if old.is_symlink():
        old.unlink()
    else:
        shutil.rmtree(old, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two paths atomically; False if the system cannot, which Linux can on most of its file systems."""
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    here = ctypes.c_int(-100)  # AT_FDCWD: paths are relative to the current folder
    return bool(exchange(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(2)) == 0)  # RENAME_EXCHANGE
