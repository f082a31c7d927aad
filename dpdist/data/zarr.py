"""Rows in a Zarr array on disk or in an object store."""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr
from numcodecs import Blosc  # type: ignore[import-untyped]
from zarr.abc.store import ByteRequest, Store
from zarr.codecs import BloscCodec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import StorePath, WrapperStore

from dpdist.core.errors import CorruptDataError, DpdistError, InputError
from dpdist.core.outputs import is_run
from dpdist.core.places import place_of
from dpdist.core.places.connections import SCHEMES, is_object_url
from dpdist.core.places.zarr_store import zarr_store
from dpdist.data.base import Partition, Partitioning, TableSource, Weights, cut_rows
from dpdist.data.columns import as_names
from dpdist.data.files import ENDINGS, ending_of, refuse_other_folder, refuse_url
from dpdist.models.families.base import Rows

#: Name of the array of rows in a group with several.
ROWS = "rows"
#: Attribute of an array whose chunks were all written: a missing chunk is then an error, not a block of zeros.
COMPLETE = "dpdist_complete"
#: Attribute with the names of the columns, if they have any.
NAMES = "dpdist_columns"
#: Attributes of the CF conventions for packed numbers and for numbers that stand for missing ones.
PACKED = ("scale_factor", "add_offset", "_FillValue", "missing_value")
#: Largest number of chunks that are listed when an array is opened; more would take seconds.
MOST_LISTED = 10_000
#: Errors of decoding damaged bytes.
_UNDECODABLE = (ValueError, RuntimeError, TypeError, EOFError, zlib.error, lzma.LZMAError)
#: What to do about damaged rows.
RESTORE = "Write the rows again from their source, for example with: dpdist convert FILE --overwrite --out PATH"


@dataclass(frozen=True, eq=False)
class ZarrPartition(Partition):
    """A range of rows of a Zarr array, which is opened by its path or URL when it is loaded.

    Each process keeps its connections; metadata are read at each load. An array that was given open is itself pickled.
    """

    array: zarr.Array | str
    weights: np.ndarray | None

    def read(self) -> tuple[Rows, np.ndarray | None]:
        with told_of_damage(self.label, RESTORE):
            array = open_array(self.array) if isinstance(self.array, str) else self.array
            return read_stored(array, self.label, RESTORE, slice(self.start, self.stop)), self.weights

    @property
    def label(self) -> str:
        return f"{super().label} of {self.array}" if isinstance(self.array, str) else super().label


class ZarrSource(TableSource):
    """A two-dimensional Zarr array.

    Parameters
    ----------
    array : zarr.Array
    weights : (N,) row weights, optional
    label : name in messages
    path : which workers open; without a path, the array itself is sent to them
    """

    def __init__(
        self, array: zarr.Array, weights: Weights = None, label: str = "the Zarr array", path: str | None = None
    ) -> None:
        super().__init__(array.shape, array.dtype, label, weights, as_names(array.attrs.get(NAMES, [])))
        _refuse_packed(array, label)
        self.array, self.path = array, path
        self.cut = self.cut_for(None)

    @classmethod
    def open(cls, path: str, weights: Weights = None) -> ZarrSource:
        """Open the array at `path`; in a group, the array named ``rows``, or else the only one with two dimensions.
        Raises :class:`InputError` if there is none, or it does not hold rows."""
        where = path if "://" in path else str(Path(path).absolute())
        try:
            node = open_node(path)
        except DpdistError:
            raise
        except (FileNotFoundError, KeyError, ValueError) as error:
            refuse_other_folder(path)
            if ending_of(path) in ENDINGS:
                refuse_url(path)
            if isinstance(error, json.JSONDecodeError):
                raise CorruptDataError(f"the metadata of {path} are damaged ({error}). {RESTORE}") from error
            raise InputError(
                f"there is no Zarr array and no corpus at {path}. Check the path, or create one with: "
                f"dpdist convert FILE --out {path} (for documents: dpdist corpus FILE --out {path})."
            ) from error
        if isinstance(node, zarr.Group):
            if "://" not in path and is_run(place_of(path)):
                raise InputError(f"{path} should hold rows; it is a run or model of dpdist. Give the path of the data.")
            name = _rows_of(node, path)
            node, where = node[name], f"{where.rstrip('/')}/{name}"
        source = cls(node, weights, label=str(path), path=where)
        _warn_of_absent_chunks(node, str(path))
        return source

    def cut_for(self, work_rows: int | None) -> Partitioning:
        """Partitions of whole chunks, or of equal parts of large ones."""
        chunk = int((self.array.shards or self.array.chunks)[0])
        return cut_rows(self.shape[0], self.shape[1] * self.dtype.itemsize, chunk, work_rows)

    def partition(self, index: int, start: int, stop: int, weights: np.ndarray | None) -> ZarrPartition:
        return ZarrPartition(index, start, stop, self.array if self.path is None else self.path, weights)

    def identity(self) -> dict[str, object]:
        return {**super().identity(), "chunks": [int(c) for c in self.array.chunks]}


def _refuse_packed(array: zarr.Array, label: str) -> None:
    """Raise :class:`InputError` if attributes of the CF conventions say that the numbers are packed or stand for
    missing ones."""
    told = {name: array.attrs[name] for name in PACKED if name in array.attrs}
    meant = {name for name in told if name in PACKED[:2] or array.dtype.kind in "iu" or _is_finite(told[name])}
    if meant:
        raise InputError(
            f"{label} should store plain numbers; according to its attributes {' and '.join(sorted(meant))}, the "
            "numbers are packed or stand for missing values. Open it with xarray.open_zarr, or write it unpacked."
        )


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))


