"""Labels together with the row ids: arrays in Zarr, or a CSV or Parquet table for other programs."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import zarr

from dpdist.core.errors import InputError, OutputExistsError
from dpdist.core.outputs import check_parent, require_path
from dpdist.core.places.local import put_file
from dpdist.data.files import ending_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow

#: File endings of label tables.
TABLES = (".csv", ".tsv", ".parquet")
#: File endings that are refused, as otherwise a Zarr folder would get a name with such an ending.
_OTHERS = frozenset(
    {".txt", ".dat", ".data", ".json", ".jsonl"}
    | {".npy", ".npz", ".h5", ".hdf5", ".xlsx", ".feather", ".arrow", ".orc", ".pkl"}
)
#: Column with the stable id of the labelled component.
COMPONENT = "component_id"
#: Array of the most probable components of each row, best first.
TOP = "top_label"
#: Rows of a block.
BLOCK = 2**16
#: Compression option of pandas, by file ending; gzip gets a fixed mtime and no name, so that equal tables are equal
#: files, and none is unpacked under the name it has until it is complete.
_COMPRESSION = {".gz": {"method": "gzip", "mtime": 1, "filename": ""}, ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}


class RowIds(NamedTuple):
    """The ids of all rows.

    Parameters
    ----------
    name : of the column of ids
    cells : the ids in order, some at a time
    """

    name: str
    cells: Iterator[list[object]]


def numbered(rows: int) -> RowIds:
    """Ids that are the row numbers from 0."""
    return RowIds("row", (list(range(start, min(start + BLOCK, rows))) for start in range(0, rows, BLOCK)))


def is_table(out: str | os.PathLike[str]) -> bool:
    """Whether labels at this path are a table, not Zarr; raises :class:`InputError` for unsupported endings."""
    if (ending := Path(out).suffix.lower()) in _OTHERS:
        raise InputError(
            f"labels are written as .csv, .tsv, .parquet or .zarr; got {out}, which ends in {ending}. Use one of these."
        )
    return ending_of(os.fspath(out)) in TABLES


def claim_file(out: str | os.PathLike[str], overwrite: bool) -> Path:
    """`out` as the path of a file to write; raises :class:`OutputExistsError` if something exists there that is not a
    file, or `overwrite` is false."""
    require_path(out, "a table of labels", "labels.csv, or a URL such as s3://bucket/labels.zarr")
    target = Path(out)
    if target.exists() and overwrite and not target.is_file():
        raise OutputExistsError(f"{target} exists and is not a file, so it is not replaced; choose another name.")
    if target.exists() and not overwrite:
        raise OutputExistsError(f"{target} exists; choose another name, or replace it with overwrite=True.")
    check_parent(target)
    return target


def check_table(target: Path, ids: str, outputs: Iterable[str]) -> None:
    """Raise :class:`InputError` if such a table cannot be written; called before any prediction.

    Parameters
    ----------
    ids : name of the column of ids
    outputs : names of the arrays of predictions
    """
    refuse_taken(ids, (COMPONENT, *outputs))
    if ids.rpartition("_")[0] in {*outputs, f"top_{COMPONENT}"} and ids.rpartition("_")[2].isdecimal():
        refuse_taken(ids, (ids,))
    if target.suffix.lower() == ".zst" and importlib.util.find_spec("zstandard") is None:
        raise InputError("writing .zst needs zstandard; install it with: pip install zstandard")
    if ending_of(target.name) == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InputError("writing Parquet needs pyarrow; install it with: pip install 'dpdist[parquet]'")


def write_table(labels: Path, target: Path, ids: RowIds, outputs: Iterable[str], overwrite: bool) -> None:
    """Write the labels of a Zarr group as a table, which appears only when complete; the caller must be the sole
    writer.

    Parameters
    ----------
    labels : group of :func:`dpdist.runs.labelling.write_labels`
    ids : of the rows
    outputs : names of the arrays of predictions
    overwrite : whether to replace a file that appeared at `target` in the meantime

    Raises
    ------
    InputError
        If there are more or fewer ids than rows.
    OutputExistsError
        If a file appeared at `target` and `overwrite` is false.
    """
    frames = _frames(labels, ids, sorted(set(outputs) - {"label"}))
    aside = target.with_name(f".partial-{target.name}")  # overwrites the remains of a killed process
    try:
        if ending_of(target.name) == ".parquet":
            _write_parquet(frames, aside, ids.name)
        else:
            _write_text(frames, aside, "\t" if ending_of(target.name) == ".tsv" else ",")
        claim_file(target, overwrite)
        put_file(aside, target)
    finally:
        aside.unlink(missing_ok=True)


def create_ids(group: zarr.Group, name: str, rows: int) -> zarr.Array:
    """A new text array in a group for the row ids, with the name of their column."""
    return group.create_array(
        name,
        shape=(rows,),
        dtype=str,
        chunks=(min(rows, BLOCK),),
        dimension_names=["row"],
        attributes={"units": "1", "long_name": "id of the row"},
    )


def write_ids(array: zarr.Array, ids: RowIds) -> None:
    """Write the row ids; raises :class:`InputError` if there are more or fewer ids than rows."""
    for part, own in _blocks(ids, array.shape[0]):
        array[part] = np.array(["" if cell is None else str(cell) for cell in own], dtype=object)


def refuse_taken(name: str, taken: Iterable[str]) -> None:
    """Raise :class:`InputError` if the column of ids has the name of another written column."""
    if name in taken:
        raise InputError(f"the column of ids has the name of a column of the output, '{name}'; rename it in the data.")


def _blocks(ids: RowIds, rows: int) -> Iterator[tuple[slice, list[object]]]:
    """The row slices of all blocks with their ids; raises :class:`InputError` if there are not exactly `rows` ids."""
    cells = itertools.chain.from_iterable(ids.cells)
    for start in range(0, rows, BLOCK):
        part = slice(start, min(start + BLOCK, rows))
        own = list(itertools.islice(cells, part.stop - start))
        if len(own) < part.stop - start:
            raise InputError(f"column '{ids.name}' should have {rows} ids, one per row; got {start + len(own)}.")
        yield part, own
    if next(cells, None) is not None:
        raise InputError(f"column '{ids.name}' should have {rows} ids, one per row; got more.")


def _frames(labels: Path, ids: RowIds, others: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Data frames of blocks of rows, with their ids, labels, and the arrays named in `others`."""
    import pandas as pd

    group = zarr.open_group(labels, mode="r")
    rows, stable = group["label"].shape[0], np.asarray(group["id"][:])
    for part, own in _blocks(ids, rows):
        label = np.asarray(group["label"][part])
        called = pd.Series(own, dtype=object)  # object: pandas would convert integers beside missing values to floats
        columns: dict[str, object] = {
            ids.name: called,
            "label": label,
            COMPONENT: np.where(label < 0, -1, stable[label]),
        }
        for name in others:
            values = np.asarray(group[name][part])
            columns |= _columns(name, values) | (_columns(f"top_{COMPONENT}", stable[values]) if name == TOP else {})
        yield pd.DataFrame(columns)


