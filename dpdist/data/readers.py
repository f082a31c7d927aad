"""Files of rows, read a block at a time; a reader for each ending in :data:`READERS`.

.npy           memory-mapped, C or Fortran order
.csv           columns of numbers, as float64
.parquet       columns of numbers, or one column of vectors
.fvecs .bvecs  the TEXMEX format: int32 length, then that many float32 or uint8, for each vector
               (http://corpus-texmex.irisa.fr)
"""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dpdist.core.errors import InputError
from dpdist.data.base import require_shape
from dpdist.data.columns import Names
from dpdist.data.files import reading, require_file

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import ParquetFile

#: What a CSV file holds where a number is missing, in its first line.
_MISSING = {"", "NA", "N/A", "NULL", "null", "None"}
#: How the names begin that pandas and Dask give to a Parquet column holding an index without a name.
_UNNAMED_INDEX = ("__index_level_", "__null_dask_index__")
#: Bytes read at once to count lines.
_READ_BYTES = 2**20


@dataclass(frozen=True)
class Table:
    """Rows of a file, not read yet.

    Parameters
    ----------
    shape : (rows, columns); for CSV the rows are an estimate
    dtype : of the rows as they will be stored
    blocks : given a number of rows, yields all rows in order as (n, columns) arrays of about that many
    names : of the columns, where the file tells them
    """

    shape: tuple[int, int]
    dtype: np.dtype
    blocks: Callable[[int], Iterator[np.ndarray]]
    names: Names | None = None


def open_table(source: str, columns: Sequence[str] | None) -> Table:
    """The rows of a file, not read yet.

    Parameters
    ----------
    source : path of a file on local disk
    columns : names of the columns to take, or None for all

    Raises
    ------
    InputError
        If there is no such file, or no reader for its ending.
    """
    path = Path(source)
    ending = path.suffix.lower()
    if ending in _REFUSED:
        raise InputError(f"{source} {_REFUSED[ending]}")
    if ending not in READERS:
        raise InputError(
            f"{source} should end in one of {', '.join(READERS)}; got '{ending}'. Save it as one of those."
        )
    require_file(path)
    return READERS[ending](path, columns)


def _stored_dtype(dtype: np.dtype, what: str) -> np.dtype:
    """`dtype` as stored, or :class:`InputError` if `what` does not hold real numbers."""
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise InputError(f"{what} should hold real numbers; got dtype {dtype}. Convert it to float64 or leave it out.")
    return dtype.newbyteorder("=")


def _chosen(columns: Sequence[str] | None, names: Sequence[str], path: Path, index: Sequence[str] = ()) -> list[str]:
    """The columns to take, each of which must be there once: those asked for, or all but an index."""
    chosen = [name for name in names if name not in index] if columns is None else list(columns)
    there = Counter(names)
    missing = [name for name in chosen if not there[name]]
    if missing or not chosen:
        told = f"has no column '{missing[0]}'" if missing else "should give at least one column; none were named"
        raise InputError(f"{path} {told}. Choose among: {', '.join(names)}.")
    twice = [name for name, times in Counter(chosen).items() if times > 1 or there[name] > 1]
    if twice:
        raise InputError(
            f"column '{twice[0]}' of {path} is there or was named twice; give each column a name of its own."
        )
    return chosen


def _refuse_columns(columns: Sequence[str] | None, path: Path) -> None:
    if columns is not None:
        raise InputError(f"columns are chosen by name from CSV and Parquet; {path} has no names. Leave them out.")


