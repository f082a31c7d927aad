"""Zarr groups on disk whose current generation changes in one atomic step, whatever they hold.

    PATH/zarr.json                    attributes: format, method, current generation, settings, fingerprint, versions
    PATH/problem/                     everything fixed from the start
    PATH/generations/000007/          what changes

A generation is written aside and renamed; then the root's attributes are replaced by a rename. A kill at any
byte leaves the generation before. The one before the current is kept, older ones are removed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import zarr

from dpdist import schema
from dpdist.errors import CheckpointError, InputError, OutputExistsError
from dpdist.stored_problem import subgroup

_KEY = "dpdist"
#: A folder is replaced only if it holds one of these.
_ZARR_MARKS = ("zarr.json", ".zarray", ".zgroup")
_VERSIONED = ("dpdist", "numpy", "scipy", "numba")


class GenerationStore:
    """A group of generations on local disk; subclasses say what is in them.

    Parameters
    ----------
    path : the group's folder; see :meth:`open`
    attributes : of the root
    """

    #: What made the model; names the subclass on disk.
    method: str

    def __init__(self, path: Path, attributes: dict[str, Any]) -> None:
        self.path, self.attributes = path, attributes

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The store at `path`.

        Raises
        ------
        CheckpointError
            If there is none, another method made it, or a newer dpdist wrote it.
        """
        store = cls(Path(path), read_attributes(path))
        if store.attributes["method"] != cls.method:
            raise CheckpointError(
                f"{path} holds a {store.attributes['method']} model where a {cls.method} one is needed; give another."
            )
        return store

    @classmethod
    def begin(
        cls,
        path: str | os.PathLike[str],
        write: Callable[[zarr.Group], None],
        settings: dict[str, Any],
        fingerprint: dict[str, Any],
        overwrite: bool = False,
    ) -> Self:
        """A new store at `path`, without a generation; `write` fills the group of the problem."""
        target = claim(path, overwrite)
        aside = target.with_name(f".{target.name}.partial-{os.getpid()}")
        attributes = {
            "format": schema.FORMAT,
            "method": cls.method,
            "generation": 0,
            "settings": settings,
            "fingerprint": fingerprint,
            "versions": versions(),
        }
        with written_aside(aside):
            root = zarr.open_group(aside, mode="w", zarr_format=3)
            root.attrs[_KEY] = attributes
            write(root.create_group("problem"))
            root.create_group("generations")
            put_in_place(aside, target)
        return cls(target, attributes)

    @property
    def settings(self) -> dict[str, Any]:
        """What was asked for, as plain values."""
        return dict(self.attributes["settings"])

    def problem_group(self) -> zarr.Group:
        """The group of what is fixed from the start."""
        return subgroup(zarr.open_group(self.path, mode="r"), "problem")

    def generation(self) -> zarr.Group:
        """The group of the current generation.

        Raises
        ------
        CheckpointError
            If there is none yet.
        """
        number = int(self.attributes["generation"])
        if number == 0:
            raise CheckpointError(f"{self.path} holds no finished checkpoint; delete it and start the run again.")
        return subgroup(zarr.open_group(self.path, mode="r"), f"generations/{number:06d}")

    def add_generation(self, write: Callable[[zarr.Group], None]) -> None:
        """Write the next generation and make it current.

        Raises
        ------
        CheckpointError
            If it cannot be written; the current generation is left as it was.
        """
        number = int(self.attributes["generation"]) + 1
        folder = self.path / "generations"
        aside = folder / f".partial-{number:06d}"
        try:
            with written_aside(aside):
                write(zarr.open_group(aside, mode="w", zarr_format=3))
                put_in_place(aside, folder / f"{number:06d}")
            attributes = {**self.attributes, "generation": number}
            _replace_attributes(self.path, attributes)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint could not be written to {self.path} ({error.strerror or error}); the one before is "
                f"intact. Make room, then: dpdist resume {self.path}"
            ) from error
        self.attributes = attributes
        self._sweep(keep=(number, number - 1))

    def restart(self, settings: dict[str, Any], fingerprint: dict[str, Any]) -> None:
        """Take other data as those the next generations are made from."""
        self.attributes = {**self.attributes, "settings": settings, "fingerprint": fingerprint}

    def check_data(self, fingerprint: dict[str, Any]) -> None:
        """Raise :class:`CheckpointError` unless the data are those the run began with; warn of other versions."""
        before = self.attributes["fingerprint"]
        if not before:
            raise CheckpointError(f"{self.path} is a saved model, not a run; it can predict but not resume.")
        changed = [name for name in before if before[name] != fingerprint.get(name)]
        if changed:
            told = "; ".join(f"{name} was {before[name]}, is {fingerprint.get(name)}" for name in changed)
            raise CheckpointError(
                f"the data changed since the checkpoint in {self.path} ({told}); "
                "give the data it began with, or start a new run."
            )
        now, then = versions(), self.attributes["versions"]
        other = [f"{name} {then.get(name)} -> {now[name]}" for name in now if now[name] != then.get(name)]
        if other:
            warnings.warn(
                f"resuming with other versions than the run began with ({', '.join(other)}): "
                "results are right, but not to the same bits.",
                stacklevel=2,
            )

    def _sweep(self, keep: tuple[int, ...]) -> None:
        """Remove older generations and what a killed writer left."""
        kept = {f"{number:06d}" for number in keep}
        for entry in (self.path / "generations").iterdir():
            if entry.is_dir() and entry.name not in kept:
                shutil.rmtree(entry, ignore_errors=True)


