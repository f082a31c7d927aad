"""Files of rows, read in blocks, with a reader for each ending in :data:`READERS`.

Text is CSV, TSV and similar formats, plain or compressed. A folder of Parquet files is one table, and so are several
files of one kind.
"""

from __future__ import annotations

import functools
import glob
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from dpdist.core.errors import InputError
from dpdist.data.files import COMPRESSED, TEXT, ending_of, parquet_in, parted, refuse_url, require_file
from dpdist.data.soundness import require_shape
from dpdist.data.tables.arrays import open_hdf5, open_npy, open_vectors
from dpdist.data.tables.base import Choice, Table
from dpdist.data.tables.parquet import open_parquet, parquet_cells

__all__ = ["READERS", "Choice", "Table", "cells_of", "check_file", "files_of", "join_tables", "open_file", "open_table"]


def _open_text(path: Path, choice: Choice) -> Table:
    from dpdist.data.tables.text import open_text  # late, as importing pandas takes long

    return open_text(path, choice)


def _text_cells(path: Path, name: str, size: int) -> Iterator[list[object]]:
    from dpdist.data.tables.text import text_cells

    return text_cells(path, name, size)


#: Functions that open a file as a :class:`Table`, by its ending.
READERS: dict[str, Callable[[Path, Choice], Table]] = {
    **dict.fromkeys(TEXT, _open_text),
    ".npy": open_npy,
    ".parquet": open_parquet,
    ".h5": open_hdf5,
    ".hdf5": open_hdf5,
    ".fvecs": functools.partial(open_vectors, value="<f4"),
    ".bvecs": functools.partial(open_vectors, value="u1"),
}
#: Largest number of files that stay open, as systems allow a process a thousand or fewer.
MOST_OPEN = 100
_REFUSED = {
    ".zarr": "is already Zarr and needs no conversion; give its path to fit.",
    ".npz": "is a NumPy archive, which cannot be read in blocks. Save its array of rows with numpy.save and convert "
    "that file. For sparse counts, use dpdist corpus, or load them with scipy.sparse.load_npz and give them to fit.",
    ".xlsx": "is an Excel workbook; save its sheet as CSV and give that file.",
}


def open_table(source: str | Sequence[str], choice: Choice = Choice()) -> Table:  # noqa: B008 (it is a value)
    """The rows of a file, of a folder of Parquet files, or of several files in order; rows are not read yet.

    Parameters
    ----------
    source : paths on local disk; a pattern such as ``part-*.csv`` stands for the matching files, sorted by name with
        numbers by value: part-2 before part-10
    choice : the columns to take

    Raises
    ------
    InputError
        If a file is missing or has no reader, no file has rows, or several files differ in their columns.
    """
    files = files_of(source, choice)
    return join_tables([open_file(file, choice, others) for others, file in enumerate(files)], files)


def open_file(path: str, choice: Choice, others: int = 0) -> Table:
    """The rows of a file, which may have none; raises :class:`InputError` as :func:`open_table`.

    Parameters
    ----------
    others : number of files that were opened before; after :data:`MOST_OPEN` of them, this one is open only while rows
        are read
    """
    table = _reader(path)(Path(path), choice)
    if others < MOST_OPEN or table.part is None:
        return table
    return replace(table, part=functools.partial(_part_of_file, path, choice))


def _part_of_file(path: str, choice: Choice, start: int, stop: int) -> np.ndarray:
    part = open_file(path, choice).part
    assert part is not None, "any part of such a file can be read"
    return part(start, stop)


def files_of(source: str | Sequence[str], choice: Choice) -> list[str]:
    """The files that paths, folders and patterns stand for; raises :class:`InputError` if there are none, or if all
    columns are taken and the names of subfolders hold a partition column."""
    given = [source] if isinstance(source, str) else list(source)
    if not given:
        raise InputError("at least one file is needed; none was named.")
    return [file for each in given for file in _files(each, choice)]


def cells_of(source: str, name: str, size: int) -> Iterator[list[object]]:
    """The cells of one column of files, of any type, in blocks of rows; raises :class:`InputError` if the files have no
    named columns, or not this one."""
    cells = {**dict.fromkeys(TEXT, _text_cells), ".parquet": parquet_cells}
    for file in files_of(source, Choice([name])):
        if ending_of(file) not in cells:
            raise InputError(f"{file} has no column '{name}': only text and Parquet files have named columns.")
        yield from cells[ending_of(file)](Path(file), name, size)


