"""Generations of a run or model at a path or URL, of which one becomes current in one atomic step.

    PATH/zarr.json                     makes the folder a Zarr group
    PATH/commits/000007.json           defines the contents of generation 7; created last, and never changed
    PATH/problems/4f21c0/              everything fixed from the start
    PATH/generations/000007-9ae310/    everything that changes
    PATH/objects/000003-0017-77d2aa/   immutable parts shared by generations
    PATH/leases/000002.json            the current writer

The highest commit is the current one. Everything that a commit names is durable before the commit is created, under
names that are used once. Therefore a kill at any byte leaves the previous generation intact, and a writer that was
wrongly taken for dead does no damage. The last few generations are kept; groups that no kept commit names are removed.

A commit contains a digest of itself and of all files of its groups. Everything is compared with these digests when it
is read, so that any damage raises an error instead of giving wrong numbers.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Self

import zarr

from dpdist.core.checks import FLAG
from dpdist.core.errors import CheckpointError
from dpdist.core.lease import FOLDER as LEASES
from dpdist.core.lease import Holder, Lease, LeaseHeldError, released_on_error, take_lease
from dpdist.core.places import Place, place_of
from dpdist.core.records import sealed
from dpdist.core.versions import versions
from dpdist.data.base import DIGESTS, Source, cut_as_before
from dpdist.data.checked import CheckedSource
from dpdist.storage import codec
from dpdist.storage.commits import (
    Commit,
    claim,
    commit_name,
    commits,
    forget_requests,
    named_groups,
    read_attributes,
    read_commit,
    readable,
    token,
    writable,
)
from dpdist.storage.fingerprints import digest_of_data, digests_in, require_same_identity, warn_of_versions

#: Default number of generations to keep.
KEEP = 2
_ROOT = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}, indent=2).encode()

#: Folders of the groups that commits name.
_FOLDERS = ("generations", "objects", "problems")


class GenerationStore(Holder):
    """A series of generations; a subclass defines their contents.

    Parameters
    ----------
    place : where they are stored
    attributes : of the current commit, or of the next one before the first
    """

    def __init__(self, place: Place, attributes: Commit) -> None:
        super().__init__(place)
        self.attributes = attributes
        self.keep = attributes.get("keep", KEEP)  # number of generations
        self._held = 0  # number of the last lease of this store
        self._failure: Exception | None = None  # of an object that later generations need
        self._added: dict[str, dict[str, str]] = {}  # completely written objects, and the digests of their files

    @classmethod
    def open(cls, path: str | os.PathLike[str], *methods: str) -> Self:
        """The store at `path`, made by one of `methods`, or by any method if none is given; raises
        :class:`CheckpointError` if there is none, another method made it, or its format is of another version."""
        store = cls(place_of(path), read_attributes(path))
        if methods and store.method not in methods:
            needed = " or ".join(f"'{method}'" for method in methods)
            raise CheckpointError(
                f"{path} should be a model made by {needed}; it was made by '{store.method}'. Give another one."
            )
        return store

    @classmethod
    def begin(
        cls,
        path: str | os.PathLike[str],
        method: str,
        write: Callable[[zarr.Group], None],
        settings: Mapping[str, object],
        fingerprint: Mapping[str, object],
        overwrite: bool = False,
        request: str = "",
    ) -> Self:
        """A new store at `path`, visible to others after its first commit; `write` fills the group of the problem."""
        place = claim(path, FLAG.take("overwrite", overwrite))
        problem = f"problems/{token()}"
        attributes: Commit = {
            "format": codec.FORMAT,
            "method": method,
            "problem": problem,
            "generation": "",
            "objects": [],
            "settings": settings,
            "fingerprint": fingerprint,
            "versions": versions(),
            "digests": {},
        }
        if request:
            attributes["request"] = request
        store = cls(place, attributes)
        with released_on_error(store), writable(place):
            store.lock()  # first, so that what is left by a killed process is known as such
            place.create("zarr.json", _ROOT)
            if not request:
                forget_requests(place)
            attributes["digests"] = {problem: place.fill(problem, write)}
        return store

    @property
    def path(self) -> str:
        """The path or URL."""
        return self.place.label

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.attributes["method"]

    @property
    def settings(self) -> Mapping[str, object]:
        """The settings of the run, as plain values."""
        return self.attributes["settings"]

    @property
    def number(self) -> int:
        """Number of the current commit, from 1; 0 before the first."""
        return self.attributes.get("number", 0)

    def lock(self) -> None:
        """Become the only writer of the run, unless this store already is; see :func:`dpdist.core.lease.take_lease`.
        Raises :class:`LeaseHeldError` if another coordinator writes to the run, or did so since this store last held
        the lease."""
        if self._lease is not None:
            return
        with writable(self.place):
            self._lease = take_lease(self.place)
            with released_on_error(self):
                self._arrive(self._lease)
            self._held = self._lease.number

    def _arrive(self, lease: Lease) -> None:
        """Update this store to the state left by the previous writer."""
        if self._held not in (0, lease.number - 1):
            raise LeaseHeldError(f"another coordinator has written to {self.path}; see: dpdist status {self.path}")
        numbers = commits(self.place)
        if lease.usurped and numbers:
            self._fence(numbers[-1])
        if self.number:
            self.attributes = read_attributes(self.place.where)
        if not self._held:
            self._sweep()

    def _fence(self, number: int) -> None:
        """Repeat the current commit, to stop a writer that paused between its check of the lease and its commit.

        The process that first creates the next number wins. If it is the other writer, its commit is repeated in turn.
        """
        while (commit := read_commit(self.place, number)) is not None and not self.place.create(
            commit_name(number + 1), self._signed(number + 1, commit)
        ):
            number += 1

    def problem_group(self) -> zarr.Group:
        """The group of everything that is fixed; raises as :meth:`group`."""
        return self.group(self.attributes["problem"])

    def holds(self, part: str) -> bool:
        """Whether the current generation has a group `part`."""
        return f"{part}/zarr.json" in self.attributes["digests"][self.attributes["generation"]]

    def generation(self, part: str) -> zarr.Group:
        """The group `part` of the current generation; raises as :meth:`group`."""
        return self.group(self.attributes["generation"], part)

    def group(self, name: str, part: str = "") -> zarr.Group:
        """A group named in the current commit, or its subgroup `part`; raises :class:`CheckpointError` if it was
        changed since it was written, or cannot be read."""
        above = f"{part}/" if part else ""
        named = self.attributes["digests"][name].items()
        digests = {file.removeprefix(above): digest for file, digest in named if file.startswith(above)}
        with readable(self.place):
            try:
                return self.place.group(f"{name}/{part}".rstrip("/"), digests)
            except CheckpointError as error:
                raise CheckpointError(self._told(name, error)) from error

    def _told(self, name: str, error: CheckpointError) -> str:
        """The error message for an unreadable group; damage of the problem affects all generations."""
        if self.number not in (0, *commits(self.place)):
            return f"{self.path} was continued or removed while checkpoint {self.number} was read; try again."
        if name == self.attributes["problem"]:
            return str(error)
        last = f"{self.path}/{commit_name(self.number)}"
        return f"{error} To return to the previous checkpoint, if it is not damaged, remove {last}"

    def add_object(self, name: str, write: Callable[[zarr.Group], None]) -> None:
        """Write an immutable part that later generations may name; raises :class:`CheckpointError` if it cannot be
        written."""
        try:
            with writable(self.place):
                self._added[name] = self.place.fill(name, write)
        except Exception as error:
            self._failure = error
            raise

    def add_generation(
        self,
        write: Callable[[zarr.Group], None],
        objects: Sequence[str] = (),
        files: Mapping[str, dict[str, str]] = MappingProxyType({}),
        last: bool = False,
    ) -> None:
        """Write the next generation, which shares `objects` with others, and make it current.

        Parameters
        ----------
        write : fills its group
        objects : names of objects that were added
        files : digests of further files, written by workers, by folder
        last : whether the generation that an extension started from is no longer needed

        Raises
        ------
        CheckpointError
            If it cannot be written, or another writer took over; the current generation is then unchanged.
        """
        if self._failure is not None:
            raise self._failure
        self.lock()
        shared, known = sorted([*objects, *files]), {**self.attributes["digests"], **self._added, **files}
        digests = {each: known[each] for each in (self.attributes["problem"], *shared)}
        with writable(self.place):
            number = max(commits(self.place), default=0) + 1
            name = f"generations/{number:06d}-{token()}"
            try:
                digests[name] = self.place.fill(name, write)
                content: Commit = {**self.attributes, "generation": name, "objects": shared, "digests": digests}
                content["keep"] = self.keep
                if last:
                    content.pop("base", None)
                self._commit(number, content)
            except BaseException:
                with contextlib.suppress(CheckpointError, OSError):
                    if name not in named_groups(self._found()):  # the commit may exist although its reply was lost
                        self.place.remove(name)
                raise
            self._added = {name: files for name, files in self._added.items() if name not in digests}
            self._forget()

    def _commit(self, number: int, attributes: Commit) -> None:
        assert self._lease is not None, "only the holder of the lease commits"
        self._lease.check()
        while not self.place.create(commit_name(number), self._signed(number, attributes)):
            # Another writer created this number first, or was fenced off; the lease tells which.
            self._lease.check()
            number += 1
        self.attributes = {**attributes, "number": number}

    def _signed(self, number: int, attributes: Commit) -> bytes:
        """The content of a commit."""
        assert self._lease is not None, "only the holder of the lease commits"
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return sealed({**attributes, "number": number, "lease": self._lease.number, "time": now})

    def _found(self) -> list[Commit | None]:
        """All commits."""
        return [read_commit(self.place, number) for number in commits(self.place)]

    def restart(self, settings: Mapping[str, object], fingerprint: Mapping[str, object]) -> None:
        """Set the data of the next generations, for an extension.

        The current generation is kept until the extension has finished, and :meth:`go_back` restores it.
        """
        self.attributes = {
            **self.attributes,
            "settings": settings,
            "fingerprint": fingerprint,
            "taken": self.taken,
            "base": self.attributes.get("base", self.number),
        }

    @property
    def going_on(self) -> bool:
        """Whether there is an unfinished extension, so that :meth:`go_back` can be called."""
        return "base" in self.attributes

    def go_back(self) -> None:
        """Make the generation that an extension started from current again; later generations get higher numbers.
        Raises :class:`CheckpointError` if it no longer exists."""
        base = self.attributes["base"]
        found = read_commit(self.place, base)
        if found is None:
            raise CheckpointError(f"{self.path}/{commit_name(base)} is missing; restore it or start a new run.")
        self.attributes = {**found, "number": self.number, "base": base}

    @property
    def taken(self) -> list[str]:
        """Digests of all data that the generations so far include; empty for a saved model."""
        latest = self.attributes["fingerprint"]
        return [*self.attributes.get("taken", ()), *([digest_of_data(latest)] if latest else [])]

    def require_run(self) -> None:
        """Raise :class:`CheckpointError` if this is a saved model, which has no data to resume with."""
        if not self.attributes["fingerprint"]:
            raise CheckpointError(f"{self.path} is a saved model, not a run; it can predict but not resume.")

    def same_data(self, source: Source) -> CheckedSource:
        """The data of the run, whose partitions are verified when first read; warns if package versions differ. Raises
        :class:`CheckpointError` if the data differ in a way that is visible without reading them."""
        self.require_run()
        before = dict(self.attributes["fingerprint"])
        source = cut_as_before(source, before)
        digests = digests_in(before)
        del before[DIGESTS]
        require_same_identity(before, source, self.path)
        checked = CheckedSource(source, digests, f"the checkpoint in {self.path}")
        checked.glance()
        warn_of_versions(self.attributes["versions"])
        return checked

    def forget(self, objects: Iterable[str]) -> None:
        """Remove those `objects` that no commit names; the others are removed with their commits."""
        with writable(self.place):
            self.place.remove(*sorted(set(objects) - named_groups(self._found())))

    def _forget(self) -> None:
        """Remove generations beyond the kept ones, and the groups that only they named."""
        numbers, base = commits(self.place), self.attributes.get("base")
        old = [number for number in numbers[: -self.keep] if number != base]
        kept = [read_commit(self.place, number) for number in numbers if number not in old]
        if not old:
            return
        dropped = [read_commit(self.place, number) for number in old]
        self.place.remove(*map(commit_name, old))
        self.place.remove(*sorted(named_groups(dropped) - named_groups(kept)))

    def _sweep(self) -> None:
        """Remove everything that no commit names, which killed writers may have left."""
        kept = named_groups(self._found())
        kept.add(self.attributes["problem"])
        found = {f"{folder}/{name}" for folder in _FOLDERS for name in self.place.names(folder)}
        self.place.remove(*sorted(found - kept))
        for folder in ("", "commits", LEASES):
            self.place.sweep(folder)
