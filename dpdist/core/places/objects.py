"""Object storage: S3 and stores with its protocol; Google's and Azure's stores use the same calls.

Objects appear complete or not at all, so a put corresponds to writing aside and renaming on a disk. An object that must
not exist is put with ``If-None-Match: *``; ``If-Match`` is never used, because some stores accept it but ignore it.
"""

from __future__ import annotations

import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dpdist.core.errors import InputError
from dpdist.core.places.base import Place
from dpdist.core.places.connections import (
    PATIENCE,
    PAUSE,
    AccessDeniedError,
    BrokenAnswerError,
    ObjectStoreError,
    WrongStoreError,
    connected,
    library,
    parts_of,
    told,
)
from dpdist.core.waiting import try_until

#: Largest object that is sent in one request, of which a killed writer leaves nothing; larger ones are sent in parts.
_ONE_REQUEST_BYTES = 64 * 2**20
#: Number of objects that are read or written at a time.
_AT_ONCE = 8
#: Metadata key for the writer that created an object.
_WRITER = "writer"
_Answer = TypeVar("_Answer")


class ObjectPlace(Place):
    """The objects below a URL such as ``s3://bucket/run.zarr``.

    Credentials, region and endpoint come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
    ``AWS_REGION``, ``AWS_ENDPOINT_URL``), else from boto3's chain of profiles and roles. An endpoint that begins with
    ``http:`` is allowed. Requests with temporary failures are repeated with growing pauses;
    ``AWS_MAX_ATTEMPTS`` limits their number.

    Parameters
    ----------
    url : bucket and prefix
    patience : seconds for which requests are repeated

    Raises
    ------
    InputError
        If the URL names no bucket, a needed package is not installed, or there are no credentials.
    """

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        self.label, self.patience = url, patience
        _, bucket, prefix = parts_of(url)
        if not prefix:
            raise InputError(f"{url} names only a bucket; add a name, as in s3://{bucket}/run.zarr.")
        self._store = connected(url, patience)
        self._obstore = library("obstore")
        self._told = functools.partial(told, url)

    def read(self, name: str) -> bytes | None:
        try:
            return self._patiently(lambda: bytes(self._obstore.get(self._store, name).bytes()))
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes | memoryview) -> bool:
        """See :meth:`Place.create`; each call writes its own id into the object's metadata, to recognise its object.

        A request may return an error although it succeeded: its answer was lost, or a repetition found the object of
        the first request. Then the object's metadata is read. The object may be of this call, of another writer, or
        absent; only in the last case is the put repeated. Another writer of the same bytes still gets False.
        """
        writer, end = uuid.uuid4().hex, time.monotonic() + self.patience
        while True:
            failure = self._put_new(name, data, writer)
            found = writer if failure is None else self._writer_of(name)
            if found is not None:
                return found == writer
            if failure is not None and time.monotonic() > end:
                raise failure
            time.sleep(PAUSE)

    def replace(self, name: str, data: bytes) -> None:
        self._put_one(name, data)

    def names(self, folder: str) -> list[str]:
        found = self._patiently(lambda: self._obstore.list_with_delimiter(self._store, folder))
        paths = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        names = {path.rstrip("/").rpartition("/")[2] for path in paths}
        return sorted(name for name in names if not name.startswith("."))

    def remove(self, *names: str) -> None:
        """See :meth:`Place.remove`; one listing for names in one folder, and one request for a thousand objects."""
        gone = set(names)
        folders = gone if len(gone) == 1 else {key.rpartition("/")[0] for key in gone}
        keys = {key for folder in folders for key in self._patiently(functools.partial(self._listed, folder))}
        inside = {key for key in keys if not gone.isdisjoint(_folders_of(key))}
        with contextlib.suppress(FileNotFoundError):
            self._patiently(lambda: self._obstore.delete(self._store, sorted((inside | gone) - {""})))

    def files(self, folder: str) -> dict[str, bytes]:
        """See :meth:`Place.files`; one listing, and one request per object, several at a time."""
        above = len(folder) + 1
        listed = self._patiently(functools.partial(self._listed, folder))
        names = [key[above:] for key in listed if not key.rpartition("/")[2].startswith(".")]
        with ThreadPoolExecutor(_AT_ONCE, "dpdist-get") as pool:
            read = pool.map(self.read, (f"{folder}/{name}" for name in names))
            return {name: data for name, data in zip(names, read, strict=True) if data is not None}

    def _put(self, folder: str, parts: Mapping[str, memoryview]) -> None:
        """See :meth:`Place._put`; an acknowledged object is durable."""
        with ThreadPoolExecutor(_AT_ONCE, "dpdist-put") as pool:
            under_way = [pool.submit(self._put_one, f"{folder}/{name}", data) for name, data in parts.items()]
            try:
                for done in under_way:
                    done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def exists(self) -> bool:
        return self._patiently(lambda: any(len(batch) > 0 for batch in self._obstore.list(self._store, None)))

    def _put_one(self, name: str, data: bytes | memoryview) -> None:
        """Write an object, replacing any existing one."""
        parts = len(data) > _ONE_REQUEST_BYTES
        self._patiently(lambda: self._obstore.put(self._store, name, data, use_multipart=parts))

    def _listed(self, key: str) -> list[str]:
        """All keys below a key."""
        return [entry["path"] for batch in self._obstore.list(self._store, key) for entry in batch]

    def _patiently(self, call: Callable[[], _Answer]) -> _Answer:
        """The result of a call that may be repeated."""

        def ask() -> _Answer:
            with self._told():
                return call()

        return try_until(ask, time.monotonic() + self.patience, PAUSE, BrokenAnswerError)

    def _put_new(self, name: str, data: bytes | memoryview, writer: str) -> Exception | None:
        """Put an object that must not exist; returns the error, if the object may exist after it."""
        exceptions = library("obstore.exceptions")
        try:
            with self._told():
                try:
                    signed = {_WRITER: writer}
                    self._obstore.put(self._store, name, data, mode="create", use_multipart=False, attributes=signed)
                except exceptions.AlreadyExistsError:
                    return FileExistsError(f"{self.label}: {name} is being written by another process; try again.")
        except (AccessDeniedError, WrongStoreError):
            raise
        except ObjectStoreError as error:
            return error
        return None

    def _writer_of(self, name: str) -> str | None:
        """The id of the writer of an object, empty if it has none; None if there is no such object."""
        try:
            found = self._patiently(lambda: self._obstore.get(self._store, name, options={"head": True}))
        except FileNotFoundError:
            return None
        return str(found.attributes.get(_WRITER, ""))


def _folders_of(key: str) -> Iterator[str]:
    """The folders that contain a key, from the top, named "", downwards."""
    parts = key.split("/")
    return ("/".join(parts[:count]) for count in range(len(parts)))