def read_attributes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The attributes of the store at `path`; raises :class:`CheckpointError` if there is none that can be read."""
    target = Path(path)
    try:
        root = json.loads((target / "zarr.json").read_text())
        attributes: dict[str, Any] = {"method": "memoized", **root["attributes"][_KEY]}
    except (OSError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"there is no dpdist run or model at {target}; check the path, or make one with: dpdist fit"
        ) from error
    if attributes["format"] > schema.FORMAT:
        raise CheckpointError(
            f"{target} was written in format {attributes['format']}, newer than this dpdist reads "
            f"({schema.FORMAT}); install the dpdist that wrote it, {attributes['versions'].get('dpdist', '?')}."
        )
    return attributes


def claim(path: str | os.PathLike[str], overwrite: bool) -> Path:
    """`path` as a place to write to.

    Raises
    ------
    OutputExistsError
        If something is there and `overwrite` is false, or it is not Zarr.
    InputError
        If its folder does not exist or it is a URL.
    """
    if "://" in os.fspath(path):
        raise InputError(f"outputs are written to local disk; got the URL {path}. Give a path such as run.zarr.")
    target = Path(path)
    if target.exists() and not overwrite:
        raise OutputExistsError(f"{target} exists; choose another name, or give --overwrite to replace it.")
    if target.exists() and not any((target / mark).is_file() for mark in _ZARR_MARKS):
        raise OutputExistsError(f"{target} exists and is not Zarr, so it is not replaced; choose another name.")
    if not target.absolute().parent.is_dir():
        raise InputError(f"the folder {target.absolute().parent} does not exist; create it first.")
    return target


@contextlib.contextmanager
def written_aside(aside: Path) -> Iterator[None]:
    """Remove `aside` if writing it fails."""
    shutil.rmtree(aside, ignore_errors=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def put_in_place(aside: Path, target: Path) -> None:
    """Move a finished folder to its name, replacing what is there."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists():
        target.rename(old)
    aside.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _replace_attributes(path: Path, attributes: dict[str, Any]) -> None:
    """Swap the root's metadata for one with new attributes, in one rename."""
    file = path / "zarr.json"
    metadata = json.loads(file.read_text())
    metadata["attributes"][_KEY] = attributes
    aside = path / ".zarr.json.partial"
    with open(aside, "w") as stream:
        json.dump(metadata, stream, indent=2)
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(file)


def versions() -> dict[str, str]:
    """Versions and processor on which bits depend."""
    found = {name: importlib.metadata.version(name) for name in _VERSIONED}
    return {**found, "python": platform.python_version(), "machine": platform.machine()}
