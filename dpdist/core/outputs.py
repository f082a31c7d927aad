"""Outputs on local disk that appear whole or not at all: written aside and swapped in."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from dpdist.core.errors import InputError, OutputExistsError

#: A folder is replaced only if it holds one of these.
_ZARR_MARKS = ("zarr.json", ".zarray", ".zgroup")


def claim_folder(path: str | os.PathLike[str], overwrite: bool) -> Path:
    """`path` as a folder on local disk to write to.

    Raises
    ------
    OutputExistsError
        If something is there and `overwrite` is false, or it is not Zarr.
    InputError
        If its folder does not exist or it is a URL.
    """
    if "://" in os.fspath(path):
        raise InputError(f"this output is written to local disk; got the URL {path}. Give a path such as out.zarr.")
    target = Path(path)
    if target.exists() and not overwrite:
        raise OutputExistsError(f"{target} exists; choose another name, or replace it with overwrite=True.")
    if target.exists() and not any((target / mark).is_file() for mark in _ZARR_MARKS):
        raise OutputExistsError(f"{target} exists and is not Zarr, so it is not replaced; choose another name.")
    check_parent(target)
    return target


def check_parent(target: Path) -> None:
    """Raise :class:`InputError` unless the folder that `target` is to stand in exists."""
    if not target.absolute().parent.is_dir():
        raise InputError(f"the folder {target.absolute().parent} does not exist; create it first.")


@contextlib.contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """A folder to fill beside `target`, which takes the place of what is there in the end; gone if that fails."""
    aside = target.with_name(f".{target.name}.partial-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        yield aside
        put_in_place(aside, target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def put_in_place(aside: Path, target: Path) -> None:
    """Let a folder take the place of what is at `target`."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists():
        target.rename(old)
    aside.rename(target)
    shutil.rmtree(old, ignore_errors=True)