def _columns(told: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """An array as columns; a 2-D array as one column for each of its columns, numbered from 0."""
    return {told: values} if values.ndim == 1 else {f"{told}_{k}": values[:, k] for k in range(values.shape[1])}


def _write_text(frames: Iterator[pd.DataFrame], path: Path, separator: str) -> None:
    packed = _COMPRESSION.get(path.suffix.lower())
    with path.open("wb") as stream:
        for number, frame in enumerate(frames):
            frame.to_csv(stream, sep=separator, index=False, header=number == 0, mode="wb", compression=packed)


def _write_parquet(frames: Iterator[pd.DataFrame], path: Path, called: str) -> None:
    """Write blocks of rows to Parquet. The ids have the type of those in the first block, or are text."""
    import pyarrow
    from pyarrow import parquet

    frame = next(frames)
    kind = _type_of_ids(frame[called].tolist())
    others = pyarrow.Schema.from_pandas(frame.drop(columns=called), preserve_index=False)
    schema = pyarrow.schema([(called, kind), *others])
    with parquet.ParquetWriter(path, schema) as writer:
        for each in itertools.chain([frame], frames):
            ids = _ids_of_type(each[called].tolist(), kind, called)
            rest = pyarrow.Table.from_pandas(each.drop(columns=called), schema=others, preserve_index=False)
            writer.write_table(rest.add_column(0, called, ids).cast(schema))


def _type_of_ids(cells: list[object]) -> pyarrow.DataType:
    import pyarrow

    try:
        kind = pyarrow.array(cells).type
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):  # of several types, or beyond 63 bits
        return pyarrow.string()
    return pyarrow.string() if pyarrow.types.is_null(kind) else kind


def _ids_of_type(cells: list[object], kind: pyarrow.DataType, name: str) -> pyarrow.Array:
    import pyarrow

    if pyarrow.types.is_string(kind):
        cells = [None if cell is None else str(cell) for cell in cells]
    try:
        return pyarrow.array(cells, type=kind)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError) as error:
        raise InputError(
            f"the ids in column '{name}' should all be {kind}, like the first ones; {error}. Write labels.csv instead, "
            "or convert the ids to text."
        ) from error
