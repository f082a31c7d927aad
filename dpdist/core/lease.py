"""Leases: only the coordinator that holds the lease of a run may write to it; heartbeats show that it is alive.

    leases/000003.json   owner, number of heartbeats, and time for human readers

A process takes a lease by creating the file with the next number, which only one process can do; the highest number is
the lease in force. Whether its owner is alive is found by watching for further heartbeats, never by comparing clocks.
An owner that lost its lease (because it slept, or was cut off) finds the higher number before its next commit, and
stops.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

import psutil

from dpdist.core.errors import CheckpointError
from dpdist.core.places import LocalPlace, Place
from dpdist.core.records import sealed, unsealed

#: Seconds between two heartbeats, and seconds without one after which an owner counts as dead.
BEAT, SILENCE = 5.0, 20.0
#: Seconds to wait at the end for a heartbeat that is being written.
FAREWELL = 10.0
FOLDER = "leases"
#: What to do about a damaged lease, whose owner is unknown.
_REMEDY = (
    f"a running coordinator rewrites it within {BEAT:.0f} s, so try again after that. If it is still damaged then, no "
    "coordinator is running: remove the file."
)
_PROC = Path("/proc")


class Owner(NamedTuple):
    """A process: its machine, its process id there, and its start time, which distinguishes reuses of an id."""

    host: str
    machine: str
    pid: int
    began: int


class Beat(TypedDict):
    """The contents of a lease: its owner, the number of heartbeats, whether it was released, the time for human
    readers, and the place, which distinguishes copies of a run."""

    owner: dict[str, Any]  # the fields of :class:`Owner`
    beats: int
    released: bool
    time: str
    place: NotRequired[str]


class LeaseHeldError(CheckpointError):
    """Another coordinator writes to the run."""


class Lease:
    """A lease in force; see :func:`take_lease`.

    Parameters
    ----------
    place : of the run
    number : of the lease
    usurped : whether the previous owner was only presumed dead because of its silence, and may wake up
    """

    def __init__(self, place: Place, number: int, usurped: bool = False) -> None:
        self._place, self.number, self.usurped = place, number, usurped
        self._beats, self._ended, self._owner = 0, threading.Event(), this_process()
        self._overtaken = False
        self._thread = threading.Thread(target=self._live, name="dpdist-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise :class:`LeaseHeldError` if another coordinator took over, or the run is gone."""
        if self._is_gone():
            raise LeaseHeldError(
                f"{self._place.label} was moved, removed or replaced during the run, which therefore stops. If it was "
                "moved, continue it at its new path with: dpdist resume. Otherwise its results are lost: start anew."
            )
        if self._seen() != self.number or self._overtaken:
            number, found = latest_lease(self._place)
            found = None if number == self.number else found  # the new owner is gone again
            if found is not None and Owner(**found["owner"]) == self._owner:
                raise LeaseHeldError(
                    f"this process opened {self._place.label} a second time and continued it there; the earlier run "
                    "stops, and nothing is lost."
                )
            raise LeaseHeldError(
                f"another coordinator ({describe(found)}) took over {self._place.label} because this one gave no sign "
                "of life; this one stops, and nothing is lost."
            )

    def release(self) -> None:
        """Release the lease; if the store cannot be reached, the owner will be presumed dead."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join(FAREWELL)
            if not self._thread.is_alive() and not self._overtaken:  # it may be waiting for a store that is gone
                self._write(released=True)

    def withdraw(self) -> None:
        """Release the lease and remove its files, and folders that are then empty."""
        self._place.sweep(FOLDER)  # while nobody else writes there
        self.release()
        self._place.remove(_name(self.number))
        if isinstance(self._place, LocalPlace):
            with contextlib.suppress(OSError):  # another writer already uses the folder
                (self._place.path / FOLDER).rmdir()
                self._place.path.rmdir()

    def _is_gone(self) -> bool:
        """Whether the run's folder was removed or replaced, for a place on disk."""
        return isinstance(self._place, LocalPlace) and not (self._place.path / FOLDER).is_dir()

    def _live(self) -> None:
        while not self._ended.wait(BEAT):
            self._beats += 1
            with contextlib.suppress(Exception):  # as below
                if self._seen() > self.number:
                    return
            self._write(released=False)

    def _seen(self) -> int:
        """Number of the lease in force; records if it was ever a later one, because changes by its owner remain when it
        is gone."""
        newest = _newest(self._place)
        self._overtaken = self._overtaken or newest > self.number
        return newest

    def _write(self, released: bool) -> None:
        content = _content(self._place, self._owner, self._beats, released)
        with contextlib.suppress(Exception):  # whatever it is: the next beat retries, and commits check the lease
            self._place.renew(_name(self.number), content)


class Holder:
    """The store of a run at a place, where only the holder of the lease writes."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._lease: Lease | None = None

    def release(self) -> None:
        """Allow other writers."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def _check(self) -> None:
        """Raise :class:`CheckpointError` if the run was removed or taken over, so that no part of it is written
        again."""
        if self._lease is not None:
            self._lease.check()


@contextlib.contextmanager
def released_on_error(holder: Holder) -> Iterator[None]:
    """Release the lease if the body raises."""
    try:
        yield
    except BaseException:
        holder.release()
        raise


