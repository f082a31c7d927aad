"""Object storage: S3 and whatever speaks its protocol; Google's and Azure's stores go through the same calls.

Objects appear whole or not at all, so a put is what writing aside and renaming is on a disk. What must not exist yet
is put with ``If-None-Match: *``; ``If-Match`` is never used, since some stores that accept it do not heed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import importlib
import os
import re
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, TypeVar

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import ObjectStore

from dpdist.core.errors import DpdistError, InputError
from dpdist.core.places.base import Place

#: How URLs of object stores begin; only the first kind is tested against servers.
SCHEMES = ("s3", "gs", "az")
#: Seconds for which a request is repeated while the store does not answer.
PATIENCE = 180.0
#: Seconds before a request is repeated that obstore does not repeat.
_PAUSE = 0.1
#: Larger objects are sent in parts; in one request nothing is left of a writer that was killed.
_ONE_REQUEST_BYTES = 64 * 2**20
#: Objects that are put at the same time.
_AT_ONCE = 8
#: Beginnings of the environment's settings on which a connection depends.
_SETTINGS = ("AWS_", "GOOGLE_", "AZURE_")
#: Key of the metadata that tell who created an object.
_WRITER = "writer"
#: What obstore's failures say where a connection broke in a way after which it does not repeat a request.
_BROKEN = r"body error|decoding response body|HttpError \{\s*kind: (Unknown|Request)\b"
_Answer = TypeVar("_Answer")


class ObjectStoreError(DpdistError, OSError):
    """An object store did not answer, or not as it should."""


class BrokenAnswerError(ObjectStoreError):
    """A connection broke within a request or an answer, after which obstore does not repeat the request by itself."""


class AccessDeniedError(ObjectStoreError):
    """An object store refused the credentials."""


class ObjectPlace(Place):
    """The objects below a URL such as ``s3://bucket/run.zarr``.

    Credentials, region and endpoint come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
    ``AWS_REGION``, ``AWS_ENDPOINT_URL``), else from boto3's chain of profiles and roles. An endpoint that begins with
    ``http:`` is taken as it is. Requests that fail in passing are repeated with growing pauses;
    ``AWS_MAX_ATTEMPTS`` bounds how often.

    Parameters
    ----------
    url : bucket and prefix
    patience : seconds for which requests are repeated

    Raises
    ------
    InputError
        If the URL names no bucket, or what it needs is not installed, or there are no credentials.
    """

    failures = (OSError,)

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        self.label, self.patience = url, patience
        _, bucket, self._prefix = _parts(url)
        if not self._prefix:
            raise InputError(f"{url} names a bucket and nothing in it; give a name too, as in s3://{bucket}/run.zarr.")
        self._store = _connected(url, patience)
        self._obstore = _library("obstore")
        self._told = functools.partial(_told, url)

    def read(self, name: str) -> bytes | None:
        try:
            return self._patiently(lambda: bytes(self._obstore.get(self._store, self._key(name)).bytes()))
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        """See :meth:`Place.create`; each attempt is signed, so that it is known by whom an object was written.

        A request may be answered by an error although it was carried out: the answer was lost, or a repetition
        met its own forerunner. Then the object is looked at: it is this call's own, another's, or absent, and only
        in the last case is the put repeated. Another writer of the same bytes is still told False.
        """
        writer, end = uuid.uuid4().hex, time.monotonic() + self.patience
        while True:
            failure = self._put_new(name, data, writer)
            found = writer if failure is None else self._writer_of(name)
            if found is not None:
                return found == writer
            if failure is not None and time.monotonic() > end:
                raise failure
            time.sleep(_PAUSE)

    def replace(self, name: str, data: bytes) -> None:
        self._put_one(name, data)

    def names(self, folder: str) -> list[str]:
        found = self._patiently(lambda: self._obstore.list_with_delimiter(self._store, self._key(folder)))
        paths = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})

    def remove(self, *names: str) -> None:
        """See :meth:`Place.remove`; one listing for names in one folder, and one request for a thousand objects."""
        gone = {self._key(name) for name in names}
        folders = gone if len(gone) == 1 else {key.rpartition("/")[0] for key in gone}
        keys = {key for folder in folders for key in self._patiently(functools.partial(self._listed, folder))}
        inside = {key for key in keys if not gone.isdisjoint(_folders_of(key))}
        with contextlib.suppress(FileNotFoundError):
            self._patiently(lambda: self._obstore.delete(self._store, sorted(inside | gone)))

    def files(self, folder: str) -> dict[str, bytes]:
        """See :meth:`Place.files`; one listing, and one request for each object, some at the same time."""
        above = len(self._key(folder)) + 1
        listed = self._patiently(functools.partial(self._listed, self._key(folder)))
        names = [key[above:] for key in listed if not key.rpartition("/")[2].startswith(".")]
        with ThreadPoolExecutor(_AT_ONCE, "dpdist-get") as pool:
            read = pool.map(self.read, (_joined(folder, name) for name in names))
            return {name: data for name, data in zip(names, read, strict=True) if data is not None}

    def _put(self, folder: str, parts: Mapping[str, memoryview]) -> None:
        """See :meth:`Place._put`; an object that was acknowledged is durable."""
        with ThreadPoolExecutor(_AT_ONCE, "dpdist-put") as pool:
            under_way = [pool.submit(self._put_one, f"{folder}/{name}", data) for name, data in parts.items()]
            try:
                for done in under_way:
                    done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def exists(self) -> bool:
        return self._patiently(lambda: any(len(batch) > 0 for batch in self._obstore.list(self._store, self._key(""))))

    def _put_one(self, name: str, data: bytes | memoryview) -> None:
        """Write an object, whether or not there is one."""
        parts = len(data) > _ONE_REQUEST_BYTES
        self._patiently(lambda: self._obstore.put(self._store, self._key(name), data, use_multipart=parts))

    def _listed(self, key: str) -> list[str]:
        """Every key below one."""
        return [entry["path"] for batch in self._obstore.list(self._store, key) for entry in batch]

    def _patiently(self, call: Callable[[], _Answer]) -> _Answer:
        """What a call that may be repeated gives."""
        end = time.monotonic() + self.patience
        while True:
            try:
                with self._told():
                    return call()
            except BrokenAnswerError:
                if time.monotonic() > end:
                    raise
            time.sleep(_PAUSE)

    def _key(self, name: str) -> str:
        """The key in the bucket of what is called `name` here."""
        return _joined(self._prefix, name)

    def _put_new(self, name: str, data: bytes, writer: str) -> Exception | None:
        """Put an object that must not exist; the failure, if it is one after which the object may be there."""
        exceptions = _library("obstore.exceptions")
        try:
            with self._told():
                try:
                    signed = {_WRITER: writer}
                    key = self._key(name)
                    self._obstore.put(self._store, key, data, mode="create", use_multipart=False, attributes=signed)
                except exceptions.AlreadyExistsError:
                    return FileExistsError(f"{self.label}: {name} is being written by another; try again.")
        except AccessDeniedError:
            raise
        except ObjectStoreError as error:
            return error
        return None

    def _writer_of(self, name: str) -> str | None:
        """Who created an object, empty if it does not say; None if there is no such object."""
        try:
            key = self._key(name)
            found = self._patiently(lambda: self._obstore.get(self._store, key, options={"head": True}))
        except FileNotFoundError:
            return None
        return str(found.attributes.get(_WRITER, ""))


def is_object_url(path: str) -> bool:
    """Whether a path is the URL of an object store."""
    return path.partition("://")[0] in SCHEMES and "://" in path


def zarr_store(url: str, read_only: bool = True) -> ObjectStore:
    """The Zarr store of the objects below a URL; a process keeps one set of connections a bucket.

    It travels as its URL: whoever receives it opens it with credentials of their own.
    """
    return _ToldStore(_connected(url, PATIENCE), url, read_only=read_only)


def _connected(url: str, patience: float) -> Any:
    """The obstore store of a URL's whole bucket, made anew when the environment's settings change."""
    scheme, bucket, _ = _parts(url)
    settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_SETTINGS)))
    return _bucket_store(scheme, bucket, patience, settings)


@functools.lru_cache(maxsize=16)
def _bucket_store(scheme: str, bucket: str, patience: float, settings: tuple[tuple[str, str], ...]) -> Any:
    stores, environment = _library("obstore.store"), dict(settings)
    retry = _retry(environment, patience)
    if scheme != "s3":
        return stores.from_url(f"{scheme}://{bucket}", retry_config=retry)
    config = _aws_config(environment)
    provider = config.pop("credential_provider", None)
    endpoint = config.get("endpoint") or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    client: dict[str, Any] = {} if "AWS_TIMEOUT" in environment else {"timeout": "120s"}
    if (endpoint or "").startswith("http:"):
        client["allow_http"] = True
    return stores.S3Store(
        bucket, config=config, client_options=client, retry_config=retry, credential_provider=provider
    )


def _folders_of(key: str) -> Iterator[str]:
    """What a key lies in, from the bucket's top down."""
    parts = key.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def _joined(prefix: str, name: str) -> str:
    return "/".join(part for part in (prefix, name) if part)