def _files(path: str, choice: Choice) -> list[str]:
    refuse_url(path)
    if Path(path).is_dir() and ending_of(path) != ".zarr":
        found = sorted((str(each) for each in parquet_in(Path(path))), key=_by_number)
        if not found:
            raise InputError(f"the folder {path} should contain Parquet files; it has none. Give the files themselves.")
        if choice.take is None:
            _refuse_named_folders(path, found)
        _tell_of_others(path)
        return found
    if glob.has_magic(path) and not Path(path).exists():
        fitting = sorted(glob.glob(path), key=_by_number)  # noqa: PTH207 (a whole pattern, maybe absolute)
        if not fitting:
            raise InputError(f"no file matches {path}; check the pattern.")
        return fitting
    return [path]


def _by_number(path: str) -> list[tuple[int, str]]:
    """A sort key that orders numbers in names by value, as Dask does: part.2 before part.10."""
    parts = re.split(r"([0-9]+)", path)
    return [(int(part), part) if place % 2 else (0, part) for place, part in enumerate(parts)]


def _refuse_named_folders(path: str, files: Sequence[str]) -> None:
    """Raise :class:`InputError` if subfolders of `path` that hold `files` are named by a partition column."""
    folders = {Path(file).parent.relative_to(path) for file in files}
    named = sorted({part for folder in folders for part in folder.parts if "=" in part})
    if named:
        column = named[0].partition("=")[0]
        raise InputError(
            f"the folder {path} has a column '{column}' in the names of its subfolders, such as {named[0]}, which is "
            "not read. Choose columns of the files with columns=['A', 'B'], or write the files again without partition "
            "columns."
        )


def _tell_of_others(path: str) -> None:
    """Warn if a folder of Parquet files also holds files of rows of other kinds, which are not read."""
    others = [each.name for each in Path(path).iterdir() if ending_of(each.name) in {*READERS} - {".parquet"}]
    if others := sorted(each for each in others if not each.startswith((".", "_"))):
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        warnings.warn(
            f"only the Parquet files in the folder {path} are read, not {others[0]}{more}; to read those, give the "
            "paths of all files.",
            stacklevel=2,
        )


def _reader(path: str) -> Callable[[Path, Choice], Table]:
    ending = ending_of(path)
    if ending in _REFUSED:
        raise InputError(f"{path} {_REFUSED[ending]}")
    if ending not in READERS:
        raise InputError(
            f"{path} should end in one of {', '.join(READERS)}, compressed text also in {', '.join(COMPRESSED)}; "
            f"got '{ending}'. Save it in one of these formats."
        )
    require_file(parted(Path(path))[0])
    return READERS[ending]


def check_file(path: str) -> None:
    """Raise :class:`InputError` unless the file exists and has a reader."""
    _reader(path)


def join_tables(tables: Sequence[Table], files: Sequence[str]) -> Table:
    """Tables of several files as one; tables without rows are ignored. Raises :class:`InputError` if none has a row, or
    they differ in their columns."""
    held = [(table, file) for table, file in zip(tables, files, strict=True) if table.shape[0]]
    if not held:
        require_shape(tables[0].shape, files[0])
    (first, first_file), tables = held[0], [table for table, _ in held]
    if len(held) == 1:
        return first
    for table, file in held[1:]:
        if (table.shape[1], table.names) != (first.shape[1], first.names):
            raise InputError(
                f"{file} should have the same columns as {first_file}, {_told(first)}; got {_told(table)}. Choose "
                "columns that all files have with columns=['A', 'B'], or convert the files one by one."
            )
    dtype = np.result_type(*(table.dtype for table in tables))

    def stream(rows: int) -> Iterator[np.ndarray]:
        yield from (block for table in tables for block in table.blocks(rows))

    ends = np.cumsum([0, *(table.shape[0] for table in tables)]).tolist()

    def part(start: int, stop: int) -> np.ndarray:
        found = [np.empty((0, first.shape[1]), dtype)]
        for table, (begin, end) in zip(tables, pairwise(ends), strict=True):
            low, high = max(start, begin), min(stop, end)
            if low < high and table.part is not None:
                found.append(table.part(low - begin, high - begin))
        return np.concatenate(found)

    shape, whole = (ends[-1], first.shape[1]), all(table.part is not None for table in tables)
    chunk = max((table.chunk or 0 for table in tables), default=0) or None
    return Table(shape, dtype, first.names, part if whole else None, None if whole else stream, chunk)


def _told(table: Table) -> str:
    return f"{table.shape[1]}" + (f" ({', '.join(table.names[:5])})" if table.names else " without names")
