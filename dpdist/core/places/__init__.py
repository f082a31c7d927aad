"""Places where runs are stored: folders on local disk, and object stores."""

from __future__ import annotations

import os
from pathlib import Path

from dpdist.core.checks import PATH
from dpdist.core.places.base import Place
from dpdist.core.places.local import LocalPlace

__all__ = ["LocalPlace", "Place", "absolute", "place_of"]


def place_of(path: str | os.PathLike[str]) -> Place:
    """The place at a path or a URL such as ``s3://bucket/run.zarr``; raises :class:`InputError` if it is not a path or
    a supported URL, or a needed package is not installed."""
    where: str = os.fspath(PATH.take("path", path))
    if "://" in where:
        from dpdist.core.places.objects import ObjectPlace

        return ObjectPlace(where)
    return LocalPlace(where)


def absolute(path: str | os.PathLike[str]) -> str:
    """A path as an absolute path; a URL unchanged."""
    where = os.fspath(path)
    return where if "://" in where else str(Path(where).absolute())
