"""Parquet: columns of numbers, or one column of vectors."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from dpdist.core.errors import InputError
from dpdist.data.files import reading
from dpdist.data.soundness import require_exact_column, require_shape
from dpdist.data.tables.base import Choice, Table, not_numbers, stored_dtype

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import ParquetFile

#: Prefixes of the names that pandas and Dask give to a column with an unnamed index.
_UNNAMED_INDEX = ("__index_level_", "__null_dask_index__")
#: Number of rows read at a time to find a vector.
_LOOKED_AT = 64


def open_parquet(path: Path, choice: Choice) -> Table:
    """The columns of a file, or its single column of vectors."""
    with reading(path, "Parquet"):
        file = _opened(path)
        schema = file.schema_arrow
        index = _index_columns(schema)
    rows = file.metadata.num_rows
    if not rows:
        return Table((0, len(schema.names)), np.dtype(np.float64))
    names = choice.of(schema.names, path, index)
    types = [schema.field(name).type for name in names]
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
    ends = [0, *np.cumsum(sizes).tolist()]
    if len(names) == 1 and _is_list(types[0]):
        width, numbers = _list_width(file, names[0]), types[0].value_type
        require_shape((rows, width), str(path))
        _require_numbers([numbers], names, path)
        dtype = _arrow_dtype(numbers, names[0], path)
        block = functools.partial(_vector_block, name=names[0], width=width, dtype=dtype, path=path)
        told = None
    else:
        width, told = len(names), tuple(names)
        _require_numbers(types, names, path)
        dtype = np.result_type(*(_arrow_dtype(t, n, path) for t, n in zip(types, names, strict=True)))
        block = functools.partial(_column_block, names=names, dtype=dtype, path=path)

    def part(start: int, stop: int) -> np.ndarray:
        groups = [group for group in range(len(ends) - 1) if ends[group] < stop and ends[group + 1] > start]
        before, found = ends[groups[0]], []
        with reading(path, "Parquet"):
            for batch in file.iter_batches(stop - before, row_groups=groups, columns=names):
                first, before = max(start - before, 0), before + len(batch)
                if before > start:
                    found.append(block(batch.slice(first, len(batch) - first - max(before - stop, 0))))
                if before >= stop:  # what else the group holds is not decoded
                    break
        return np.concatenate(found)

    return Table((rows, width), dtype, told, part, chunk=max(sizes, default=None))


def parquet_cells(path: Path, name: str, size: int) -> Iterator[list[object]]:
    """The cells of a column, in blocks of rows."""
    with reading(path, f"Parquet with a column '{name}'"):
        file = _opened(path)
        Choice([name]).of(file.schema_arrow.names, path)
        for batch in file.iter_batches(size, columns=[name]):
            yield batch.column(0).to_pylist()


def _opened(path: Path) -> ParquetFile:
    """A file that is not read yet; checksums of its pages, if it has any, are verified as they are read."""
    return _pyarrow("parquet").ParquetFile(path, memory_map=True, page_checksum_verification=True)


def _index_columns(schema: pyarrow.Schema) -> list[str]:
    """Columns with the index of a data frame, as recorded by pandas or Dask."""
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


def _require_numbers(kinds: list[pyarrow.DataType], names: list[str], path: Path) -> None:
    """Raise :class:`InputError` naming the columns that do not hold numbers."""
    types = _pyarrow("types")
    tests = (types.is_integer, types.is_floating, types.is_boolean)
    wrong = [(name, kind) for name, kind in zip(names, kinds, strict=True) if not any(test(kind) for test in tests)]
    if wrong:
        way_on = "; one column of vectors can be chosen alone"
        raise not_numbers([name for name, _ in wrong], path, str(wrong[0][1]), way_on)


def _arrow_dtype(kind: pyarrow.DataType, name: str, path: Path) -> np.dtype:
    """The stored dtype of a column of numbers."""
    return stored_dtype(np.dtype(kind.to_pandas_dtype()), f"column '{name}' of {path}")


def _list_width(file: ParquetFile, name: str) -> int:
    """Length of the first vector that is not missing."""
    for batch in file.iter_batches(_LOOKED_AT, columns=[name]):
        column = batch.column(0).drop_null()
        if len(column):
            return len(column[0])
    return 0


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
            f"got {'an empty cell' if wrong < 0 else f'one of {wrong}'}. Correct or drop those rows."
        )
    return _arrow_values(column.flatten(), name, dtype, path).reshape(-1, width)


def _arrow_values(values: pyarrow.Array, name: str, dtype: np.dtype, path: Path) -> np.ndarray:
    """Numbers as `dtype`; missing ones become NaN, or raise :class:`InputError` for integer dtypes."""
    if values.null_count and dtype.kind != "f":
        raise InputError(
            f"column '{name}' of {path} should have no empty cells, because {dtype} cannot represent missing numbers; "
            f"got {values.null_count}. Fill them, drop those rows, or store the column as float64."
        )
    if _pyarrow("types").is_integer(values.type):
        require_exact_column(np.asarray(values.drop_null()), f"in column '{name}' of {path}")
    return np.asarray(values.to_numpy(zero_copy_only=False)).astype(dtype, copy=False)
