"""What a run has before its first checkpoint: what was asked for, and the passes that are done.

    run.zarr/preparing/manifest.json    how the run began, what is done so far and where it is kept
    run.zarr/preparing/9ae310/...       what was asked for, and what passes gave, each in a Zarr group of its own

The manifest is replaced in one atomic step whenever something was added, and holds the digests of what it names. It
counts as long as no checkpoint came after it, and is removed with the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NotRequired, Self, TypedDict, cast

import zarr

from dpdist.core.errors import CheckpointError
from dpdist.core.lease import FOLDER as LEASES
from dpdist.core.lease import Lease, take_lease
from dpdist.core.places import Place
from dpdist.core.records import sealed, unsealed
from dpdist.core.versions import versions
from dpdist.storage import codec
from dpdist.storage.arrays import subgroup
from dpdist.storage.checkpoint import Asked
from dpdist.storage.commits import PREPARING, commits, forget_requests, readable, token, writable

_FOLDER, _ASKED = PREPARING.rpartition("/")[0], "asked"


class _Entry(TypedDict):
    """Where something is kept, and the digests of its files."""

    group: str
    digests: dict[str, str]


class PreparationManifest(TypedDict):
    """What a manifest says.

    Parameters
    ----------
    format, method, versions : how it was written, by what, for which method
    after : commits there were when the run began
    settings, identity : of the run and its data, as plain values
    entries : by name, what is kept
    told : where the preparation is, in words
    limits : new values of the parameters that say when to stop, by name
    request : identity of the request that the run was begun by; empty if it was not submitted
    """

    format: int
    method: str
    versions: dict[str, str]
    after: int
    settings: dict[str, Any]
    identity: dict[str, Any]
    entries: dict[str, _Entry]
    told: NotRequired[str]
    limits: NotRequired[Mapping[str, object]]
    request: NotRequired[str]


class PreparationStore:
    """A run that is being made ready, at its place.

    Parameters
    ----------
    place : where it is
    told : what its manifest says
    """

    def __init__(self, place: Place, told: PreparationManifest) -> None:
        self.place, self.told = place, told
        self._lease: Lease | None = None

    @classmethod
    def begin(
        cls,
        place: Place,
        spec: Any,
        asked: Asked | None,
        settings: Mapping[str, Any],
        identity: Mapping[str, Any],
        request: str = "",
    ) -> Self:
        """A new one, in the place of any before.

        Parameters
        ----------
        spec, asked : what the method and what a person is asked for
        settings, identity : of the run and its data, as plain values
        request : identity of the request that it is begun by, if it was submitted

        Raises
        ------
        InputError
            If a part of what is asked for cannot be stored.
        LeaseHeldError
            If another coordinator writes there.
        """
        told: PreparationManifest = {
            "format": codec.FORMAT,
            "method": spec.method,
            "versions": versions(),
            "after": max(commits(place), default=0),
            "settings": dict(settings),
            "identity": dict(identity),
            "entries": {},
            "request": request,
        }

        def write(group: zarr.Group) -> None:
            codec.write(group.create_group("spec"), spec)
            if asked is not None:
                codec.write(group.create_group("asked"), asked)

        store = cls(place, told)
        store.lock()
        try:
            with writable(place):
                place.remove(_FOLDER)
                if not request:
                    forget_requests(place)
                store._fill(_ASKED, write)
        except BaseException:
            store.remove()
            raise
        return store

    @classmethod
    def found(cls, place: Place) -> Self | None:
        """The one at a place, if there is one that no checkpoint came after.

        Raises
        ------
        CheckpointError
            If its manifest is damaged, or another dpdist wrote it.
        """
        with readable(place):
            data, numbers = place.read(PREPARING), commits(place)
        if data is None:
            return None
        told = unsealed(data, f"{place.label}/{PREPARING}", "remove it, and begin the run again.")
        if told["after"] < max(numbers, default=0):
            return None
        if told["format"] != codec.FORMAT:
            raise CheckpointError(
                f"{place.label} was being prepared by dpdist {told['versions'].get('dpdist', '?')}, which stores runs "
                "otherwise than this one; go on with that, or begin the run again with overwrite=True."
            )
        return cls(place, cast(PreparationManifest, told))

    @property
    def method(self) -> str:
        """What is to make the model."""
        return self.told["method"]

    @property
    def settings(self) -> Mapping[str, Any]:
        """What was asked for, as plain values."""
        return self.told["settings"]

    @property
    def request(self) -> str:
        """Identity of the request that it was begun by; empty if it was not submitted."""
        return self.told.get("request", "")

    def lock(self) -> None:
        """Become the one writer; raises as :func:`dpdist.core.lease.take_lease`."""
        with writable(self.place):
            self._lease = take_lease(self.place)

    def release(self) -> None:
        """Let others write."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def remove(self) -> None:
        """Remove all of it and let others write; where nothing else is, remove the place too."""
        lease, self._lease = self._lease, None
        with writable(self.place):
            self.place.remove(_FOLDER)
            if commits(self.place) or self.place.names("requests"):
                if lease is not None:
                    lease.release()
                return
            self.place.remove(*(name for name in self.place.names("") if name != LEASES))
            if lease is not None:
                lease.withdraw()

    def spec(self) -> Any:
        """What the method is asked for."""
        return codec.read(subgroup(self._group(_ASKED), "spec"))

    def asked(self) -> Asked:
        """What a person asked for, with the limits that were asked for last."""
        found: Asked = codec.read(subgroup(self._group(_ASKED), "asked"), Asked)
        return found.but(self.told.get("limits", {}))

    def limit(self, limits: Mapping[str, object]) -> None:
        """Keep new limits, parameters by name, as those asked for."""
        self.told["limits"] = limits
        with writable(self.place):
            self._write()

    def has(self, name: str) -> bool:
        """Whether something is kept under a name."""
        return name in self.told["entries"]

    def read(self, name: str) -> Any:
        """What is kept under a name; raises :class:`CheckpointError` if it is not what was written."""
        return codec.read(self._group(name))

    def keep(self, name: str, value: Any) -> None:
        """Keep a value under a name, in the place of what was there and of all that is kept below that name.

        Raises
        ------
        CheckpointError
            If it cannot be written.
        """
        old = [each for each in self.told["entries"] if each == name or each.startswith(f"{name}/")]
        groups = [self.told["entries"].pop(each)["group"] for each in old]
        with writable(self.place):
            self._fill(name, lambda group: codec.write(group, value))
            self.place.remove(*groups)

    def tell(self, words: str) -> None:
        """Say where the preparation is."""
        self.told["told"] = words
        with writable(self.place):
            self._write()

    def _fill(self, name: str, write: Callable[[zarr.Group], None]) -> None:
        self._check()
        group = f"{_FOLDER}/{token()}"
        self.told["entries"][name] = {"group": group, "digests": self.place.fill(group, write)}
        self._write()

    def _check(self) -> None:
        """Raise :class:`CheckpointError` if the run is gone or another's by now: no part of it is to come back."""
        assert self._lease is not None, "only the holder of the lease writes"
        self._lease.check()

    def _write(self) -> None:
        self._check()
        self.place.replace(PREPARING, sealed(self.told))

    def _group(self, name: str) -> zarr.Group:
        entry = self.told["entries"][name]
        with readable(self.place):
            return self.place.group(entry["group"], entry["digests"])
