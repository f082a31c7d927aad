"""A Zarr array, or a group of them, that several processes fill a chunk at a time, and that appears when it is whole.

Chunks are written under the array's own keys, each in one atomic step, before its metadata are there: on local disk in
a hidden folder beside it, in an object store where it will be. The chunks that are there tell how far a filling came
that was killed, and another with the same plan goes on from them.
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
    target : path or URL that it will have
    plan : tells what it is filled with from all else; chunks of another plan are of no use
    aside : whether on local disk it is filled in a folder beside
    """

    target: str
    plan: str
    aside: bool = True

    @property
    def is_remote(self) -> bool:
        """Whether it is in an object store."""
        return "://" in self.target

    @property
    def where(self) -> str:
        """Path or URL of its chunks meanwhile."""
        if self.is_remote or not self.aside:
            return self.target
        path = Path(self.target)
        return str(path.with_name(f".{path.name}.partial-{self.plan}"))

    def store(self) -> Store:
        """Of its chunks, to write."""
        return store_at(self.where)

    def is_free(self, overwrite: bool) -> bool:
        """Whether nothing is there that was begun with the same plan in an object store.

        Raises
        ------
        OutputExistsError, InputError
            As :func:`dpdist.core.outputs.claim_folder`, where something else is there.
        """
        if not self.is_remote:
            claim_folder(self.target, overwrite)
        elif place_of(self.target).read(PLAN) == self.plan.encode():
            return False
        else:
            claim_url(self.target, overwrite)
        return True

    @contextlib.contextmanager
    def begun(self, overwrite: bool) -> Iterator[Lease]:
        """The right to fill it, from nothing or from what was begun with the same plan.

        Raises
        ------
        OutputExistsError, InputError
            As :meth:`is_free`, and if another process is filling what is to stand there.
        """
        self.is_free(overwrite)
        with sole_writer(self.target) as lease:
            if self.is_free(overwrite) and self.is_remote:
                place = place_of(self.target)
                place.remove(*place.names(""))
                place.replace(PLAN, self.plan.encode())
            yield lease

    def array(self, metadata: Mapping[str, object]) -> zarr.Array:
        """The array, to write whole chunks of it."""
        return array_at(self.where, metadata)

    def is_there(self) -> bool:
        """Whether it is whole already."""
        return place_of(self.where).read(METADATA) is not None

    def chunks(self) -> set[int]:
        """Numbers of the blocks of rows that are there."""
        place = place_of(self.where)
        found = place.names("c")
        if isinstance(place, LocalPlace):  # a folder is made before its file
            found = [name for name in found if (place.path / "c" / name / "0").is_file()]
        return {int(name) for name in found}

    def end(self, metadata: Mapping[str, object], blocks: int) -> None:
        """Let the array appear; raises :class:`CorruptDataError` if one of its blocks of rows is not there."""
        missing = set(range(blocks)) - self.chunks()
        if missing:
            raise CorruptDataError(f"block {min(missing)} of {self.target} was written and is gone; write it again.")
        place_of(self.where).replace(METADATA, json.dumps(metadata).encode())
        self.appear("c")

    def appear(self, *kept: str) -> None:
        """Let what is whole, and has its metadata, stand at its target with files and folders of these names only."""
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
        """What was begun is removed where its input turns out to be of no use."""
        try:
            yield
        except InputError:
            self.forget()
            raise

    def forget(self) -> None:
        """Remove what was begun, with this plan or another, and what was replaced but is still there."""
        if self.is_remote:
            place = place_of(self.target)
            place.remove(*place.names(""))
            return
        path = Path(self.target)
        for kind in ("partial", "old"):
            for left in path.absolute().parent.glob(f".{glob.escape(path.name)}.{kind}-*"):
                shutil.rmtree(left, ignore_errors=True)


def store_at(where: str) -> Store:
    """The store at a path or URL, to write."""
    return zarr_store(where, read_only=False) if "://" in where else LocalStore(where)


def array_at(where: str, metadata: Mapping[str, object], name: str = "") -> zarr.Array:
    """An array whose metadata are not there yet, to write whole chunks of it; `name` is that within its group."""
    path = StorePath(store_at(where), name)
    return zarr.Array(zarr.AsyncArray(dict(metadata), path, config={"write_empty_chunks": True}))
