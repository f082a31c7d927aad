"""Sources of rows and documents."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from os import PathLike, fspath
from os.path import exists  # of what no path can be it says no, which pathlib does not
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt
from zarr import Array as ZarrArray
from zarr import Group as ZarrGroup

from dpdist.core.errors import InputError, InputKindError
from dpdist.data.arrays import ArraySource, as_array
from dpdist.data.base import Partition, Source, Weights
from dpdist.data.columns import Names, as_names
from dpdist.data.corpus import FORMAT, CorpusSource, holds_corpus
from dpdist.data.files import ending_of, holds_files, refuse_other_folder
from dpdist.data.soundness import require_exact_column
from dpdist.data.zarr import ZarrSource, only_table

if TYPE_CHECKING:
    from dpdist.data.dask import DaskSource

__all__ = [
    "ArraySource",
    "CorpusSource",
    "DaskSource",
    "Partition",
    "Source",
    "ZarrSource",
    "as_source",
    "chosen_source",
    "is_dask",
    "row_ids",
    "source_like",
    "stream_blocks",
]


#: Number of row ids that are read at a time.
ID_ROWS = 2**16


def as_source(data: object, weights: Weights = None, known: Names | None = None) -> Source:
    """The source for `data`: a source, an array or table of any kind, or the path of Zarr, of a corpus or of files.

    Parameters
    ----------
    data : Source, NumPy array, SciPy sparse matrix, data frame of pandas, polars or Dask, table of Arrow, dask.array,
        xarray.DataArray, xarray.Dataset, zarr.Array or a zarr.Group that holds one, str or path, list of paths of files
    weights : (N,) row weights, optional
    known : names of a model's columns; from files that contain all of them, only these are taken

    Raises
    ------
    InputError
        If the data are not two-dimensional and numeric, or there are none at the path.
    """
    if isinstance(data, Source):
        if weights is not None:
            raise InputError("sample_weight cannot be given with a source; give the weights when you create it.")
        return data
    if isinstance(data, Iterator):
        raise InputError(
            "the data should be an array or a path; got a stream of blocks, which only SVA.fit accepts. Give an array "
            "or a path, or pass the blocks one by one to partial_fit if the estimator has this method."
        )
    if isinstance(data, str | PathLike):
        return _stored(str(fspath(data)), weights, known)
    if isinstance(data, list | tuple) and data and all(isinstance(each, str | PathLike) for each in data):
        if any(" " in str(each) and not ending_of(str(each)) for each in data) and not any(map(exists, data)):
            raise InputError(
                "a list of strings should contain paths of files; got strings that look like documents. Count their "
                "words first, for example with scikit-learn's CountVectorizer().fit_transform(texts)."
            )
        from dpdist.data.tables.source import known_source

        return known_source([fspath(each) for each in data], known, weights)
    if isinstance(data, ZarrGroup) and FORMAT in data.attrs:
        raise InputError(f"give a corpus by its path, such as 'corpus.zarr'; got the group {data.store_path}.")
    if isinstance(data, ZarrArray | ZarrGroup):
        return ZarrSource(data if isinstance(data, ZarrArray) else only_table(data, str(data.store_path)), weights)
    data = _one_table(data)
    if _is_of(data, "DataFrame", "polars"):  # polars converts times to numbers, in any unit
        for name, dtype in data.schema.items():
            if dtype.is_temporal():
                raise _no_numbers(f"column '{name}'", f"got {dtype}")
    if _is_of(data, "DataFrame", "pandas", "polars"):
        _require_exact(data)
    inner = getattr(data, "data", data) if type(data).__module__.startswith("xarray.") else data
    if _is_of(data, "DataFrame", "dask.dataframe"):
        for name, dtype in data.dtypes.items():
            if _of_values(dtype).kind not in "biuf":
                raise _no_numbers(f"column '{name}'", f"got {dtype}")
        inner = data.map_partitions(_exact_frame, meta=data._meta).to_dask_array(lengths=True)
        if inner.dtype.kind == "O":  # from columns of several dtypes, or nullable ones
            inner = inner.map_blocks(as_array, dtype=np.float64, meta=np.empty((0, 0)))
    if _is_of(inner, "Array", "dask.array"):
        from dpdist.data.dask import DaskSource  # late, so that workers of other sources start without dask.array

        return DaskSource(inner, weights, _names(data))
    try:
        return ArraySource(inner, weights, names=_names(data))
    except InputKindError:
        if _is_of(data, "DataFrame", "pandas", "polars"):
            _require_numbers(data)
        raise


def _no_numbers(name: str, told: str) -> InputKindError:
    """The error about a column or variable that is not numeric, as `told`."""
    return InputKindError(f"{name} should hold numbers; {told}. Encode it, or leave it out.")


def _require_exact(frame: Any) -> None:
    """Raise :class:`InputError` for integers that float64 would round, as columns beside them may be floats."""
    for place, dtype in enumerate(map(_of_values, frame.dtypes)):
        if str(dtype) in ("int64", "uint64", "Int64", "UInt64"):  # of NumPy, pandas and polars
            column = frame.iloc[:, place].dropna() if hasattr(frame, "iloc") else frame[:, place].drop_nulls()
            require_exact_column(np.asarray(column, dtype=str(dtype).lower()), f"in column '{frame.columns[place]}'")


def _require_numbers(frame: Any) -> None:
    """Raise :class:`InputKindError` naming the first column of a data frame that does not hold numbers."""
    for place, name in enumerate(frame.columns):
        column = frame.iloc[:, place] if hasattr(frame, "iloc") else frame[:, place]
        try:
            told = "" if as_array(column).dtype.kind in "biuf" else f"got {column.dtype}"
        except InputKindError as error:
            told = str(error.__cause__).rstrip(".")
        if told:
            raise _no_numbers(f"column '{name}'", told)


def _of_values(dtype: Any) -> Any:
    """The dtype of a column's values; for a categorical column, that of its categories."""
    return getattr(getattr(dtype, "categories", None), "dtype", dtype)


