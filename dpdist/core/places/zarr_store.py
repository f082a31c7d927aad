"""Zarr stores of the objects below a URL, with which workers read rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Concatenate, ParamSpec, TypeVar

from zarr.storage import ObjectStore

from dpdist.core.places.connections import PATIENCE, PAUSE, BrokenAnswerError, connected, told

_Answer = TypeVar("_Answer")
_Arguments = ParamSpec("_Arguments")


def zarr_store(url: str, read_only: bool = True) -> ObjectStore:
    """The Zarr store of the objects below a URL; a process keeps one set of connections for each.

    It is pickled as its URL; the receiving process opens it with its own credentials.
    """
    return _ToldStore(url, read_only=read_only)


def _patient(
    method: Callable[Concatenate[_ToldStore, _Arguments], Awaitable[_Answer]],
) -> Callable[Concatenate[_ToldStore, _Arguments], Coroutine[object, None, _Answer]]:
    """A method that is repeated while connections break, and whose errors are converted."""

    async def repeated(store: _ToldStore, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                with told(store.url):
                    return await method(store, *args, **kwargs)
            except BrokenAnswerError:
                if time.monotonic() > end:
                    raise
            await asyncio.sleep(PAUSE)

    return repeated


class _ToldStore(ObjectStore):
    """A Zarr store of the objects below a URL, with converted errors, pickled without credentials.

    Parameters
    ----------
    url : prefix of the keys
    read_only : whether writing is refused
    """

    def __init__(self, url: str, *, read_only: bool = True) -> None:
        super().__init__(connected(url, PATIENCE), read_only=read_only)
        self.url = url

    def __reduce__(self) -> tuple[Callable[[str, bool], ObjectStore], tuple[str, bool]]:
        return zarr_store, (self.url, self.read_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ToldStore) and (self.url, self.read_only) == (other.url, other.read_only)

    def __str__(self) -> str:
        return self.url

    def with_read_only(self, read_only: bool = False) -> _ToldStore:
        return _ToldStore(self.url, read_only=read_only)

    get = _patient(ObjectStore.get)
    get_partial_values = _patient(ObjectStore.get_partial_values)
    exists = _patient(ObjectStore.exists)
    set = _patient(ObjectStore.set)
    delete = _patient(ObjectStore.delete)
    getsize = _patient(ObjectStore.getsize)
    getsize_prefix = _patient(ObjectStore.getsize_prefix)

    async def list_prefix(self, prefix: str) -> AsyncGenerator[str, None]:
        for key in await self._keys(ObjectStore.list_prefix, prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
        for key in await self._keys(ObjectStore.list_dir, prefix):
            yield key

    @_patient
    async def _keys(self, listing: Callable[[ObjectStore, str], AsyncGenerator[str, None]], prefix: str) -> list[str]:
        return [key async for key in listing(self, prefix)]
