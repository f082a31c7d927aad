"""Where rows come from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy.typing as npt
from zarr import Array as ZarrArray

from dpdist.core.errors import InputError
from dpdist.data.arrays import ArraySource
from dpdist.data.base import Partition, Source, Weights
from dpdist.data.columns import Names, as_names
from dpdist.data.corpus import CorpusSource, holds_corpus
from dpdist.data.zarr import ZarrSource

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
    "stream_blocks",
]


def as_source(data: object, weights: Weights = None) -> Source:
    """The source for `data`: a source, an array of any kind, or the path or URL of a Zarr array or a corpus.

    Parameters
    ----------
    data : Source, NumPy array, SciPy sparse matrix, pandas.DataFrame, dask.array, xarray.DataArray, zarr.Array, str or
        path
    weights : (N,) row weights, optional

    Raises
    ------
    InputError
        If the data are not two-dimensional numbers, or the path holds no Zarr array.
    """
    if isinstance(data, Source):
        if weights is not None:
            raise InputError("sample_weight belongs to the source itself here; pass it when making the source.")
        return data
    if isinstance(data, str | PathLike):
        return _stored(str(fspath(data)), weights)
    if isinstance(data, ZarrArray):
        return ZarrSource(data, weights)
    inner = getattr(data, "data", data) if type(data).__module__.startswith("xarray.") else data
    if _is_of(inner, "Array", "dask.array"):
        from dpdist.data.dask import DaskSource  # imported with what it takes: workers of other sources start without

        return DaskSource(inner, weights, _names(data))
    return ArraySource(inner, weights, names=_names(data))


def _names(data: object) -> Names | None:
    """Names of the columns of a data frame, or of an array of xarray that has labels along them."""
    if _is_of(data, "DataFrame", "pandas", "polars", "dask.dataframe"):
        return as_names(list(data.columns))
    if _is_of(data, "DataArray", "xarray") and data.ndim == 2 and data.dims[1] in data.indexes:
        return as_names(list(data.indexes[data.dims[1]]))
    return None


def _stored(path: str, weights: Weights) -> Source:
    """The source at a path or URL."""
    if path.endswith((".npy", ".csv", ".parquet", ".fvecs", ".bvecs")):
        raise InputError(f"{path} is not a Zarr array; convert it with: dpdist convert {path} --out rows.zarr")
    if path.endswith((".npz", ".ldac", ".txt", ".txt.gz")):
        raise InputError(
            f"{path} is not Zarr; convert the documents in it with: dpdist corpus {path} --out corpus.zarr"
        )
    if not holds_corpus(path):
        return ZarrSource.open(path, weights)
    if weights is not None:
        raise InputError(f"{path} is a corpus, whose documents have no weights; leave sample_weight out.")
    return CorpusSource.open(path)


def stream_blocks(data: object) -> Iterator[npt.ArrayLike] | None:
    """The blocks of a stream, an iterator or a dask.bag of (n, D) blocks of rows; None if `data` is no stream."""
    if _is_of(data, "Bag", "dask.bag"):
        from dpdist.data.dask import bag_blocks

        return bag_blocks(data)
    return data if isinstance(data, Iterator) else None


def _is_of(value: object, name: str, *modules: str) -> TypeGuard[Any]:
    """Whether `value` is of a class of such a name in one of some modules; one not imported has made no values."""
    return any(module in sys.modules and isinstance(value, getattr(sys.modules[module], name)) for module in modules)


def __getattr__(name: str) -> type[DaskSource]:
    """The source of dask.array, imported on first use."""
    if name == "DaskSource":
        from dpdist.data.dask import DaskSource

        return DaskSource
    raise AttributeError(f"module 'dpdist.data' has no attribute '{name}'")
