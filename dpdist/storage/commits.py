"""Commits, which define the current generation of a run, and the check that a new run may take a place."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import NotRequired, TypedDict, cast

from dpdist.core.errors import CheckpointError, OutputExistsError
from dpdist.core.outputs import check_parent, refuse_within_run, require_unwritten
from dpdist.core.places import LocalPlace, Place, place_of
from dpdist.core.records import unsealed
from dpdist.storage import codec

#: Manifest of a run without a checkpoint; see :mod:`dpdist.storage.preparing`.
PREPARING = "preparing/manifest.json"

#: Contents of a run that was killed before it had results, of which nothing would be missed.
_BEFORE_ROWS = {"zarr.json", "leases", "problems", "preparing"}

#: Folders and files of submissions; see :mod:`dpdist.cluster.submitted`.
REQUESTS = ("requests", "jobs", "address.json")


class Commit(TypedDict):
    """The contents of a generation, as plain values.

    Parameters
    ----------
    format, method, versions : format version, method, and package versions of the writer
    problem, generation, objects : names of its groups; `generation` is empty before the first
    digests : of the files of each group
    settings : of the run, as plain values
    fingerprint : of its data; empty for a saved model
    base : number of the commit that an unfinished extension started from
    taken : digests of the data of earlier generations
    limits : changed limits, parameters by name
    request : identity of the submission that started the run, if any
    keep : number of generations to keep
    number, lease, time : of the commit, once it is made
    """

    format: int
    method: str
    versions: dict[str, str]
    problem: str
    generation: str
    objects: list[str]
    digests: dict[str, dict[str, str]]
    settings: Mapping[str, object]
    fingerprint: Mapping[str, object]
    base: NotRequired[int]
    taken: NotRequired[list[str]]
    limits: NotRequired[Mapping[str, object]]
    request: NotRequired[str]
    keep: NotRequired[int]
    number: NotRequired[int]
    lease: NotRequired[int]
    time: NotRequired[str]


def token() -> str:
    """A random name that has never been used."""
    return uuid.uuid4().hex[:12]


def commit_name(number: int) -> str:
    """The file name of a commit."""
    return f"commits/{number:06d}.json"


def commits(place: Place) -> list[int]:
    """Numbers of the commits at a place, ascending."""
    return numbered(place, "commits")


def numbered(place: Place, folder: str) -> list[int]:
    """Numbers of the records in a folder, ascending."""
    names = [name.removesuffix(".json") for name in place.names(folder)]
    return sorted(int(name) for name in names if name.isdigit())


def read_commit(place: Place, number: int) -> Commit | None:
    """The contents of a commit, or None if it is gone; raises :class:`CheckpointError` if it is damaged."""
    data, label = place.read(commit_name(number)), f"{place.label}/{commit_name(number)}"
    if data is None:
        return None
    remedy = "restore it from a copy, or remove it to continue from the previous checkpoint."
    found = unsealed(data, label, remedy)
    if found["number"] != number:
        raise CheckpointError(f"{label} is a copy of another commit; {remedy}")
    return cast(Commit, found)


def read_attributes(path: str | os.PathLike[str]) -> Commit:
    """The current commit of the store at `path`; raises :class:`CheckpointError` if there is no readable one."""
    place = place_of(path)
    with readable(place):
        numbers = commits(place)
        attributes = read_commit(place, numbers[-1]) if numbers else None
    if attributes is None:
        if (where := preparation_told(place)) is not None:
            raise CheckpointError(
                f"{path} has no checkpoint yet; the run is being prepared ({where}). Wait for it, or, if it was "
                f"killed, continue with: dpdist resume {path}"
            )
        if place.names("requests"):
            raise CheckpointError(
                f"{path} was submitted but has no checkpoint yet; see: dpdist status {path}. If its job has ended, "
                f"continue with: dpdist resume {path} --cluster FILE"
            )
        raise CheckpointError(
            f"there is no dpdist run or model at {path}; check the path, or create one with: dpdist fit"
        )
    if attributes["format"] != codec.FORMAT:
        age = "newer" if attributes["format"] > codec.FORMAT else "older"
        raise CheckpointError(
            f"{path} was written in format {attributes['format']}, {age} than this dpdist reads "
            f"({codec.FORMAT}); install dpdist {attributes['versions'].get('dpdist', '?')}, which wrote it."
        )
    return attributes


def claim(path: str | os.PathLike[str], overwrite: bool) -> Place:
    """The place at `path`, checked to be free for a new run. Raises :class:`OutputExistsError` if something exists
    there and `overwrite` is false, or it is not a run, and :class:`InputError` if its parent folder does not exist, or
    is within a run."""
    place = place_of(path)
    with readable(place):
        free = not place.exists() or _only_leftovers(place)
        ours = _is_run(place) or (not free and _only_begun(place))
    if ours and not overwrite:
        require_unwritten(place)
        if (where := preparation_told(place)) is not None:
            raise OutputExistsError(
                f"{path} was being prepared ({where}); continue with: dpdist resume {path}, or replace it with "
                "overwrite=True."
            )
        raise OutputExistsError(f"{path} exists; choose another name, or replace it with overwrite=True.")
    if isinstance(place, LocalPlace):
        check_parent(place.path)
    else:
        refuse_within_run(place.where)
    if not free and not ours:
        raise OutputExistsError(f"{path} exists and is not a dpdist run, so it is not replaced; choose another name.")
    return place


def _is_run(place: Place) -> bool:
    folder, _, manifest = PREPARING.partition("/")
    return bool(commits(place) or place.names("requests") or manifest in place.names(folder))


def preparation_told(place: Place) -> str | None:
    """The progress of a run without a checkpoint; None if there is no such run."""
    with readable(place):
        data = None if commits(place) else place.read(PREPARING)
    if data is None:
        return None
    remedy = "remove it and start the run again."
    told: str = unsealed(data, f"{place.label}/{PREPARING}", remedy).get("told", "begun")
    return told


def forget_requests(place: Place) -> None:
    """Remove the submissions of an earlier run at a place."""
    place.remove(*REQUESTS)


def _only_leftovers(place: Place) -> bool:
    """Whether a folder is empty, or holds only remains of a run killed before its first commit, or of a submission that
    could not be written."""
    found = set(place.names(""))
    return found <= {"requests"} or (found <= _BEFORE_ROWS and "leases" in found)


def _only_begun(place: Place) -> bool:
    """Whether a folder holds nothing but what a run writes until its first commit."""
    found = set(place.names(""))
    return found <= _BEFORE_ROWS | {"commits", "generations", "objects"} and "leases" in found


def named_groups(found: Iterable[Commit | None]) -> set[str]:
    """All groups named in some commits."""
    names: set[str] = set()
    for commit in found:
        if commit is not None:
            names |= {commit["problem"], commit["generation"], *commit["objects"]}
    return names


@contextlib.contextmanager
def writable(place: Place) -> Iterator[None]:
    """Convert the system's error of a failed write to a :class:`CheckpointError`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint could not be written to {place.label} ({_words(error)}); {_after_failure(place, error)}"
        ) from error


def _after_failure(place: Place, error: OSError) -> str:
    """What is still stored after a failed write, and what to do; continues a message after a semicolon."""
    remedy, begun = "Free disk space or make the folder writable", True
    if error.errno == errno.EOPNOTSUPP:
        remedy = "Choose a folder on another file system"
    with contextlib.suppress(CheckpointError, ValueError, OSError):
        begun = _is_run(place)
    if begun:
        again = f"{remedy}, then repeat the command; a fit that was stopped continues with: dpdist resume {place.label}"
        return f"the previous one is intact. {again}"
    return f"nothing was stored there before. {remedy}, then start again."


@contextlib.contextmanager
def readable(place: Place) -> Iterator[None]:
    """Convert the system's error of a failed read to a :class:`CheckpointError`."""
    try:
        yield
    except NotADirectoryError as error:
        told = (
            f"{place.label} should be the folder of a run or model; it is a file, or in one. Give the folder of a fit."
        )
        raise CheckpointError(told) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{place.label} cannot be read ({_words(error)}); correct this and try again.") from error


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
