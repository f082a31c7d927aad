"""Files of rows as a Zarr array: what ``dpdist convert`` does.

A reader tells the shape and dtype of a table and yields its rows in blocks. The writer cuts the blocks into chunks,
writes them aside and renames the finished array into place. No more than a few chunks are in memory at once, however
large the file. The dtype is kept, except that booleans become uint8 and big-endian numbers native. Numbers that are
not finite pass through; ``fit`` reports them. Each chunk carries a checksum, and the finished array a mark that all
chunks were written, so that a damaged or lost one is noticed where it is read. Names of columns are kept with the
array, so that a model fitted to it refuses rows whose columns are others, or in another order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import zarr

from dpdist.core.outputs import claim_folder, written_aside
from dpdist.data.base import FEWEST_ROWS, TARGET_PARTITIONS
from dpdist.data.tables import Choice, Table, open_table
from dpdist.data.zarr import COMPLETE, NAMES

#: Bounds on a chunk: rows, and bytes as stored.
MOST_CHUNK_ROWS, MOST_CHUNK_BYTES = 65_536, 32 * 2**20


def convert(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    progress: Callable[[int, int | None], None] | None = None,
) -> tuple[int, int]:
    """Write the rows of a file as a two-dimensional Zarr v3 array, in bounded memory.

    Parameters
    ----------
    source : files on local disk with an ending of :data:`dpdist.data.tables.READERS`, text maybe compressed; several
        are one table, and so are a folder of Parquet files and those that a pattern fits
    out : where the array goes; appears only when it is complete
    overwrite : replace a Zarr array or group that is there
    columns : names of the columns to take, in this order; text and Parquet only. Columns of text without a header
        are named ``0``, ``1`` and so on. All by default, but for the index of a data frame: what pandas or Dask
        recorded as such, and a first column of text without a name
    drop : names of columns to leave out
    progress : called with the rows written and the rows in all after each chunk

    Returns
    -------
    shape : (rows, columns) of the array

    Raises
    ------
    InputError
        If the file is missing, damaged, of another format, or does not hold rows of real numbers.
    OutputExistsError
        If something is at `out` and `overwrite` is false, or it is not Zarr.
    """
    target = claim_folder(out, overwrite)
    files = [source] if isinstance(source, str | os.PathLike) else source
    table = open_table([os.fspath(file) for file in files], Choice(columns, drop))
    with written_aside(target) as aside:
        return _write(table, aside, progress)


def chunk_rows(rows: int, row_bytes: int) -> int:
    """Rows of a chunk, so that the partitions of :func:`dpdist.data.base.cut_rows` are whole chunks.

    Parameters
    ----------
    rows : total number
    row_bytes : size of one row as stored
    """
    wanted = max(FEWEST_ROWS, -(-rows // TARGET_PARTITIONS))
    return max(1, min(rows, wanted, MOST_CHUNK_ROWS, MOST_CHUNK_BYTES // row_bytes))


def _write(table: Table, path: Path, progress: Callable[[int, int | None], None] | None) -> tuple[int, int]:
    """Write a new array at `path`, resized where the table's rows were an estimate."""
    rows, columns = table.shape
    size = chunk_rows(rows, columns * table.dtype.itemsize)
    array = _create(path, table, size)
    written = 0
    for chunk in _chunks(table.blocks(size), np.empty((size, columns), table.dtype)):
        stop = written + len(chunk)
        if stop > array.shape[0]:
            array.resize((stop, columns))
        array[written:stop] = chunk
        written = stop
        if progress is not None:
            progress(written, max(rows, written))
    if written < array.shape[0]:
        array.resize((written, columns))
    array.attrs[COMPLETE] = True
    if table.names is not None:
        array.attrs[NAMES] = list(table.names)
    return written, columns


def _create(path: Path, table: Table, size: int) -> zarr.Array:
    """An empty array; floats are not compressed, for it takes time and saves little. Every chunk has a checksum."""
    checksum = zarr.codecs.Crc32cCodec()
    return zarr.create_array(
        path,
        shape=table.shape,
        chunks=(size, table.shape[1]),
        dtype=table.dtype,
        compressors=[zarr.codecs.ZstdCodec(), checksum] if table.dtype.itemsize == 1 else [checksum],
        dimension_names=("row", "column"),
        zarr_format=3,
        config={"write_empty_chunks": True},
    )


def _chunks(blocks: Iterator[np.ndarray], buffer: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of `blocks` in chunks as long as `buffer`, the last one shorter; each is valid until the next."""
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