def _parts(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and prefix of a URL."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme not in SCHEMES:
        raise InputError(f"{url} should begin with one of s3://, gs://, az://; give such a URL, or a path on disk.")
    if "@" in bucket:
        raise InputError(f"a {scheme}:// URL should hold no credentials; set AWS_ACCESS_KEY_ID or a profile instead.")
    if not bucket:
        raise InputError(f"{url} names no bucket; give one, as in {scheme}://bucket/name.zarr.")
    return scheme, bucket, prefix.strip("/")


def _retry(environment: dict[str, str], patience: float) -> dict[str, Any]:
    """Repetitions within `patience` seconds, with pauses from a tenth of a second to five seconds."""
    attempts = environment.get("AWS_MAX_ATTEMPTS", "1000")
    if not attempts.isdecimal() or int(attempts) < 1:
        raise InputError(f"AWS_MAX_ATTEMPTS should be a whole number from 1 on; got {attempts}. Correct or unset it.")
    return {
        "max_retries": int(attempts) - 1,
        "retry_timeout": datetime.timedelta(seconds=patience),
        "backoff": {
            "init_backoff": datetime.timedelta(milliseconds=100),
            "max_backoff": datetime.timedelta(seconds=5),
            "base": 2,
        },
    }


def _aws_config(environment: dict[str, str]) -> dict[str, Any]:
    """What the environment leaves open, from boto3's profiles and roles."""
    keys = "AWS_ACCESS_KEY_ID" in environment or environment.get("AWS_SKIP_SIGNATURE", "").lower() == "true"
    region = "AWS_REGION" in environment or "AWS_DEFAULT_REGION" in environment
    if keys and region:
        return {}
    try:
        boto3 = importlib.import_module("boto3")
    except ModuleNotFoundError:
        return {}
    session = boto3.Session()
    config = {} if region or session.region_name is None else {"region": session.region_name}
    if not keys:
        config["credential_provider"] = _credentials(session)
    if "AWS_ENDPOINT_URL" not in environment and "AWS_ENDPOINT_URL_S3" not in environment:
        config |= _profile_endpoint(session)
    return config


def _credentials(session: Any) -> Any:
    """What gives obstore a boto3 session's credentials, and fresh ones when they expire."""
    if session.get_credentials() is None:
        raise InputError(_NO_CREDENTIALS)
    return importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider(session)


def _profile_endpoint(session: Any) -> dict[str, Any]:
    """The endpoint that a profile sets, if it is not Amazon's own."""
    endpoint = str(session.client("s3", region_name=session.region_name or "us-east-1").meta.endpoint_url)
    return {} if re.search(r"\.amazonaws\.com(\.cn)?/?$", endpoint) else {"endpoint": endpoint}


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError("object stores need obstore; install it with: pip install 'dpdist[s3]'") from error


# Failures as sentences


_NO_CREDENTIALS = (
    "there are no credentials for the object store; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE."
)


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """Raise obstore's failures as sentences; theirs hold whole answers of the server, so they are not shown."""
    exceptions = _library("obstore.exceptions")
    try:
        yield
    except exceptions.BaseError as error:
        raise _sentence(url, str(error)) from None
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise _sentence(url, str(error)) from None
        raise FileNotFoundError(f"there is no such object in {url}.") from None


def _sentence(url: str, text: str) -> Exception:
    """What to raise for a failure that obstore describes by `text`."""
    reason = _reason(text)
    if "NoSuchBucket" in text:
        return InputError(f"there is no bucket for {url}; create it, or correct the URL or AWS_ENDPOINT_URL.")
    if "169.254.169.254" in text or "/latest/api/token" in text:
        return InputError(_NO_CREDENTIALS)
    if "configured region" in text or "PermanentRedirect" in text:
        return InputError(f"{url} is in another region than was said; set AWS_REGION to the bucket's.")
    if re.search(r"status code: 40[13]\b", text):
        return AccessDeniedError(
            f"access to {url} was denied ({reason}); check the credentials, and that they may read, list and write."
        )
    kind = BrokenAnswerError if re.search(_BROKEN, text) else ObjectStoreError
    return kind(
        f"the object store did not answer for {url} ({reason}); check the network and AWS_ENDPOINT_URL, then try again."
    )


def _reason(text: str) -> str:
    """The few words of a failure's text that say what it was; the rest may hold what a log should not."""
    for pattern in (r"<Code>(\w+)</Code>", r"status code: (\d+[ \w]*)", r"(HTTP error: [a-z ]+)", r"(timed out)"):
        found = re.search(pattern, text)
        if found is not None:
            return found.group(1).strip()
    return "no reason given"


class _ToldStore(ObjectStore):
    """Zarr's store of the objects below a URL, whose failures are sentences and which travels without credentials.

    Parameters
    ----------
    store : of the whole bucket
    url : what is above the keys
    read_only : whether writing is refused
    """

    def __init__(self, store: Any, url: str, *, read_only: bool = False) -> None:
        super().__init__(store, read_only=read_only)
        self.url, self.prefix = url, _parts(url)[2]

    def __reduce__(self) -> tuple[Any, ...]:
        return zarr_store, (self.url, self.read_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ToldStore) and (self.url, self.read_only) == (other.url, other.read_only)

    def __str__(self) -> str:
        return self.url

    def with_read_only(self, read_only: bool = False) -> _ToldStore:
        return _ToldStore(self.store, self.url, read_only=read_only)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        return await self._patiently(lambda: super(_ToldStore, self).get(self._key(key), prototype, byte_range))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        ranges = [(self._key(key), part) for key, part in key_ranges]
        return await self._patiently(lambda: super(_ToldStore, self).get_partial_values(prototype, ranges))

    async def exists(self, key: str) -> bool:
        return await self._patiently(lambda: super(_ToldStore, self).exists(self._key(key)))

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        data = memoryview(value.as_buffer_like())
        parts = data.nbytes > _ONE_REQUEST_BYTES
        await self._patiently(lambda: self.store.put_async(self._key(key), data, use_multipart=parts))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        with _told(self.url):
            await super().set_if_not_exists(self._key(key), value)

    async def delete(self, key: str) -> None:
        await self._patiently(lambda: super(_ToldStore, self).delete(self._key(key)))

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        listed = await self._patiently(lambda: self.store.list(self._key(prefix)).collect_async())
        await self._patiently(lambda: self.store.delete_async([entry["path"] for entry in listed]))

    def list(self) -> AsyncGenerator[str, None]:
        return self.list_prefix("")

    async def list_prefix(self, prefix: str) -> AsyncGenerator[str, None]:
        above = len(self.prefix) + 1 if self.prefix else 0
        for key in await self._patiently(lambda: _collected(super(_ToldStore, self).list_prefix(self._key(prefix)))):
            yield key[above:]

    async def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
        for key in await self._patiently(lambda: _collected(super(_ToldStore, self).list_dir(self._key(prefix)))):
            yield key

    async def getsize(self, key: str) -> int:
        return await self._patiently(lambda: super(_ToldStore, self).getsize(self._key(key)))

    async def getsize_prefix(self, prefix: str) -> int:
        return await self._patiently(lambda: super(_ToldStore, self).getsize_prefix(self._key(prefix)))

    async def _patiently(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """What a call that may be repeated gives."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                with _told(self.url):
                    return await call()
            except BrokenAnswerError:
                if time.monotonic() > end:
                    raise
            await asyncio.sleep(_PAUSE)

    def _key(self, key: str) -> str:
        return _joined(self.prefix, key.strip("/"))


async def _collected(keys: AsyncGenerator[str, None]) -> list[str]:
    return [key async for key in keys]
