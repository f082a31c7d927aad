"""Arrays in files: NumPy's, vectors in the TEXMEX format, and data sets of HDF5.

.npy           memory-mapped, C or Fortran order
.fvecs .bvecs  the TEXMEX format: int32 length, then that many float32 or uint8, for each vector
               (http://corpus-texmex.irisa.fr)
.h5 .hdf5      the only two-dimensional data set of numbers, or the one that is named, as in FILE.h5/NAME
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdist.core.errors import InputError
from dpdist.data.files import parted, reading, require_file
from dpdist.data.soundness import require_shape
from dpdist.data.tables.base import Choice, Table, stored_dtype

if TYPE_CHECKING:
    import h5py

# NumPy


def open_npy(path: Path, choice: Choice) -> Table:
    """A memory-mapped NumPy array."""
    choice.refuse(path)
    with reading(path, "a NumPy array of numbers"):
        array = np.lib.format.open_memmap(path, mode="r")
    if array.ndim != 2 or len(array):
        require_shape(array.shape, str(path))
    dtype = stored_dtype(array.dtype, str(path))
    return Table((array.shape[0], array.shape[1]), dtype, part=lambda start, stop: array[start:stop])


# TEXMEX vectors


def open_vectors(path: Path, choice: Choice, value: str) -> Table:
    """Vectors of numbers of dtype `value`."""
    choice.refuse(path)
    dtype = np.dtype(value)
    width = _vector_width(path, dtype)
    records = np.memmap(path, np.dtype([("width", "<i4"), ("vector", dtype, (width,))]), mode="r")

    def part(start: int, stop: int) -> np.ndarray:
        some = records[start:stop]
        _require_width(some["width"], width, start, path)
        return np.asarray(some["vector"])

    return Table((len(records), width), stored_dtype(dtype, str(path)), part=part)


def _vector_width(path: Path, dtype: np.dtype) -> int:
    """Length of the first vector, checked against the size of the file."""
    size = path.stat().st_size
    if size < 4:
        raise InputError(
            f"{path} should contain vectors, each preceded by its length (4 bytes); got {size} bytes. Check its origin."
        )
    width = int(np.fromfile(path, "<i4", count=1)[0])
    if width < 1:
        raise InputError(
            f"{path} should begin with the length of the first vector, which is 1 or more; got {width}. Check that the "
            f"format is {path.suffix}."
        )
    record = 4 + width * dtype.itemsize
    if size % record:
        raise InputError(
            f"{path} should contain a whole number of vectors of {width} numbers, {record} bytes each; got {size} "
            "bytes. The file is truncated, or its vectors differ in length; download it again."
        )
    return width


def _require_width(widths: np.ndarray, width: int, start: int, path: Path) -> None:
    wrong = np.flatnonzero(widths != width)
    if len(wrong):
        raise InputError(
            f"{path}: vector {start + wrong[0]} has {widths[wrong[0]]} numbers, but vector 0 has {width}. All vectors "
            "must have the same length; the file may be damaged, so download it again."
        )


# HDF5


def open_hdf5(path: Path, choice: Choice) -> Table:
    """The data set that a path names within its file, or else the only two-dimensional one."""
    choice.refuse(path)
    file, name = parted(path)
    require_file(file)
    with reading(file, "HDF5"):
        stored = _h5py().File(file, "r")
        data = _data_set(stored, name, file)
    if data.shape[0]:
        require_shape(data.shape, str(path))
    dtype, shape = stored_dtype(data.dtype, str(path)), (int(data.shape[0]), int(data.shape[1]))

    def part(start: int, stop: int) -> np.ndarray:
        with reading(file, "HDF5"):
            return np.asarray(data[start:stop])

    return Table(shape, dtype, part=part, chunk=None if data.chunks is None else int(data.chunks[0]))


def _h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise InputError("reading HDF5 needs h5py; install it with: pip install 'dpdist[hdf5]'") from error


def _data_set(stored: h5py.File, name: str, file: Path) -> h5py.Dataset:
    """The data set of this name; without a name, the only one with two dimensions."""
    found: list[str] = []
    stored.visititems(lambda place, node: found.append(place) if len(getattr(node, "shape", None) or ()) == 2 else None)
    if name:
        if name not in found:
            raise InputError(f"{file} has no two-dimensional data set {name}. Choose among: {_named(file, found)}.")
        return stored[name]
    if len(found) != 1:
        raise InputError(
            f"{file} should contain exactly one two-dimensional data set, or the path should name one; it has "
            f"{len(found)}. Choose among: {_named(file, found)}."
        )
    return stored[found[0]]


def _named(file: Path, names: list[str]) -> str:
    return ", ".join(f"{file}/{name}" for name in names) or "none"
