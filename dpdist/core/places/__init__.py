"""Where runs are kept."""

from __future__ import annotations

import os
from pathlib import Path

from dpdist.core.checks import PATH
from dpdist.core.places.base import Place
from dpdist.core.places.local import LocalPlace

__all__ = ["LocalPlace", "Place", "absolute", "place_of"]


def place_of(path: str | os.PathLike[str]) -> Place:
    """The place at a path or a URL such as ``s3://bucket/run.zarr``.

    Raises
    ------
    InputError
        If it is no path, or the URL is of a kind that cannot be written to, or what it needs is not installed.
    """
    where: str = os.fspath(PATH.take("path", path))
    if "://" in where:
        from dpdist.core.places.objects import ObjectPlace

        return ObjectPlace(where)
    return LocalPlace(where)


def absolute(path: str | os.PathLike[str]) -> str:
    """A path that holds wherever it is read, or the URL as it is."""
    where = os.fspath(path)
    return where if "://" in where else str(Path(where).absolute())
