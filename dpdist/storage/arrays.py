"""Arrays of Zarr groups, all at once: to make or read one Zarr waits for another thread several times."""

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

from dpdist.core.errors import CheckpointError
from dpdist.core.stored import Stored

#: Bytes of a chunk at most, rows apart.
CHUNK = 64 * 2**20

Value = TypeVar("Value")


class Entry(NamedTuple):
    """An array to store: its path below a group, values, what it says of itself, and more that is told of it."""

    path: str
    values: np.ndarray
    stored: Stored
    told: Mapping[str, Any] = MappingProxyType({})


def put(group: zarr.Group, name: str, values: np.ndarray, stored: Stored) -> None:
    """Store an array under a name."""
    put_all(group, [Entry(name, values, stored)])


def put_all(group: zarr.Group, entries: Sequence[Entry]) -> None:
    """Store arrays, and the groups that they are in."""
    if entries:
        _together(_put_all(group.store, group.path, entries))


async def _put_all(store: Store, top: str, entries: Sequence[Entry]) -> None:
    below = f"{top}/" if top else ""
    groups = {above for entry in entries for above in _above(entry.path)}
    for path in sorted(groups):
        await open_group(store=store, path=f"{below}{path}", mode="a", zarr_format=3)
    await asyncio.gather(*(_put(store, f"{below}{entry.path}", entry) for entry in entries))


def _above(path: str) -> list[str]:
    """The groups that hold what is at a path, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


async def _put(store: Store, path: str, entry: Entry) -> None:
    """An array in chunks along its first axis, for it may have an entry a row."""
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
    """What gives the arrays below a group, all of them read, by their paths; :class:`CheckpointError` for one that is
    not there."""
    known = _together(_read_all(group.store, group.path))

    def found(path: str) -> np.ndarray:
        if path not in known:
            raise CheckpointError(f"{group.store_path} holds no array '{path}'; the file is damaged or not dpdist's.")
        return known[path]

    return found


def subgroup(group: zarr.Group, name: str) -> zarr.Group:
    """The group `name` of `group`; :class:`CheckpointError` if it is not there."""
    node = group.get(name)
    if not isinstance(node, zarr.Group):
        raise CheckpointError(f"{group.store_path} holds no group '{name}'; the file is damaged or not dpdist's.")
    return node


async def _read_all(store: Store, top: str) -> dict[str, np.ndarray]:
    """All arrays below a group, by their paths."""
    group = await open_group(store=store, path=top, mode="r", zarr_format=3)
    nodes = {path: node async for path, node in group.members(max_depth=None) if isinstance(node, AsyncArray)}
    values = await asyncio.gather(*(node.getitem(...) for node in nodes.values()))
    return dict(zip(nodes, map(np.asarray, values), strict=True))


def _together(work: Coroutine[Any, Any, Value]) -> Value:
    """What comes of asynchronous work, in a thread without an event loop of its own, which the caller's may have."""
    with ThreadPoolExecutor(1, thread_name_prefix="dpdist-zarr") as alone:
        return alone.submit(asyncio.run, work).result()
