"""A Zarr array or group that several processes fill, chunk by chunk, and that appears when it is complete.

Chunks are written under the array's own keys, each in one atomic step, before the metadata: on local disk in a hidden
folder beside the target, in an object store at the target. The existing chunks show how far a killed filling came, and
another one with the same plan continues it.
"""

from __future__ import annotations

import contextlib
import glob
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, StorePath

from dpdist.core.errors import CorruptDataError, InputError
from dpdist.core.lease import Lease
from dpdist.core.outputs import METADATA, PLAN, claim_folder, claim_url, put_in_place, sole_writer
from dpdist.core.places import LocalPlace, place_of
from dpdist.core.places.zarr_store import zarr_store


@dataclass(frozen=True)
class Filling:
    """An array, or a group of arrays, that is being filled.

    Parameters
    ----------
    target : its final path or URL
    plan : identifies its contents; chunks of another plan are not used
    aside : whether, on local disk, it is filled in a hidden folder
    """

    target: str
    plan: str
    aside: bool = True

    @property
    def is_remote(self) -> bool:
        """Whether the target is in an object store."""
        return "://" in self.target

    @property
    def where(self) -> str:
        """Path or URL of the chunks until the target is complete."""
        if self.is_remote or not self.aside:
            return self.target
        path = Path(self.target)
        return str(path.with_name(f".{path.name}.partial-{self.plan}"))

    def store(self) -> Store:
        """A writable store of the chunks."""
        return store_at(self.where)

    def is_free(self, overwrite: bool) -> bool:
        """Whether the target is free; False for an unfinished filling of the same plan in an object store. Raises as
        :func:`dpdist.core.outputs.claim_folder`, if something else is there."""
        if not self.is_remote:
            claim_folder(self.target, overwrite)
        elif place_of(self.target).read(PLAN) == self.plan.encode():
            return False
        else:
            claim_url(self.target, overwrite)
        return True

    @contextlib.contextmanager
    def begun(self, overwrite: bool) -> Iterator[Lease]:
        """The lock for filling, from the start or from an unfinished filling of the same plan. Raises as
        :meth:`is_free`, and if another process is filling this target."""
        self.is_free(overwrite)
        with sole_writer(self.target) as lease:
            if self.is_free(overwrite) and self.is_remote:
                place = place_of(self.target)
                place.remove(*place.names(""))
                place.replace(PLAN, self.plan.encode())
            yield lease

    def array(self, metadata: Mapping[str, object]) -> zarr.Array:
        """The array, for writing whole chunks."""
        return array_at(self.where, metadata)

    def is_there(self) -> bool:
        """Whether it is already complete."""
        return place_of(self.where).read(METADATA) is not None

    def chunks(self) -> set[int]:
        """Numbers of the blocks of rows that are written."""
        place = place_of(self.where)
        found = place.names("c")
        if isinstance(place, LocalPlace):  # a folder is created before its file
            found = [name for name in found if (place.path / "c" / name / "0").is_file()]
        return {int(name) for name in found}

    def end(self, metadata: Mapping[str, object], blocks: int) -> None:
        """Make the array appear; raises :class:`CorruptDataError` if a block of rows is missing."""
        missing = set(range(blocks)) - self.chunks()
        if missing:
            raise CorruptDataError(f"block {min(missing)} of {self.target} was written but is gone. Write it again.")
        place_of(self.where).replace(METADATA, json.dumps(metadata).encode())
        self.appear("c")

    def appear(self, *kept: str) -> None:
        """Move the complete array or group to its target; files and folders of other names than `kept` are removed."""
        place = place_of(self.where)
        place.remove(*(name for name in place.names("") if name not in (*kept, METADATA)))
        if isinstance(place, LocalPlace):
            for left in (*place.path.glob("**/*.partial"), *place.path.glob("**/.*.partial-*")):
                left.unlink()
        if isinstance(place, LocalPlace) and self.aside:
            put_in_place(place.path, Path(self.target))
            self.forget()

    @contextlib.contextmanager
    def forgotten_if_refused(self) -> Iterator[None]:
        """Remove the unfinished filling if the body raises :class:`InputError`."""
        try:
            yield
        except InputError:
            self.forget()
            raise

    def forget(self) -> None:
        """Remove unfinished fillings of this target, of any plan, and remains of a replaced target."""
        if self.is_remote:
            place = place_of(self.target)
            place.remove(*place.names(""))
            return
        path = Path(self.target)
        for kind in ("partial", "old"):
            for left in path.absolute().parent.glob(f".{glob.escape(path.name)}.{kind}-*"):
                shutil.rmtree(left, ignore_errors=True)


def store_at(where: str) -> Store:
    """A writable store at a path or URL."""
    return zarr_store(where, read_only=False) if "://" in where else LocalStore(where)


def array_at(where: str, metadata: Mapping[str, object], name: str = "") -> zarr.Array:
    """An array without stored metadata, for writing whole chunks; `name` is its name within a group."""
    path = StorePath(store_at(where), name)
    return zarr.Array(zarr.AsyncArray(dict(metadata), path, config={"write_empty_chunks": True}))