def take_lease(place: Place, patience: float = 0.0, say: Callable[[str], None] | None = None) -> Lease:
    """Become the one coordinator of a run.

    Parameters
    ----------
    place : of the run
    patience : seconds to wait for a living owner to end
    say : called with a sentence about what is awaited

    Raises
    ------
    LeaseHeldError
        If a living coordinator holds the run.
    """
    deadline = time.monotonic() + patience
    while True:
        number, found = latest_lease(place)
        if found is not None and lives(place, number, found, say):
            if time.monotonic() < deadline:
                time.sleep(min(1.0, BEAT))
                continue
            end = f"end it with: dpdist cancel {place.label}" if place.names("requests") else "end that process"
            raise LeaseHeldError(
                f"{place.label} is being written by another coordinator ({describe(found)}); wait for it, or {end}"
            )
        if place.create(_name(number + 1), _content(place, this_process(), 0, released=False)):
            if latest_lease(place)[0] > number + 1:
                continue  # the number was free only because a later owner had removed it
            place.remove(*map(_name, range(max(1, number - 8), number + 1)))
            return Lease(place, number + 1, usurped=found is not None and only_silence_tells(place, found))


def latest_lease(place: Place) -> tuple[int, Beat | None]:
    """Number and contents of the lease in force; 0 and None if there never was one. Raises :class:`CheckpointError` if
    it is damaged."""
    number = _newest(place)
    data = place.read(_name(number)) if number else None
    if data is None:
        return number, None
    return number, cast(Beat, unsealed(data, f"{place.label}/{_name(number)}", _REMEDY))


def _newest(place: Place) -> int:
    """Number of the lease in force; 0 if there never was one."""
    names = place.names(FOLDER)
    return max((int(name[:6]) for name in names if name[:6].isdigit() and name.endswith(".json")), default=0)


def lives(place: Place, number: int, found: Beat, say: Callable[[str], None] | None = None) -> bool:
    """Whether the owner of a lease is alive: looked up on this machine, watched for some time on others."""
    if not only_silence_tells(place, found):
        return not _is_over(found)
    if say is not None:
        say(f"checking for {SILENCE:.0f} s whether the coordinator on {found['owner']['host']} is still running")
    deadline = time.monotonic() + SILENCE
    while time.monotonic() < deadline:
        time.sleep(min(1.0, SILENCE / 4))
        newest, now = latest_lease(place)
        if newest != number or now is None or now["beats"] != found["beats"]:
            return now is None or not now["released"]
    return False


def worked_on(place: Place) -> bool | None:
    """Whether a coordinator works on a run, if that can be decided at once; None if it would need watching."""
    number, found = latest_lease(place)
    if found is None:
        return False
    return None if only_silence_tells(place, found) else lives(place, number, found)


def only_silence_tells(place: Place, found: Beat) -> bool:
    """Whether only silence can show that the owner of a lease is dead: it is on another machine, works on the original
    of this copied place, or is a process that this user may not inspect, and did not release the lease."""
    here = found["owner"]["machine"] == _machine() and found.get("place", place.identity) == place.identity
    return not _is_over(found) and (not here or is_hidden(found["owner"]["pid"]))


def _is_over(found: Beat) -> bool:
    """Whether it is known at once that the owner of a lease is dead, released it, or is this process."""
    owner, here = Owner(**found["owner"]), this_process()
    return found["released"] or (owner.machine == here.machine and (owner == here or _is_gone(owner)))


def _is_gone(owner: Owner) -> bool:
    """Whether a process of this machine has ended, as far as this user may tell."""
    return process_began(owner.pid) != owner.began and not is_hidden(owner.pid)


def describe(found: Beat | None) -> str:
    """The owner of a lease, for messages."""
    if found is None:
        return "unknown"
    return f"process {found['owner']['pid']} on {found['owner']['host']}, last sign of life {found['time']}"


def this_process() -> Owner:
    """The identity of this process."""
    return Owner(platform.node(), _machine(), os.getpid(), process_began(os.getpid()))


def process_began(pid: int) -> int:
    """Start time of a process on this machine: clock ticks since boot on Linux, else seconds since 1970; 0 if there is
    none."""
    if not _PROC.is_dir():
        return int(psutil.Process(pid).create_time()) if psutil.pid_exists(pid) else 0
    try:
        fields = (_PROC / f"{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def is_hidden(pid: int) -> bool:
    """Whether a process exists on this machine that this user cannot look up, as ``/proc`` may hide those of others."""
    if not _PROC.is_dir() or os.access(_PROC / f"{pid}/stat", os.R_OK):
        return False
    try:
        with contextlib.suppress(PermissionError):
            os.kill(pid, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    return True


def _machine() -> str:
    """A name that differs between machines, between boots, and between containers with their own process ids."""
    if not _PROC.is_dir():
        return f"{platform.node()} {uuid.getnode():x}"
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{platform.node()} {boot} {(_PROC / 'self/ns/pid').readlink()}"


def _name(number: int) -> str:
    return f"{FOLDER}/{number:06d}.json"


def _content(place: Place, owner: Owner, beats: int, released: bool) -> bytes:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    told = {"owner": owner._asdict(), "beats": beats, "released": released, "time": now, "place": place.identity}
    return sealed(told)
