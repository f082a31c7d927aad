"""Submissions of a run and their outcome, stored with the run as small files.

    requests/000001.json   settings, cluster and limits; the highest number is in force
    jobs/000001.json       the job that was started for this request
    jobs/000001-end.json   how its coordinator ended, if it could report
    address.json           address of the coordinator's scheduler, while it runs

The files contain no secrets: settings name files and environments, but hold no keys. Every function that reads one of
these files raises :class:`CheckpointError` if it is damaged.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dpdist.cluster.submission import Job
from dpdist.core.errors import CheckpointError, OutputExistsError
from dpdist.core.places import Place
from dpdist.core.records import sealed, unsealed
from dpdist.runs.cadence import CHECKPOINT_SECONDS
from dpdist.runs.limits import Limits
from dpdist.runs.methods import METHODS
from dpdist.runs.opening import open_run
from dpdist.storage.commits import commits, numbered, read_attributes, readable
from dpdist.storage.generations import KEEP
from dpdist.storage.preparing import PreparationStore


@dataclass(frozen=True)
class Request:
    """A request to start or continue a run.

    Parameters
    ----------
    identity : id of the run
    command : ``fit``, ``sva`` or ``topics``
    settings : of the model, as plain values
    cluster : of the cluster, as plain values
    after : number of the last commit when the request was made
    fresh : whether the request starts a new run, which replaces commits up to `after`, rather than continuing one
    max_laps, max_time : new limits
    data, holdout : new paths of rows and held-out rows, if they moved
    checkpoint_seconds : longest time between checkpoints
    keep : number of generations to keep
    lease : number of the run's lease when the request was made; a higher one shows that its coordinator has started
    place : for which it was made; if it is another place, this one is a copy
    """

    identity: str
    command: str
    settings: Mapping[str, object]
    cluster: Mapping[str, object] = field(default_factory=dict)
    after: int = 0
    fresh: bool = True
    max_laps: int | None = None
    max_time: float | None = None
    data: str | None = None
    holdout: str | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    keep: int = KEEP
    lease: int = 0
    place: str = ""

    @property
    def limits(self) -> dict[str, object]:
        """The limits that are given, by name."""
        return Limits(self.max_laps, self.max_time).given

    @property
    def asked(self) -> dict[str, object]:
        """The settings of a new run, with current paths of the data and the most recent limits."""
        places = {"data": self.data, "holdout": self.holdout}
        return {**self.settings, **{name: place for name, place in places.items() if place is not None}, **self.limits}


@dataclass(frozen=True)
class End:
    """How a coordinator ended: exit status, sentence and time; also recorded before a restart."""

    status: int
    sentence: str
    time: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))


@dataclass(frozen=True)
class Address:
    """The address of the scheduler of the request in force, while it runs."""

    address: str


#: File names of records, by kind; formatted with the number of the request.
FILES = {Job: "jobs/{:06d}.json", End: "jobs/{:06d}-end.json", Address: "address.json"}
Record = TypeVar("Record", Job, End, Address)


def record(place: Place, number: int, value: Job | End | Address) -> None:
    """Store a record of a request."""
    place.replace(FILES[type(value)].format(number), sealed(asdict(value)))


def recorded(place: Place, number: int, kind: type[Record]) -> Record | None:
    """The record of a request, or None."""
    remedy = "remove it; it only describes a job."
    values = _read(place, FILES[kind].format(number), remedy)
    return None if values is None else kind(**values)


def forget(place: Place, number: int, kind: type[Record]) -> None:
    """Remove a record of a request, such as that of an earlier start of its coordinator."""
    place.remove(FILES[kind].format(number))


def has_begun(place: Place, request: Request) -> bool:
    """Whether the run at a place is the requested one, not an older one that the request replaces; raises
    :class:`CheckpointError` if a file written since the request is damaged."""
    if not request.fresh:
        return True
    preparation = PreparationStore.found(place)
    if preparation is not None:
        return preparation.request == request.identity
    written = max(commits(place), default=0) > request.after
    return written and read_attributes(place.label).get("request") == request.identity


def found_since(place: Place, request: Request) -> str | None:
    """The outcome of the run, if it has ended since the request, whoever continued it; raises as :func:`has_begun`."""
    if not has_begun(place, request) or max(commits(place), default=0) <= request.after:
        return None
    store = open_run(place.label)
    fitted = store.fitted()
    return METHODS[store.method].outcome(fitted) if fitted is not None and fitted.stop is not None else None


def copied_from(place: Place, request: Request) -> str | None:
    """The place of the original submitted run, to which the job belongs, if this place is a copy of it; None if it is
    the original, possibly moved."""
    there = request.place
    moved = not there or ("://" not in there and not Path(there).exists())
    return None if there == place.identity or moved else there


def add_request(place: Place, request: Request, before: int) -> int:
    """Record a request after the one with number `before` (0: none), and return its number; raises
    :class:`OutputExistsError` if another request was recorded in the meantime."""
    if not place.create(f"requests/{before + 1:06d}.json", sealed(asdict(request))):
        raise OutputExistsError(
            f"{place.label} was submitted by another process at the same time; see: dpdist status {place.label}"
        )
    return before + 1


def newest_request(place: Place) -> int:
    """Number of the request in force; 0 if the run was not submitted."""
    with readable(place):
        return max(numbered(place, "requests"), default=0)


def latest_request(place: Place) -> tuple[int, Request]:
    """Number and contents of the request in force; raises :class:`CheckpointError` if the run was not submitted."""
    number = newest_request(place)
    remedy = f"restore it from a copy, or remove it, then continue with: dpdist resume {place.label} --cluster FILE"
    values = _read(place, f"requests/{number:06d}.json", remedy)
    if values is None:
        raise CheckpointError(
            f"{place.label} was not submitted; submit a run with: dpdist submit run.toml --cluster CLUSTER.toml"
        )
    return number, Request(**values)


def _read(place: Place, name: str, remedy: str) -> dict[str, Any] | None:
    data = place.read(name)
    return None if data is None else unsealed(data, f"{place.label}/{name}", remedy)
