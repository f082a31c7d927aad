"""Documents in a NumPy archive: a SciPy matrix in CSR, of ``scipy.sparse.save_npz`` or of ``numpy.savez``."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from scipy import sparse

from dpdist.core.errors import InputError
from dpdist.data.documents.counts import BLOCK_DOCUMENTS, BLOCK_ENTRIES, require_vocabulary
from dpdist.data.files import reading

_NPZ = "a NumPy archive of a CSR matrix"


def read_npz(path: Path, vocabulary: int | None) -> Iterator[sparse.csr_array]:
    """The documents in blocks; the archive has arrays ``indptr``, ``indices``, ``data`` and ``shape``.

    Parameters
    ----------
    path : of the archive
    vocabulary : number of words, if known
    """
    # The archive's three arrays are read in parallel, a block of each at a time.
    with reading(path, _NPZ), contextlib.ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        documents, words = _npz_shape(archive, path)
        require_vocabulary(words, vocabulary, path)
        indptr, indices, data = (
            _Member(name, stack.enter_context(archive.open(f"{name}.npy")), kinds)
            for name, kinds in (("indptr", "iu"), ("indices", "iu"), ("data", "biuf"))
        )
        end = indptr.take(min(1, indptr.length)).astype(np.int64)
        if (indptr.length, end.tolist(), data.length) != (documents + 1, [0], indices.length):
            raise ValueError(
                f"for {documents} documents, indptr should have {documents + 1} entries and start at 0, and there "
                f"should be one count per index; indptr has {indptr.length} entries and starts at {end}, with "
                f"{indices.length} indices and {data.length} counts"
            )
        for start in range(0, documents, BLOCK_DOCUMENTS):
            ends = np.concatenate([end, indptr.take(min(BLOCK_DOCUMENTS, documents - start)).astype(np.int64)])
            _require_boundaries(ends, start, indices.length)
            for part in _bounded(ends):
                counts, columns = data.take(int(part[-1])), indices.take(int(part[-1]))
                yield sparse.csr_array((counts, columns, part), shape=(len(part) - 1, words))
            end = ends[-1:]
        if end[0] != indices.length:
            raise ValueError(f"its documents end at entry {end[0]} of {indices.length}")


def _npz_shape(archive: zipfile.ZipFile, path: Path) -> tuple[int, int]:
    names = archive.namelist()
    missing = [name for name in ("indptr", "indices", "data", "shape") if f"{name}.npy" not in names]
    kind = str(_small(archive, "format").astype(str)) if "format.npy" in names else "csr"
    if kind != "csr" or missing:
        told = f"no array '{missing[0]}'" if kind == "csr" else f"a matrix in {kind}"
        raise InputError(
            f"{path} should contain a CSR matrix, with arrays indptr, indices, data and shape; got {told}. "
            "Save it with: scipy.sparse.save_npz(path, matrix.tocsr())"
        )
    shape = _small(archive, "shape")
    if shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise InputError(f"{path} should contain a 2-D matrix, one row per document; its shape is {shape}. Reshape it.")
    return int(shape[0]), int(shape[1])


def _small(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _require_boundaries(ends: np.ndarray, start: int, entries: int) -> None:
    wrong = np.flatnonzero((np.diff(ends) < 0) | (ends[1:] > entries))
    if len(wrong):
        first, last = ends[wrong[0] : wrong[0] + 2]
        raise ValueError(f"document {start + wrong[0]} goes from entry {first} to {last} of {entries}")


def _bounded(ends: np.ndarray) -> Iterator[np.ndarray]:
    """Boundaries of documents, cut into parts of at most :data:`BLOCK_ENTRIES` entries or one document, each starting
    at 0."""
    start = 0
    while start < len(ends) - 1:
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + BLOCK_ENTRIES, side="right")) - 1)
        yield ends[start : stop + 1] - ends[start]
        start = stop


class _Member:
    """An array of a NumPy archive, read sequentially.

    Parameters
    ----------
    name : for messages
    stream : its bytes
    kinds : allowed kinds of dtypes
    """

    def __init__(self, name: str, stream: IO[bytes], kinds: str) -> None:
        self.name, self._stream = name, stream
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, self.dtype = read(stream)
        if len(shape) != 1 or self.dtype.kind not in kinds:
            raise ValueError(f"its array {name} should be 1-D numbers; it is {len(shape)}-D of dtype {self.dtype}")
        self.length = int(shape[0])

    def take(self, count: int) -> np.ndarray:
        """The next `count` numbers."""
        data = self._stream.read(count * self.dtype.itemsize)
        if len(data) < count * self.dtype.itemsize:
            raise EOFError(f"its array {self.name} ends too early")
        return np.frombuffer(data, self.dtype).astype(self.dtype.newbyteorder("="), copy=False)
