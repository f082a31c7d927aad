"""Reading and writing all arrays of a Zarr group at once, as each access to Zarr waits several times for a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import zarr
from zarr import AsyncArray
from zarr.abc.store import Store
from zarr.api.asynchronous import create_array, open_group
from zarr.codecs import Crc32cCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from dpdist.core.errors import CheckpointError
from dpdist.core.stored import Stored

#: Largest number of bytes in a chunk, unless a single row is larger.
CHUNK = 64 * 2**20
#: Largest number of bytes in an array whose files are made in memory first.
SMALL = 2**20

Value = TypeVar("Value")


class Entry(NamedTuple):
    """An array to store: its path below a group, values, declaration, and further attributes."""

    path: str
    values: np.ndarray
    stored: Stored
    told: Mapping[str, Any] = MappingProxyType({})


def put(group: zarr.Group, name: str, values: np.ndarray, stored: Stored) -> None:
    """Store an array under a name."""
    put_all(group, [Entry(name, values, stored)])


def put_all(group: zarr.Group, entries: Sequence[Entry]) -> None:
    """Store arrays, and create the groups that contain them."""
    if entries:
        _together(_put_all(group.store, group.path, entries))


async def _put_all(store: Store, top: str, entries: Sequence[Entry]) -> None:
    below = f"{top}/" if top else ""
    groups = {above for entry in entries for above in _above(entry.path)}
    for path in sorted(groups):
        await open_group(store=store, path=f"{below}{path}", mode="a", zarr_format=3)
    await asyncio.gather(*(_put(store, f"{below}{entry.path}", entry) for entry in entries))


def _above(path: str) -> list[str]:
    """The groups that contain a path, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


async def _put(store: Store, path: str, entry: Entry) -> None:
    """Store an array. Of a small one, most time would pass with looking for the groups above it in the store."""
    if entry.values.nbytes > SMALL:
        await _create(store, path, entry)
    else:
        made = MemoryStore()
        await _create(made, "", entry)
        files = {name: await made.get(name, default_buffer_prototype()) async for name in made.list()}
        await asyncio.gather(*(store.set(f"{path}/{name}", file) for name, file in files.items() if file is not None))


async def _create(store: Store, path: str, entry: Entry) -> None:
    """Create an array, in chunks along its first axis if it is large."""
    values, stored = entry.values, entry.stored
    chunks = values.shape
    if values.nbytes > CHUNK:
        chunks = (max(1, CHUNK * len(values) // values.nbytes), *values.shape[1:])
    await create_array(
        store,
        name=path,
        data=np.ascontiguousarray(values) if values.ndim else values,
        chunks=tuple(max(1, size) for size in chunks),
        compressors=[Crc32cCodec()],
        fill_value=0,
        dimension_names=list(stored.dims),
        attributes={"units": stored.units, "long_name": stored.doc, **entry.told},
        config={"write_empty_chunks": True},
        zarr_format=3,
    )


def arrays_of(group: zarr.Group) -> Callable[[str], np.ndarray]:
    """Read all arrays below a group; the result returns them by path, and raises :class:`CheckpointError` for a missing
    one."""
    known = _together(_read_all(group.store, group.path))

    def found(path: str) -> np.ndarray:
        if path not in known:
            raise CheckpointError(f"{group.store_path} has no array '{path}'; it is damaged or not from dpdist.")
        return known[path]

    return found


def subgroup(group: zarr.Group, name: str) -> zarr.Group:
    """The group `name` of `group`; raises :class:`CheckpointError` if it is missing."""
    node = group.get(name)
    if not isinstance(node, zarr.Group):
        raise CheckpointError(f"{group.store_path} has no group '{name}'; it is damaged or not from dpdist.")
    return node


async def _read_all(store: Store, top: str) -> dict[str, np.ndarray]:
    """All arrays below a group, by path."""
    group = await open_group(store=store, path=top, mode="r", zarr_format=3)
    nodes = {path: node async for path, node in group.members(max_depth=None) if isinstance(node, AsyncArray)}
    values = await asyncio.gather(*(node.getitem(...) for node in nodes.values()))
    return dict(zip(nodes, map(np.asarray, values), strict=True))


def _together(work: Coroutine[Any, Any, Value]) -> Value:
    """The result of a coroutine, run in a separate thread, because the caller's thread may have a running event
    loop."""
    with ThreadPoolExecutor(1, thread_name_prefix="dpdist-zarr") as alone:
        return alone.submit(asyncio.run, work).result()