def _exact_frame(frame: Any) -> Any:
    """A partition of a Dask data frame, checked by :func:`_require_exact`."""
    _require_exact(frame)
    return frame


def _names(data: object) -> Names | None:
    """Names of the columns of a data frame, or of an xarray.DataArray with an index along its columns."""
    if _is_of(data, "DataFrame", "pandas", "polars", "dask.dataframe"):
        return as_names(list(data.columns))
    if _is_of(data, "DataArray", "xarray") and data.ndim == 2 and data.dims[1] in data.indexes:
        return as_names(list(data.indexes[data.dims[1]]))
    return None


def _one_table(data: object) -> object:
    """Separate columns as one table: an Arrow table as a data frame, an xarray.Dataset as a DataArray."""
    if _is_of(data, "Table", "pyarrow") or _is_of(data, "RecordBatch", "pyarrow"):
        return data.to_pandas()
    if _is_of(data, "LazyFrame", "polars"):
        raise InputError("the data should be computed rows; got a LazyFrame. Give x.collect(), or the path of a file.")
    if not _is_of(data, "Dataset", "xarray"):
        return data
    variables = dict(data.data_vars)
    if len(variables) == 1 and all(each.ndim == 2 for each in variables.values()):
        return next(iter(variables.values()))
    dims = {each.dims for each in variables.values()}
    if len(dims) != 1 or any(len(each) != 1 for each in dims):
        told = ", ".join(f"{name} {each.shape}" for name, each in variables.items()) or "none"
        raise InputError(
            "a Dataset should have one two-dimensional variable, or only one-dimensional variables (the columns) that "
            f"share their dimension; got {told}. Give one variable, such as x['name']."
        )
    for name, each in variables.items():
        if each.dtype.kind in "mM":
            raise _no_numbers(f"variable '{name}'", f"got {each.dtype}")
    kinds = {each.dtype for each in variables.values()}
    for name, each in variables.items() if len(kinds) > 1 else ():
        if str(each.dtype) in ("int64", "uint64"):
            require_exact_column(np.asarray(each), f"in variable '{name}'")
    return data.to_dataarray("column").transpose(..., "column")