def _slices(array: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


# NumPy


def _open_npy(path: Path, columns: Sequence[str] | None) -> Table:
    _refuse_columns(columns, path)
    with reading(path, "a NumPy array of numbers"):
        array = np.lib.format.open_memmap(path, mode="r")
    require_shape(array.shape, str(path))
    dtype = _stored_dtype(array.dtype, str(path))
    return Table((array.shape[0], array.shape[1]), dtype, functools.partial(_slices, array))


# TEXMEX vectors


def _open_vectors(path: Path, columns: Sequence[str] | None, value: str) -> Table:
    """Vectors whose numbers are of dtype `value`."""
    _refuse_columns(columns, path)
    dtype = np.dtype(value)
    width = _vector_width(path, dtype)
    records = np.memmap(path, np.dtype([("width", "<i4"), ("vector", dtype, (width,))]), mode="r")

    def blocks(rows: int) -> Iterator[np.ndarray]:
        for start, part in enumerate(_slices(records, rows)):
            _require_width(part["width"], width, start * rows, path)
            yield part["vector"]

    return Table((len(records), width), _stored_dtype(dtype, str(path)), blocks)


def _vector_width(path: Path, dtype: np.dtype) -> int:
    """Length of the first vector, when the file's size agrees with it."""
    size = path.stat().st_size
    if size < 4:
        raise InputError(
            f"{path} should hold vectors, each after its length; got {size} bytes. Check where it is from."
        )
    width = int(np.fromfile(path, "<i4", count=1)[0])
    if width < 1:
        raise InputError(
            f"{path} should begin with the length of a vector; got {width}. Check that it is {path.suffix}."
        )
    record = 4 + width * dtype.itemsize
    if size % record:
        raise InputError(
            f"{path} should be a whole number of vectors of {width} numbers, {record} bytes each; got {size} bytes. "
            "It is truncated or its vectors differ in length; fetch it again."
        )
    return width


def _require_width(widths: np.ndarray, width: int, start: int, path: Path) -> None:
    wrong = np.flatnonzero(widths != width)
    if len(wrong):
        raise InputError(
            f"vector {start + wrong[0]} of {path} should have {width} numbers like the first; its length is given as "
            f"{widths[wrong[0]]}. Make them equally long, or fetch the file again."
        )


# CSV


def _open_csv(path: Path, columns: Sequence[str] | None) -> Table:
    with reading(path, "CSV of numbers"):
        head = pd.read_csv(path, header=None, nrows=2, dtype=str, keep_default_na=False, skipinitialspace=True)
    first = [str(cell) for cell in head.iloc[0]]
    header = not all(map(_is_number, first))
    names = first if header else [str(i) for i in range(len(first))]
    require_shape((len(head) - header, len(names)), str(path))
    # pandas writes its index as a first column without a name
    chosen = _chosen(columns, names, path, [""] if names[0] == "" else [])
    place = {name: i for i, name in enumerate(names)}
    places = [place[name] for name in chosen]
    rows = max(1, _count_lines(path) - header)

    def blocks(size: int) -> Iterator[np.ndarray]:
        with reading(path, "CSV of numbers"):
            for frame in _read_frames(path, header, size, None if len(chosen) == len(names) else sorted(set(places))):
                yield np.column_stack([_numbers(frame[i], names[i], path) for i in places])

    return Table((rows, len(chosen)), np.dtype(np.float64), blocks, tuple(chosen) if header else None)


def _read_frames(path: Path, header: bool, size: int, places: list[int] | None) -> Iterator[pd.DataFrame]:
    """Frames of `size` rows, columns named by their places in the file."""
    first = 0 if header else None
    # low_memory guesses the type of a column piece by piece, which mixes them
    with pd.read_csv(
        path, header=first, usecols=places, chunksize=size, low_memory=False, skipinitialspace=True
    ) as frames:
        for frame in frames:
            frame.columns = range(frame.shape[1]) if places is None else places
            yield frame


def _numbers(column: pd.Series, name: str, path: Path) -> np.ndarray:
    """A column as float64, or :class:`InputError` naming it."""
    numbers = pd.to_numeric(column, errors="coerce")
    wrong = column[numbers.isna() & column.notna()]
    if len(wrong):
        raise InputError(
            f"column '{name}' of {path} should hold numbers; got '{wrong.iloc[0]}'. "
            "Choose columns of numbers with columns=['A', 'B'], or mend it; cells are separated by commas."
        )
    return np.asarray(numbers, dtype=np.float64)


def _is_number(cell: str) -> bool:
    """Whether a cell of the first line is data: a number, or missing."""
    try:
        float(cell)
    except ValueError:
        return cell in _MISSING
    return True


def _count_lines(path: Path) -> int:
    """Line ends of whichever kind; blank lines and ends inside quotes count too."""
    feeds = returns = 0
    with path.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            feeds, returns = feeds + piece.count(b"\n"), returns + piece.count(b"\r")
    return max(feeds, returns)


# Parquet


def _open_parquet(path: Path, columns: Sequence[str] | None) -> Table:
    with reading(path, "Parquet"):
        file = _pyarrow("parquet").ParquetFile(path, memory_map=True)
        schema = file.schema_arrow
        index = _index_columns(schema)
    names = _chosen(columns, schema.names, path, index)
    rows = file.metadata.num_rows
    require_shape((rows, len(names)), str(path))
    types = [schema.field(name).type for name in names]
    if len(names) == 1 and _is_list(types[0]):
        width, numbers = _list_width(file, names[0]), types[0].value_type
        require_shape((rows, width), str(path))
        dtype = _arrow_dtype(numbers, names[0], path)
        block = functools.partial(_vector_block, name=names[0], width=width, dtype=dtype, path=path)
        told = None
    else:
        width, told = len(names), tuple(names)
        dtype = np.result_type(*(_arrow_dtype(t, n, path) for t, n in zip(types, names, strict=True)))
        block = functools.partial(_column_block, names=names, dtype=dtype, path=path)

    def blocks(size: int) -> Iterator[np.ndarray]:
        with reading(path, "Parquet"):
            yield from map(block, file.iter_batches(size, columns=names))

    return Table((rows, width), dtype, blocks, told)


def _index_columns(schema: pyarrow.Schema) -> list[str]:
    """Columns that hold the index of a data frame: those that pandas or Dask recorded as such, whatever their names."""
    recorded = (schema.pandas_metadata or {}).get("index_columns", [])
    unnamed = [name for name in schema.names if name.startswith(_UNNAMED_INDEX)]
    return unnamed + [name for name in recorded if isinstance(name, str)]  # a range is recorded as a dictionary


def _pyarrow(part: str) -> ModuleType:
    try:
        importlib.import_module("pyarrow")
        return importlib.import_module(f"pyarrow.{part}")
    except ImportError as error:
        raise InputError("reading Parquet needs pyarrow; install it with: pip install 'dpdist[parquet]'") from error


def _is_list(kind: pyarrow.DataType) -> bool:
    types = _pyarrow("types")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _arrow_dtype(kind: pyarrow.DataType, name: str, path: Path) -> np.dtype:
    """The dtype for a column of numbers, or :class:`InputError` naming it."""
    types = _pyarrow("types")
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise InputError(
            f"column '{name}' of {path} should hold numbers; got {kind}. Choose columns of numbers, or one column of "
            "vectors, with columns=['A', 'B']."
        )
    return _stored_dtype(np.dtype(kind.to_pandas_dtype()), f"column '{name}' of {path}")


def _list_width(file: ParquetFile, name: str) -> int:
    """Length of the first vector."""
    return len(next(file.iter_batches(1, columns=[name])).column(0)[0].as_py() or ())


def _column_block(batch: pyarrow.RecordBatch, names: list[str], dtype: np.dtype, path: Path) -> np.ndarray:
    """Columns of a batch side by side, (n, columns)."""
    return np.column_stack([_arrow_values(batch.column(name), name, dtype, path) for name in names])


def _vector_block(batch: pyarrow.RecordBatch, name: str, width: int, dtype: np.dtype, path: Path) -> np.ndarray:
    """Vectors of a batch, (n, width)."""
    column = batch.column(name)
    lengths = np.asarray(_pyarrow("compute").list_value_length(column).fill_null(-1))
    if (lengths != width).any():
        wrong = lengths[lengths != width][0]
        raise InputError(
            f"column '{name}' of {path} should hold vectors of {width} numbers like its first; "
            f"got {'an empty cell' if wrong < 0 else f'one of {wrong}'}. Make them equally long or drop those rows."
        )
    return _arrow_values(column.flatten(), name, dtype, path).reshape(-1, width)


def _arrow_values(values: pyarrow.Array, name: str, dtype: np.dtype, path: Path) -> np.ndarray:
    """Numbers as `dtype`; missing ones become NaN, which integers have not."""
    if values.null_count and dtype.kind != "f":
        raise InputError(
            f"column '{name}' of {path} should be complete, for {dtype} cannot say that a number is missing; "
            f"got {values.null_count} empty cells. Fill them, drop those rows, or store the column as float64."
        )
    return np.asarray(values.to_numpy(zero_copy_only=False)).astype(dtype, copy=False)


#: What opens a file, by its ending; see :class:`Table`.
READERS: dict[str, Callable[[Path, Sequence[str] | None], Table]] = {
    ".npy": _open_npy,
    ".csv": _open_csv,
    ".parquet": _open_parquet,
    ".fvecs": functools.partial(_open_vectors, value="<f4"),
    ".bvecs": functools.partial(_open_vectors, value="u1"),
}
_REFUSED = {
    ".zarr": "is Zarr already and needs no conversion; give it to fit as it is.",
    ".npz": "is a NumPy archive, which cannot be read a block at a time; save its array of rows with numpy.save and "
    "convert that; sparse counts are written by dpdist corpus, or given to fit in Python by scipy.sparse.load_npz.",
}
