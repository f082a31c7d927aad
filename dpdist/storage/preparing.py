"""The stored state of a run before its first checkpoint: its settings, and the results of passes.

    run.zarr/preparing/manifest.json    settings of the run, results so far and their groups
    run.zarr/preparing/9ae310/...       the settings, and the results of passes, each in its own Zarr group

The manifest is replaced in one atomic step after each addition, and contains the digests of the groups it names. It is
valid until the first checkpoint, and is then removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NotRequired, Self, TypedDict, cast

import zarr

from dpdist.core.errors import CheckpointError
from dpdist.core.lease import FOLDER as LEASES
from dpdist.core.lease import Holder, take_lease
from dpdist.core.places import Place
from dpdist.core.records import sealed, unsealed
from dpdist.core.versions import versions
from dpdist.storage import codec
from dpdist.storage.arrays import subgroup
from dpdist.storage.checkpoint import Asked
from dpdist.storage.commits import PREPARING, commits, forget_requests, readable, token, writable

_FOLDER, _ASKED = PREPARING.rpartition("/")[0], "asked"


class _Entry(TypedDict):
    """The group of a stored value, and the digests of its files."""

    group: str
    digests: dict[str, str]


class PreparationManifest(TypedDict):
    """The contents of a manifest.

    Parameters
    ----------
    format, method, versions : format version, method, and package versions of the writer
    after : number of the last commit when the run began
    settings, identity : of the run and of its data, as plain values
    entries : stored values, by name
    told : progress, in words
    limits : changed limits, parameters by name
    request : identity of the submission that started the run; empty if there is none
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


class PreparationStore(Holder):
    """The store of a run that is being prepared.

    Parameters
    ----------
    place : where it is stored
    told : contents of its manifest
    """

    def __init__(self, place: Place, told: PreparationManifest) -> None:
        super().__init__(place)
        self.told = told

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
        """A new preparation, which replaces any earlier one.

        Parameters
        ----------
        spec, asked : the spec of the method, and the estimator with its parameters
        settings, identity : of the run and of its data, as plain values
        request : identity of the submission that starts the run, if any

        Raises
        ------
        InputError
            If a setting cannot be stored.
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
        """The preparation at a place, if there is one that is not followed by a checkpoint; raises
        :class:`CheckpointError` if its manifest is damaged, or its format is of another version."""
        with readable(place):
            data, numbers = place.read(PREPARING), commits(place)
        if data is None:
            return None
        told = unsealed(data, f"{place.label}/{PREPARING}", "remove it and start the run again.")
        if told["after"] < max(numbers, default=0):
            return None
        if told["format"] != codec.FORMAT:
            raise CheckpointError(
                f"{place.label} was being prepared by dpdist {told['versions'].get('dpdist', '?')}, which uses another "
                "storage format; continue with that version, or start the run again with overwrite=True."
            )
        return cls(place, cast(PreparationManifest, told))

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.told["method"]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the run, as plain values."""
        return self.told["settings"]

    @property
    def request(self) -> str:
        """Identity of the submission that started the run; empty if there is none."""
        return self.told.get("request", "")

    def lock(self) -> None:
        """Become the only writer; raises as :func:`dpdist.core.lease.take_lease`."""
        with writable(self.place):
            self._lease = take_lease(self.place)

    def remove(self) -> None:
        """Remove the preparation and allow other writers; if nothing else is stored there, remove the place too."""
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
        """The spec of the method."""
        return codec.read(subgroup(self._group(_ASKED), "spec"))

    def asked(self) -> Asked:
        """The estimator and its parameters, with the most recent limits."""
        found: Asked = codec.read(subgroup(self._group(_ASKED), "asked"), Asked)
        return found.but(self.told.get("limits", {}))

    def change(self, limits: Mapping[str, object], places: Mapping[str, str]) -> None:
        """Store changed limits, parameters by name, and changed paths of the settings."""
        self.told |= {"limits": limits, "settings": {**self.settings, **places}}
        with writable(self.place):
            self._write()

    def has(self, name: str) -> bool:
        """Whether a value is stored under a name."""
        return name in self.told["entries"]

    def read(self, name: str) -> Any:
        """The value stored under a name; raises :class:`CheckpointError` if it was changed since it was written."""
        return codec.read(self._group(name))

    def keep(self, name: str, value: Any) -> None:
        """Store a value under a name, replacing the value there and all values below that name; raises
        :class:`CheckpointError` if it cannot be written."""
        old = [each for each in self.told["entries"] if each == name or each.startswith(f"{name}/")]
        groups = [self.told["entries"].pop(each)["group"] for each in old]
        with writable(self.place):
            self._fill(name, lambda group: codec.write(group, value))
            self.place.remove(*groups)

    def tell(self, words: str) -> None:
        """Store the progress in words."""
        self.told["told"] = words
        with writable(self.place):
            self._write()

    def _fill(self, name: str, write: Callable[[zarr.Group], None]) -> None:
        self._check()
        group = f"{_FOLDER}/{token()}"
        self.told["entries"][name] = {"group": group, "digests": self.place.fill(group, write)}
        self._write()

    def _write(self) -> None:
        assert self._lease is not None, "only the holder of the lease writes"
        self._check()
        self.place.replace(PREPARING, sealed(self.told))

    def _group(self, name: str) -> zarr.Group:
        entry = self.told["entries"][name]
        with readable(self.place):
            return self.place.group(entry["group"], entry["digests"])
