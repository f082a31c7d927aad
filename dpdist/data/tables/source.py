"""Sources for files of rows: formats with random access are read when needed, text is read once into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.core.errors import InputError
from dpdist.data.arrays import ArraySource
from dpdist.data.base import Partition, Partitioning, Source, TableSource, Weights, cut_rows
from dpdist.data.columns import Names
from dpdist.data.tables import Choice, Table, files_of, join_tables, open_file, open_table
from dpdist.data.tables.base import NoColumnError
from dpdist.models.families.base import Rows

#: Largest number of values of text that are held in memory.
MOST_HELD = 2**27


@dataclass(frozen=True, eq=False)
class FilePartition(Partition):
    """A range of rows of files, which are opened when it is loaded.

    Parameters
    ----------
    files : only those with rows of the partition
    first : its first row, counted from the beginning of these files
    dtype : of the rows of all files of the source
    """

    files: tuple[str, ...]
    first: int
    choice: Choice
    dtype: np.dtype
    weights: np.ndarray | None

    def read(self) -> tuple[Rows, np.ndarray | None]:
        part = open_table(self.files, self.choice).part
        assert part is not None, "any part of these files can be read"
        return np.ascontiguousarray(part(self.first, self.first + self.stop - self.start), self.dtype), self.weights

    @property
    def label(self) -> str:
        return f"{super().label} of {self.files[0]}"


class FileSource(TableSource):
    """Rows of files of NumPy, HDF5, Parquet or vectors, read a partition at a time; workers see the same files.

    Parameters
    ----------
    files : their paths
    tables : the opened files, with the chosen columns
    choice : the columns to take
    weights : (N,) row weights, optional
    """

    def __init__(self, files: Sequence[str], tables: Sequence[Table], choice: Choice, weights: Weights = None) -> None:
        self.files, self.choice = tuple(os.path.abspath(file) for file in files), choice  # noqa: PTH100
        table = join_tables(tables, files)
        label = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
        super().__init__(table.shape, table.dtype, label, weights, table.names)
        self._ends, self._chunk = np.cumsum([0, *(each.shape[0] for each in tables)]), table.chunk
        self.cut = self.cut_for(None)

    def cut_for(self, work_rows: int | None) -> Partitioning:
        return cut_rows(self.shape[0], self.shape[1] * self.dtype.itemsize, self._chunk, work_rows)

    def partition(self, index: int, start: int, stop: int, weights: np.ndarray | None) -> FilePartition:
        begin, end = np.searchsorted(self._ends, [start, stop - 1], side="right") - 1
        files, first = self.files[begin : end + 1], start - int(self._ends[begin])
        return FilePartition(index, start, stop, files, first, self.choice, self.dtype, weights)


def known_source(paths: str | Sequence[str], known: Names | None, weights: Weights = None) -> Source:
    """The rows of files, with the columns of a model if the files have them all, else with all columns."""
    if known is None:
        return file_source(paths, Choice(), weights)
    try:
        return file_source(paths, Choice(known), weights)
    except NoColumnError as missing:
        try:
            return file_source(paths, Choice(), weights)
        except InputError:
            raise missing from None


def file_source(paths: str | Sequence[str], choice: Choice, weights: Weights = None) -> Source:
    """The rows of files. Raises as :func:`dpdist.data.tables.open_table`, or if text is too large for memory."""
    files = files_of(paths, choice)
    tables = [open_file(file, choice, others) for others, file in enumerate(files)]
    table = join_tables(tables, files)
    if table.part is not None:
        return FileSource(files, tables, choice, weights)
    rows, columns = table.shape
    if rows * columns > MOST_HELD:
        raise InputError(
            f"{files[0]} is text with about {rows} rows and {columns} columns, which is too large to keep in memory; "
            f"convert it first with: dpdist convert {files[0]} --out rows.zarr"
        )
    held = ArraySource(np.concatenate(list(table.blocks(rows))), weights, names=table.names)
    held.label = files[0]
    return held
