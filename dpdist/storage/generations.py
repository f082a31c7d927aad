"""Generations of a run or model at a place, of which one becomes current in one atomic step.

    PATH/zarr.json                     makes the folder a Zarr group
    PATH/commits/000007.json           says what generation 7 consists of; created last, and never changed
    PATH/problems/4f21c0/              everything fixed from the start
    PATH/generations/000007-9ae310/    what changes
    PATH/objects/000003-0017-77d2aa/   immutable parts shared by generations
    PATH/leases/000002.json            who writes

The highest commit is the current one. Everything that a commit names was written and made durable before, under names
used once, so a kill at any byte leaves the generation before, and a writer that was thought dead harms nobody. The
last few generations are kept; what no kept commit names is removed.

A commit holds a digest of itself and of every file that it is made of. Whatever is read is compared with these first,
so that damage of any kind is a sentence, and never other numbers.
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
from dpdist.core.lease import Lease, LeaseHeldError, released_on_error, take_lease
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

#: Generations kept.
KEEP = 2
_ROOT = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}, indent=2).encode()

#: Where the groups are that commits name.
_FOLDERS = ("generations", "objects", "problems")


class GenerationStore:
    """A series of generations; a subclass says what is in them.

    Parameters
    ----------
    place : where they are
    attributes : of the current commit, or of the one to come
    """

    def __init__(self, place: Place, attributes: Commit) -> None:
        self.place, self.attributes = place, attributes
        self.keep = attributes.get("keep", KEEP)  # generations
        self._lease: Lease | None = None
        self._held = 0  # number of the lease last held
        self._failure: Exception | None = None  # of an object, without which later generations are not whole
        self._added: dict[str, dict[str, str]] = {}  # objects that are whole, and the digests of their files

    @classmethod
    def open(cls, path: str | os.PathLike[str], *methods: str) -> Self:
        """The store at `path`, made by one of some methods, or by any.

        Raises
        ------
        CheckpointError
            If there is none, another method made it, or a newer dpdist wrote it.
        """
        store = cls(place_of(path), read_attributes(path))
        if methods and store.method not in methods:
            needed = " or ".join(f"'{method}'" for method in methods)
            raise CheckpointError(
                f"{path} holds a model made by '{store.method}' where one by {needed} is needed; give another."
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
        """A new store at `path`, seen by others from its first commit on; `write` fills the group of the problem."""
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
            place.create("zarr.json", _ROOT)
            store.lock()
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
        """What made the model."""
        return self.attributes["method"]

    @property
    def settings(self) -> Mapping[str, object]:
        """What was asked for, as plain values."""
        return self.attributes["settings"]

    @property
    def number(self) -> int:
        """Of the current commit, from 1; 0 before the first."""
        return self.attributes.get("number", 0)

    def lock(self) -> None:
        """Become the run's one writer, unless this store is already; see :func:`dpdist.core.lease.take_lease`.

        Raises
        ------
        LeaseHeldError
            If another coordinator writes to the run, or did since this store last held it.
        """
        if self._lease is not None:
            return
        with writable(self.place):
            self._lease = take_lease(self.place)
            with released_on_error(self):
                self._arrive(self._lease)
            self._held = self._lease.number

    def _arrive(self, lease: Lease) -> None:
        """Take what there is from the writer before."""
        if self._held not in (0, lease.number - 1):
            raise LeaseHeldError(f"another coordinator wrote to {self.path} meanwhile; see: dpdist status {self.path}")
        numbers = commits(self.place)
        if lease.usurped and numbers:
            self._fence(numbers[-1])
        if self.number:
            self.attributes = read_attributes(self.place.where)
        if not self._held:
            self._sweep()

    def _fence(self, number: int) -> None:
        """Repeat the current commit, lest a writer that wakes up between its look at the lease and its commit makes it.

        Whoever creates the next number first is heard: if it was the other, its commit is the one that is repeated.
        """
        while (commit := read_commit(self.place, number)) is not None and not self.place.create(
            commit_name(number + 1), self._signed(number + 1, commit)
        ):
            number += 1

    def release(self) -> None:
        """Let others write."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def problem_group(self) -> zarr.Group:
        """The group of what is fixed from the start; raises as :meth:`group` does."""
        return self.group(self.attributes["problem"])

    def holds(self, part: str) -> bool:
        """Whether the current generation has a group `part`."""
        return f"{part}/zarr.json" in self.attributes["digests"][self.attributes["generation"]]

    def generation(self, part: str) -> zarr.Group:
        """The group `part` of the current generation; raises as :meth:`group` does."""
        return self.group(self.attributes["generation"], part)

    def group(self, name: str, part: str = "") -> zarr.Group:
        """A group that the current commit names, or the group `part` of it.

        Raises
        ------
        CheckpointError
            If it is not what was written, or cannot be read.
        """
        above = f"{part}/" if part else ""
        named = self.attributes["digests"][name].items()
        digests = {file.removeprefix(above): digest for file, digest in named if file.startswith(above)}
        with readable(self.place):
            try:
                return self.place.group(f"{name}/{part}".rstrip("/"), digests)
            except CheckpointError as error:
                raise CheckpointError(self._told(name, error)) from error

    def _told(self, name: str, error: CheckpointError) -> str:
        """What is said of a group that cannot be read; damage of the problem befalls every generation."""
        if self.number not in (0, *commits(self.place)):
            return f"{self.path} went on, or was removed, while checkpoint {self.number} was read; try again."
        if name == self.attributes["problem"]:
            return str(error)
        last = f"{self.path}/{commit_name(self.number)}"
        return f"{error} To go back to the checkpoint before, if that is whole, remove {last}"

    def add_object(self, name: str, write: Callable[[zarr.Group], None]) -> None:
        """Write an immutable part that later generations may name.

        Raises
        ------
        CheckpointError
            If it cannot be written.
        """
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
        objects : that were added
        files : digests of others that workers wrote, by folder
        last : whether what it went on from is left for good

        Raises
        ------
        CheckpointError
            If it cannot be written, or another writer took over; the current generation is left as it was.
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
                    if name not in named_groups(self._found()):  # it may be made, its answer not heard
                        self.place.remove(name)
                raise
            self._added = {name: files for name, files in self._added.items() if name not in digests}
            self._forget()

    def _commit(self, number: int, attributes: Commit) -> None:
        assert self._lease is not None, "only the holder of the lease commits"
        self._lease.check()
        while not self.place.create(commit_name(number), self._signed(number, attributes)):
            # A writer thought dead was faster with the same state, or was shut out; the lease tells who it was.
            self._lease.check()
            number += 1
        self.attributes = {**attributes, "number": number}

    def _signed(self, number: int, attributes: Commit) -> bytes:
        """The content of a commit."""
        assert self._lease is not None, "only the holder of the lease commits"
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return sealed({**attributes, "number": number, "lease": self._lease.number, "time": now})

    def _found(self) -> list[Commit | None]:
        """Every commit."""
        return [read_commit(self.place, number) for number in commits(self.place)]

    def restart(self, settings: Mapping[str, object], fingerprint: Mapping[str, object]) -> None:
        """Take other data as those the next generations are made from.

        The current one is kept until the last of these, and :meth:`go_back` leads there.
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
        """Whether there is a generation to go back to."""
        return "base" in self.attributes

    def go_back(self) -> None:
        """Take the generation that others went on from as the current one, after which the next is numbered.

        Raises
        ------
        CheckpointError
            If it is not there.
        """
        base = self.attributes["base"]
        found = read_commit(self.place, base)
        if found is None:
            raise CheckpointError(f"{self.path}/{commit_name(base)} is gone; restore it, or begin anew.")
        self.attributes = {**found, "number": self.number, "base": base}

    @property
    def taken(self) -> list[str]:
        """Digests of all data that the generations so far were made from; a saved model does not know them."""
        latest = self.attributes["fingerprint"]
        return [*self.attributes.get("taken", ()), *([digest_of_data(latest)] if latest else [])]

    def require_run(self) -> None:
        """Raise :class:`CheckpointError` if it is a saved model, which has no data to go on with."""
        if not self.attributes["fingerprint"]:
            raise CheckpointError(f"{self.path} is a saved model, not a run; it can predict but not resume.")

    def same_data(self, source: Source) -> CheckedSource:
        """The data the run began with, each partition checked when it is first read; warns of other versions.

        Raises
        ------
        CheckpointError
            If it can be seen at once that the data are others.
        """
        self.require_run()
        before = dict(self.attributes["fingerprint"])
        source = cut_as_before(source, before)
        digests = digests_in(before)
        del before[DIGESTS]
        require_same_identity(before, source, self.path)
        checked = CheckedSource(source, digests, self.path)
        checked.glance()
        warn_of_versions(self.attributes["versions"])
        return checked

    def forget(self, objects: Iterable[str]) -> None:
        """Remove those `objects` that no commit names; what one does goes with it."""
        with writable(self.place):
            self.place.remove(*sorted(set(objects) - named_groups(self._found())))

    def _forget(self) -> None:
        """Remove generations beyond those kept, and what only they named."""
        numbers, base = commits(self.place), self.attributes.get("base")
        old = [number for number in numbers[: -self.keep] if number != base]
        kept = [read_commit(self.place, number) for number in numbers if number not in old]
        if not old:
            return
        dropped = [read_commit(self.place, number) for number in old]
        self.place.remove(*map(commit_name, old))
        self.place.remove(*sorted(named_groups(dropped) - named_groups(kept)))

    def _sweep(self) -> None:
        """Remove what writers that were killed left: everything that no commit names."""
        kept = named_groups(self._found())
        kept.add(self.attributes["problem"])
        found = {f"{folder}/{name}" for folder in _FOLDERS for name in self.place.names(folder)}
        self.place.remove(*sorted(found - kept))
        for folder in ("", "commits", LEASES):
            self.place.sweep(folder)
