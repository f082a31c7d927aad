"""Conversion of files of rows to a Zarr array (``dpdist convert``).

A reader finds the shape and dtype of a table and reads its rows. Chunks of rows are read and written independently, on
workers if there are any. Each chunk is written in one atomic step, so that a killed conversion continues with the
missing ones (:mod:`dpdist.data.filling`). Text can only be read from its beginning, so each text file is first written
to an array of its own. Only a few chunks are in memory at a time, however large the files are.

The dtype is kept, except that booleans become uint8 and big-endian numbers native. Non-finite numbers are kept; ``fit``
reports them. Each chunk has a checksum, and the finished array an attribute that all chunks were written, so that
damaged or missing chunks are detected when they are read. Names of columns are stored with the array, so that a model
fitted to it refuses rows with other columns, or in another order.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import zarr
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore

from dpdist.core.digests import digest_of
from dpdist.core.errors import InputError
from dpdist.core.lease import Lease
from dpdist.core.outputs import METADATA
from dpdist.core.places import absolute
from dpdist.core.versions import versions
from dpdist.data.base import FEWEST_ROWS, TARGET_PARTITIONS
from dpdist.data.columns import as_names
from dpdist.data.files import TEXT, ending_of, stamp_of
from dpdist.data.filling import Filling
from dpdist.data.tables import Choice, Table, check_file, files_of, join_tables, open_file
from dpdist.data.zarr import COMPLETE, NAMES
from dpdist.execution import Backend, SerialBackend

#: Largest number of rows and of stored bytes of a chunk.
MOST_CHUNK_ROWS, MOST_CHUNK_BYTES = 16_384, 16 * 2**20
#: Largest bytes of a file that are read at once, if it is best read in large pieces.
MOST_PIECE_BYTES = 256 * 2**20
#: Least number of pieces processed at a time.
_TOGETHER = 64


def convert(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    backend: Backend | None = None,
) -> tuple[int, int]:
    """Write the rows of files as a two-dimensional Zarr v3 array, in bounded memory.

    Parameters
    ----------
    source : files on local disk with an ending in :data:`dpdist.data.tables.READERS`; text may be compressed. Several
        files are one table, and so are a folder of Parquet files and the files that match a pattern
    out : path or URL of the array; appears only when complete. A conversion of the same files that was killed or
        interrupted is continued
    overwrite : replace an existing Zarr array or group
    columns : names of the columns to take, in this order; for text and Parquet only. Columns of text without a header
        are named ``0``, ``1`` and so on. Default: all except the index of a data frame, which is what pandas or Dask
        recorded as such, or a first column of text without a name
    drop : names of columns to leave out
    progress : called after each chunk with the number of rows written and of all rows
    backend : where chunks are read and written; default: one after another in this process. Workers must see the same
        files

    Returns
    -------
    shape : (rows, columns) of the array

    Raises
    ------
    InputError
        If the file is missing, damaged, of another format, does not hold rows of real numbers, or changes meanwhile.
    OutputExistsError
        If something is at `out` and `overwrite` is false, or it is not Zarr, or another process is writing there.
    """
    given = [source] if isinstance(source, str | os.PathLike) else source
    choice = Choice(None if columns is None else tuple(columns), tuple(drop))
    # Workers may have another working directory.
    files = tuple(map(absolute, files_of([os.fspath(each) for each in given], choice)))
    for file in files:
        check_file(file)
    cut = (TARGET_PARTITIONS, FEWEST_ROWS, MOST_CHUNK_ROWS, MOST_CHUNK_BYTES)
    stamps = tuple(map(stamp_of, files))
    told = [stamps, choice.take, choice.drop, cut, versions()]
    plan = digest_of(json.dumps(told).encode())
    work = _Work(files, choice, Filling(absolute(out), plan), stamps)
    with work.filling.begun(overwrite) as lease, work.filling.forgotten_if_refused():
        try:
            return _filled(work, backend or SerialBackend(), progress, lease)
        finally:
            _table.cache_clear()


def chunk_rows(rows: int, row_bytes: int) -> int:
    """Rows of a chunk, such that the partitions of :func:`dpdist.data.base.cut_rows` are whole chunks.

    Parameters
    ----------
    rows : total number
    row_bytes : size of one row as stored
    """
    wanted = max(FEWEST_ROWS, -(-rows // TARGET_PARTITIONS))
    return max(1, min(rows, wanted, MOST_CHUNK_ROWS, MOST_CHUNK_BYTES // row_bytes))


@dataclass(frozen=True)
class _Work:
    """Files, the choice of their columns, the array to fill with their rows, and the stamps of the files at the
    beginning."""

    files: tuple[str, ...]
    choice: Choice
    filling: Filling
    stamps: tuple[tuple[str, int, int], ...]

    def kept(self, number: int) -> Filling:
        """The separate array of the rows of a text file."""
        return replace(self.filling, target=f"{self.filling.where.rstrip('/')}/text-{number}", aside=False)

    def check_unchanged(self) -> None:
        """Raise :class:`InputError` if a file changed since the beginning, so that earlier rows may be of another
        version than later ones."""
        for file, stamp in zip(self.files, self.stamps, strict=True):
            with contextlib.suppress(FileNotFoundError):  # removed after its rows were read
                if stamp_of(file) != stamp:
                    raise InputError(
                        f"{file} changed while it was being converted; convert it again when nothing writes to it."
                    )


def _filled(
    work: _Work, backend: Backend, progress: Callable[[int, int], None] | None, lease: Lease
) -> tuple[int, int]:
    """Fill the missing chunks of the array; returns its shape."""
    texts = [i for i, file in enumerate(work.files) if ending_of(file) in TEXT]
    backend.fetch(backend.map(_keep_text, [work] * len(texts), texts))
    table = _table(work)
    (rows, columns), size = table.shape, chunk_rows(table.shape[0], table.shape[1] * table.dtype.itemsize)
    metadata, there = _metadata(table, size), work.filling.chunks()
    step = size * max(1, min((table.chunk or 1) // size, MOST_PIECE_BYTES // (size * columns * table.dtype.itemsize)))
    starts = range(0, rows, step)
    lacking = [start for start in starts if not {*range(start // size, -(-min(start + step, rows) // size))} <= there]
    done = rows - sum(min(start + step, rows) - start for start in lacking)
    together = backend.at_a_time(_TOGETHER)
    for first in range(0, len(lacking), together):
        some = lacking[first : first + together]
        stops = [min(start + step, rows) for start in some]
        backend.fetch(backend.map(_fill, [work] * len(some), [metadata] * len(some), some, stops))
        for start, stop in zip(some, stops, strict=True):
            done += stop - start
            if progress is not None:
                progress(done, rows)
    lease.check()
    work.check_unchanged()
    work.filling.end(metadata, -(-rows // size))
    return rows, columns


def _fill(work: _Work, metadata: Mapping[str, object], start: int, stop: int) -> None:
    """Write some rows, which are whole chunks."""
    part = _table(work).part
    assert part is not None, "text was already copied to an array"
    work.filling.array(metadata)[start:stop] = part(start, stop)


def _keep_text(work: _Work, number: int) -> None:
    """Write the rows of a text file as they are read, unless they are already written."""
    kept = work.kept(number)
    if kept.is_there():
        return
    table = open_file(work.files[number], work.choice)
    rows, columns = table.shape
    size = chunk_rows(rows, columns * table.dtype.itemsize)
    array, written = kept.array(_metadata(table, size)), 0
    for chunk in _chunks(table.blocks(size), np.empty((size, columns), table.dtype)):
        if written + len(chunk) > array.shape[0]:  # the number of rows of text was only estimated
            array = kept.array(_metadata(replace(table, shape=(2 * array.shape[0], columns)), size))
        array[written : written + len(chunk)] = chunk
        written += len(chunk)
    kept.end(_metadata(replace(table, shape=(written, columns)), size), -(-written // size))


@functools.lru_cache(maxsize=2)
def _table(work: _Work) -> Table:
    """The rows of all files, of which any part can be read."""
    texts = {i for i, file in enumerate(work.files) if ending_of(file) in TEXT}
    tables = [
        _kept(work.kept(i)) if i in texts else open_file(file, work.choice, i) for i, file in enumerate(work.files)
    ]
    return join_tables(tables, work.files)


def _kept(kept: Filling) -> Table:
    array = zarr.open_array(kept.store(), mode="r")

    def part(start: int, stop: int) -> np.ndarray:
        return np.asarray(array[start:stop])

    shape, names = (array.shape[0], array.shape[1]), as_names(array.attrs.get(NAMES, []))
    return Table(shape, array.dtype, names, part, chunk=array.chunks[0])


def _metadata(table: Table, size: int) -> dict[str, object]:
    """Metadata of an array. Floats are not compressed, which would be slow and save little; every chunk has a
    checksum."""
    checksum, parts = zarr.codecs.Crc32cCodec(), dict[str, Buffer]()
    zarr.create_array(
        MemoryStore(parts),
        shape=table.shape,
        chunks=(size, table.shape[1]),
        dtype=table.dtype,
        compressors=[zarr.codecs.ZstdCodec(), checksum] if table.dtype.itemsize == 1 else [checksum],
        dimension_names=("row", "column"),
        attributes={COMPLETE: True, **({} if table.names is None else {NAMES: list(table.names)})},
        zarr_format=3,
    )
    told: dict[str, object] = json.loads(parts[METADATA].to_bytes())
    return told


def _chunks(blocks: Iterator[np.ndarray], buffer: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of `blocks` in chunks of the length of `buffer`, the last one shorter; each is valid until the next."""
    filled = 0
    for block in blocks:
        while len(block):
            taken = block[: len(buffer) - filled]
            buffer[filled : filled + len(taken)] = taken
            filled, block = filled + len(taken), block[len(taken) :]
            if filled == len(buffer):
                yield buffer
                filled = 0
    if filled:
        yield buffer[:filled]