def only_table(group: zarr.Group, label: str) -> zarr.Array:
    """The array of rows in a group; raises :class:`InputError` if there is none, or several are possible."""
    found = group[_rows_of(group, label)]
    assert isinstance(found, zarr.Array), "it is an array"
    return found


def _rows_of(group: zarr.Group, path: str) -> str:
    """The name of the array of rows in a group."""
    shapes = {name: array.shape for name, array in sorted(group.arrays())}
    tables = [name for name, shape in shapes.items() if len(shape) == 2]
    if ROWS in shapes or len(tables) == 1:
        return ROWS if ROWS in shapes else tables[0]
    told = ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "none"
    raise InputError(
        f"the Zarr group {path} should contain an array named '{ROWS}', or exactly one two-dimensional array; its "
        f"arrays: {told}. Give the path of one array, such as {path}/NAME. If each column is an array of its own, open "
        "the group in Python with xarray.open_zarr."
    )


@contextlib.contextmanager
def told_of_damage(label: str, remedy: str) -> Iterator[None]:
    """Convert read errors: damage to :class:`CorruptDataError`, an unreadable store to :class:`OSError`.

    Parameters
    ----------
    label : name of the data in messages
    remedy : sentence on what to do about damage

    Raises
    ------
    CorruptDataError
        If the data cannot be decoded.
    OSError
        If the store cannot be read at present.
    """
    try:
        yield
    except DpdistError:
        raise
    except gzip.BadGzipFile as error:
        raise CorruptDataError(f"{label} is damaged ({error}). {remedy}") from error
    except OSError as error:
        raise OSError(f"{label} could not be read: {error}") from error
    except _UNDECODABLE as error:
        raise CorruptDataError(f"{label} is damaged ({error}). {remedy}") from error


def read_stored(array: zarr.Array, label: str, remedy: str, selection: slice = slice(None)) -> np.ndarray:
    """Rows of an array; raises :class:`CorruptDataError` if a chunk is missing although all were written.

    Parameters
    ----------
    array : zarr.Array
    label : name of the data in messages
    remedy : sentence on what to do about damage
    selection : rows to read; default: all
    """
    watched, store = _watched(array)
    rows = np.asarray(watched[selection])
    if store.absent and array.attrs.get(COMPLETE) is True:
        raise CorruptDataError(f"{label} is damaged: chunk {min(store.absent)} is missing. {remedy}")
    return rows


def open_array(path: str) -> zarr.Array:
    """The Zarr array at a path or URL, read-only, with the credentials of this process; raises :class:`OSError` if it
    does not exist any more, or the store cannot be read."""
    try:
        node = open_node(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"the Zarr array at {path} was removed, or this machine cannot see it.") from error
    if isinstance(node, zarr.Group):
        raise FileNotFoundError(f"the Zarr array at {path} was replaced by a Zarr group.")
    return node


def open_node(path: str) -> zarr.Array | zarr.Group:
    """The Zarr array or group at a path or URL, read-only. Raises Zarr's own errors if there is none, and
    :class:`InputError` if a URL needs another package or more than the URL itself."""
    begins = ", ".join(f"{scheme}://" for scheme in SCHEMES)
    known = f"supported URLs of object stores begin with {begins}."
    try:
        return zarr.open(zarr_store(path) if is_object_url(path) else path, mode="r")
    except ImportError as error:
        raise InputError(f"{path} cannot be read without a package that is not installed ({error}); {known}") from error
    except TypeError as error:
        if "://" not in path:
            raise
        raise InputError(f"{path} cannot be read with only its URL ({error}); {known}") from error


def _warn_of_absent_chunks(array: zarr.Array, label: str) -> None:
    """Warn if an array is not marked as complete and chunks of it are not stored."""
    if array.attrs.get(COMPLETE) is True or array.nchunks > MOST_LISTED or not array.store.supports_listing:
        return
    absent = array.nchunks - array.nchunks_initialized
    if absent > 0:
        warnings.warn(
            f"{absent} of {array.nchunks} chunks of {label} are missing and are read as {array.fill_value}. If this is "
            "not intended (for example, after an interrupted copy), copy or convert the rows again.",
            stacklevel=4,
        )


def _watched(array: zarr.Array) -> tuple[zarr.Array, _WatchedStore]:
    """The same array over a store that records missing keys."""
    compressors = array.compressors
    blosc = array.shards is None and len(compressors) > 0 and isinstance(compressors[-1], BloscCodec | Blosc)
    store = _WatchedStore(array.store, blosc)
    inner = zarr.AsyncArray(metadata=array.metadata, store_path=StorePath(store, array.path))
    return zarr.Array(inner), store


class _WatchedStore(WrapperStore[Store]):
    """A store that records requested keys that do not exist, which Zarr reads as fill values.

    Parameters
    ----------
    store : the underlying store
    blosc : whether chunks are compressed by Blosc, whose decoder trusts the length in their header
    """

    def __init__(self, store: Store, blosc: bool = False) -> None:
        super().__init__(store)
        self.absent: list[str] = []
        self._blosc = blosc

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        found = await super().get(key, prototype, byte_range)
        if found is None:
            self.absent.append(key)
        elif self._blosc and byte_range is None:
            _require_whole(found)
        return found

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        asked = list(key_ranges)
        found: list[Buffer | None] = await super().get_partial_values(prototype, asked)
        self.absent += [key for (key, _), value in zip(asked, found, strict=True) if value is None]
        return found


def _require_whole(chunk: Buffer) -> None:
    """Raise ValueError unless a Blosc chunk is as long as its header says."""
    said = int.from_bytes(chunk[12:16].to_bytes(), "little")
    if len(chunk) != said or said < 16:
        raise ValueError(f"a chunk has {len(chunk)} bytes, but its header says {said}")
