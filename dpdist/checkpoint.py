"""Runs and models on disk: one Zarr v3 group, whose current generation changes in one atomic step.

    run.zarr/zarr.json                     attributes: format, current generation, settings, fingerprint, versions
    run.zarr/problem/                      the model's priors and everything fixed for the run
    run.zarr/generations/000007/components the model after some lap
    run.zarr/generations/000007/history    laps and proposals
    run.zarr/generations/000007/state      what the next wave needs; absent in a saved model

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr

from dpdist import schema
from dpdist.errors import CheckpointError, InputError, OutputExistsError
from dpdist.families.base import Family
from dpdist.history import History
from dpdist.problem import Problem
from dpdist.state import State
from dpdist.stored_problem import read_problem, subgroup, write_problem
from dpdist.stored_state import read_state, write_state
from dpdist.summary import Summary

_KEY = "dpdist"
#: A folder is replaced only if it holds one of these.
_ZARR_MARKS = ("zarr.json", ".zarray", ".zgroup")
_VERSIONED = ("dpdist", "numpy", "scipy", "numba")


class Fitted(NamedTuple):
    """A model at the end of some lap.

    Parameters
    ----------
    ids : (K,) stable ids
    total : summary of the whole data
    elbo : exact ELBO, nats
    rows : number of rows
    stop : why the run ended; None while it goes on
    converged : whether it ended by convergence
    """

    ids: np.ndarray
    total: Summary
    elbo: float
    rows: float
    stop: str | None = None
    converged: bool = False


class Store:
    """A run or model on local disk.

    Parameters
    ----------
    path : the group's folder; see :meth:`create` and :meth:`open`
    """

    def __init__(self, path: Path, attributes: dict[str, Any]) -> None:
        self.path, self.attributes = path, attributes

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        problem: Problem,
        settings: dict[str, Any],
        fingerprint: dict[str, Any],
        overwrite: bool = False,
    ) -> Store:
        """A new store at `path`, without a generation.

        Raises
        ------
        OutputExistsError
            If something is there and `overwrite` is false.
        """
        target = claim(path, overwrite)
        aside = target.with_name(f".{target.name}.partial-{os.getpid()}")
        attributes = {
            "format": schema.FORMAT,
            "generation": 0,
            "settings": settings,
            "fingerprint": fingerprint,
            "versions": versions(),
        }
        with written_aside(aside):
            root = zarr.open_group(aside, mode="w", zarr_format=3)
            root.attrs[_KEY] = attributes
            write_problem(root.create_group("problem"), problem)
            root.create_group("generations")
            put_in_place(aside, target)
        return cls(target, attributes)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Store:
        """The store at `path`.

        Raises
        ------
        CheckpointError
            If there is none, or a newer dpdist wrote it.
        """
        target = Path(path)
        try:
            root = json.loads((target / "zarr.json").read_text())
            attributes = root["attributes"][_KEY]
        except (OSError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"there is no dpdist run or model at {target}; check the path, or make one with: dpdist fit"
            ) from error
        if attributes["format"] > schema.FORMAT:
            raise CheckpointError(
                f"{target} was written in format {attributes['format']}, newer than this dpdist reads "
                f"({schema.FORMAT}); install the dpdist that wrote it, {attributes['versions'].get('dpdist', '?')}."
            )
        return cls(target, attributes)

    @property
    def settings(self) -> dict[str, Any]:
        """What the run was asked for, as plain values."""
        return dict(self.attributes["settings"])

    def problem(self, families: dict[str, type[Family]] | None = None) -> Problem:
        """The problem fixed for the run."""
        return read_problem(subgroup(self._root(), "problem"), families)

    def state(self) -> State:
        """The state to go on from."""
        generation = self._generation()
        if "state" not in generation:
            raise CheckpointError(f"{self.path} is a saved model, not a run; it can predict but not resume.")
        return read_state(subgroup(generation, "state"))

    def fitted(self) -> Fitted | None:
        """The model of the current generation, or None before the first lap."""
        generation = self._generation()
        if "components" not in generation:
            return None
        group = subgroup(generation, "components")
        attrs: dict[str, Any] = dict(group.attrs)
        total = Summary(schema.read(group, "stats"), schema.read(group, "entropy"), attrs["base"])
        return Fitted(schema.read(group, "id"), total, attrs["elbo"], attrs["rows"], attrs["stop"], attrs["converged"])

    def history(self) -> History:
        """The history up to the current generation."""
        return History.read(subgroup(self._generation(), "history"))

    def commit(self, problem: Problem, fitted: Fitted | None, history: History, state: State | None) -> None:
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
                group = zarr.open_group(aside, mode="w", zarr_format=3)
                if fitted is not None:
                    _write_fitted(group.create_group("components"), problem, fitted)
                history.write(group.create_group("history"))
                if state is not None:
                    write_state(group.create_group("state"), state)
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

    def check_data(self, fingerprint: dict[str, Any]) -> None:
        """Raise :class:`CheckpointError` unless the data are those the run began with; warn of other versions."""
        before = self.attributes["fingerprint"]
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

    def _root(self) -> zarr.Group:
        return zarr.open_group(self.path, mode="r")

    def _generation(self) -> zarr.Group:
        number = int(self.attributes["generation"])
        if number == 0:
            raise CheckpointError(f"{self.path} holds no finished checkpoint; delete it and start the run again.")
        return subgroup(self._root(), f"generations/{number:06d}")

    def _sweep(self, keep: tuple[int, ...]) -> None:
        """Remove older generations and what a killed writer left."""
        kept = {f"{number:06d}" for number in keep}
        for entry in (self.path / "generations").iterdir():
            if entry.is_dir() and entry.name not in kept:
                shutil.rmtree(entry, ignore_errors=True)


def _write_fitted(group: zarr.Group, problem: Problem, fitted: Fitted) -> None:
    total = fitted.total
    weights, rest = problem.model.allocation.weights(total.counts)
    group.attrs.update(
        {
            "elbo": fitted.elbo,
            "rows": fitted.rows,
            "base": total.base,
            "n_components": len(fitted.ids),
            "rest_weight": rest,
            "stop": fitted.stop,
            "converged": fitted.converged,
        }
    )
    for name, values in {"id": fitted.ids, "weight": weights, "stats": total.stats, "entropy": total.entropy}.items():
        schema.write(group, name, values)
    if fitted.stop is not None:
        for name, (_, values) in describe(problem, total).items():
            schema.write(group, name, values)


def describe(problem: Problem, total: Summary) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """The family's description of each component, means moved back from the model's origin."""
    described = problem.model.family.describe(total.stats)
    origin = problem.preparation.origin
    if origin is not None and "mean" in described:
        dims, mean = described["mean"]
        described["mean"] = (dims, mean + origin)
    return described


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