def _stored(path: str, weights: Weights, known: Names | None) -> Source:
    """The source at a path or URL."""
    if holds_files(path):
        from dpdist.data.tables.source import known_source  # late, as it imports the libraries that read files

        return known_source(path, known, weights)
    if path.endswith((".npz", ".ldac", ".txt", ".txt.gz")):
        rows = "is text with a table of numbers, rename it to end in .csv, whichever separator it has."
        if path.endswith(".npz"):
            rows = "holds rows in an array of NumPy, save this array alone as .npy, with numpy.save."
        raise InputError(
            f"{path} is not Zarr. If it contains documents, convert them with: dpdist corpus {path} --out corpus.zarr. "
            f"If it {rows}"
        )
    if Path(path).is_file() and ending_of(path) != ".zarr":
        from dpdist.data.tables import check_file

        check_file(path)  # raises, as no reader has this ending
    if not holds_corpus(path):
        return ZarrSource.open(path, weights)
    if weights is not None:
        raise InputError(f"{path} is a corpus, whose documents have no weights; leave sample_weight out.")
    return CorpusSource.open(path)


def stream_blocks(data: object) -> Iterator[npt.ArrayLike] | None:
    """The blocks (n, D) of a stream, which is an iterator or a dask.bag; None if `data` is not a stream."""
    if _is_of(data, "Bag", "dask.bag"):
        from dpdist.data.dask import bag_blocks

        return bag_blocks(data)
    return data if isinstance(data, Iterator) else None


def chosen_source(path: str, settings: Mapping[str, Any], weights: Weights = None) -> Source:
    """The rows of files, with the ``columns`` and without the ``drop`` of `settings`; other data only without a choice.
    Raises :class:`InputError` if columns are chosen from data that are not files."""
    columns, drop = settings.get("columns"), settings.get("drop") or ()
    if columns is None and not drop:
        return as_source(path, weights)
    if not holds_files(path):
        refuse_other_folder(path)
        raise InputError(
            f"columns can be chosen only from files such as CSV or Parquet, or by dpdist convert; {path} is not such a "
            "file. Leave them out."
        )
    from dpdist.data.tables.base import Choice
    from dpdist.data.tables.source import file_source

    return file_source(path, Choice(columns, drop), weights)


def source_like(data: object, known: Names | None, settings: Mapping[str, Any], weights: Weights = None) -> Source:
    """Rows as a model needs them: matched by the names of its columns, or, if they have no names (such as a column of
    vectors), with the choice of columns in `settings`."""
    if known is None and isinstance(data, str | PathLike) and holds_files(str(fspath(data))):
        return chosen_source(str(fspath(data)), settings, weights)
    return as_source(data, weights, known)


def row_ids(path: str, name: str) -> Iterator[list[object]]:
    """The cells of the column of row ids in files, in blocks; raises :class:`InputError` if no file has this column."""
    if not holds_files(path):
        raise InputError(f"row ids are read from a column of a file; {path} is not a file of rows. Give that file.")
    from dpdist.data.tables import cells_of

    cells = cells_of(path, name, ID_ROWS)
    first = list(itertools.islice(cells, 1))  # now, so that a missing column raises at once
    return itertools.chain(first, cells)


def is_dask(source: Source) -> TypeGuard[DaskSource]:
    """Whether a source reads a dask.array."""
    return _is_of(source, "DaskSource", "dpdist.data.dask")


def _is_of(value: object, name: str, *modules: str) -> TypeGuard[Any]:
    """Whether `value` is of class `name` in one of `modules`; a module that is not imported cannot have made it."""
    return any(module in sys.modules and isinstance(value, getattr(sys.modules[module], name)) for module in modules)


def __getattr__(name: str) -> type[DaskSource]:
    """Import the source of dask.array at its first use."""
    if name == "DaskSource":
        from dpdist.data.dask import DaskSource

        return DaskSource
    raise AttributeError(f"module 'dpdist.data' has no attribute '{name}'")
