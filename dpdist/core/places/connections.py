"""Connections to object stores, and the conversion of their errors to messages."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import os
import re
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from dpdist.core.errors import DpdistError, InputError

if TYPE_CHECKING:
    from boto3 import Session
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Config

#: URL schemes of object stores; only the first is tested against servers.
SCHEMES = ("s3", "gs", "az")
#: Seconds for which an unanswered request is repeated.
PATIENCE = 180.0
#: Seconds before a request is repeated that obstore does not repeat itself.
PAUSE = 0.1
#: Prefixes of the environment variables on which a connection depends.
_SETTINGS = ("AWS_", "GOOGLE_", "AZURE_")
#: Environment variables of the credentials.
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
#: Pattern in obstore's error messages for a broken connection after which it does not repeat the request.
_BROKEN = r"body error|decoding response body|HttpError \{\s*kind: (Unknown|Request)\b"
_NO_CREDENTIALS = (
    "there are no credentials for the object store; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE."
)


class ObjectStoreError(DpdistError, OSError):
    """An object store did not answer, or answered with an error."""


class WrongStoreError(ObjectStoreError, InputError):
    """An object store does not exist, or is addressed wrongly, which the user has to correct."""


class BrokenAnswerError(ObjectStoreError):
    """A connection broke during a request or an answer, after which obstore does not repeat the request."""


class AccessDeniedError(ObjectStoreError):
    """An object store refused the credentials."""


def is_object_url(path: str) -> bool:
    """Whether a path is the URL of an object store."""
    return path.partition("://")[0] in SCHEMES and "://" in path


def connected(url: str, patience: float) -> ObjectStore:
    """The obstore store for a URL, created again if the environment changes."""
    settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_SETTINGS)))
    return _prefix_store(*parts_of(url), patience, settings)


@functools.lru_cache(maxsize=64)
def _prefix_store(
    scheme: str, bucket: str, prefix: str, patience: float, settings: tuple[tuple[str, str], ...]
) -> ObjectStore:
    stores, environment = library("obstore.store"), dict(settings)
    retry = _retry(environment, patience)
    if scheme != "s3":
        return stores.from_url(f"{scheme}://{bucket}/{prefix}", retry_config=retry)
    config, provider = _aws_config(environment)
    client: ClientConfig = {} if "AWS_TIMEOUT" in environment else {"timeout": "120s"}
    if (config.get("endpoint") or _endpoint(environment) or "").startswith("http:"):
        client["allow_http"] = True
    return stores.S3Store(
        bucket,
        prefix=prefix or None,
        config=config,
        client_options=client,
        retry_config=retry,
        credential_provider=provider,
    )


def parts_of(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and prefix of a URL."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme not in SCHEMES:
        raise InputError(f"{url} should begin with one of s3://, gs://, az://; give such a URL, or a path on disk.")
    if "@" in bucket:
        raise InputError(f"a {scheme}:// URL should hold no credentials; set AWS_ACCESS_KEY_ID or a profile instead.")
    if not bucket:
        raise InputError(f"{url} names no bucket; give one, as in {scheme}://bucket/name.zarr.")
    inside = prefix.rstrip("/")
    if inside and not {"", ".", ".."}.isdisjoint(inside.split("/")):  # else one place would have several names
        raise InputError(f"{url} should have a name other than . and .. between any two slashes; correct the URL.")
    return scheme, bucket, inside


def _retry(environment: dict[str, str], patience: float) -> RetryConfig:
    """The retry configuration: within `patience` seconds, with pauses from a tenth of a second to five seconds."""
    attempts = environment.get("AWS_MAX_ATTEMPTS", "1000")
    if not attempts.isdecimal() or int(attempts) < 1:
        raise InputError(
            f"AWS_MAX_ATTEMPTS should be a whole number of at least 1; got {attempts}. Correct or unset it."
        )
    return {
        "max_retries": int(attempts) - 1,
        "retry_timeout": datetime.timedelta(seconds=patience),
        "backoff": {
            "init_backoff": datetime.timedelta(milliseconds=100),
            "max_backoff": datetime.timedelta(seconds=5),
            "base": 2,
        },
    }


def _aws_config(environment: dict[str, str]) -> tuple[S3Config, Boto3CredentialProvider | None]:
    """Settings that the environment leaves open, taken from boto3's profiles and roles."""
    set_keys = [name for name in _KEYS if name in environment]
    if len(set_keys) == 1:
        raise InputError(f"only {set_keys[0]} is set; set both of {' and '.join(_KEYS)}, or neither.")
    keys = bool(set_keys) or environment.get("AWS_SKIP_SIGNATURE", "").lower() == "true"
    region = "AWS_REGION" in environment or "AWS_DEFAULT_REGION" in environment
    endpoint = _endpoint(environment) is not None
    if keys and region and endpoint:
        return {}, None
    try:
        boto3 = importlib.import_module("boto3")
    except ModuleNotFoundError:
        return {}, None
    try:
        session = boto3.Session()
        config: S3Config = {} if region or session.region_name is None else {"region": session.region_name}
        config |= {} if endpoint else _profile_endpoint(session)
        found = keys or session.get_credentials() is not None
    except (importlib.import_module("botocore.exceptions").BotoCoreError, ValueError) as error:
        raise InputError(
            f"a profile for the object store cannot be used ({error}); correct AWS_PROFILE, or the profile's file."
        ) from error
    if not found:
        raise InputError(_NO_CREDENTIALS)
    if keys:
        return config, None
    # renews credentials when they expire
    return config, importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider(session)


def _endpoint(environment: dict[str, str]) -> str | None:
    """The endpoint in the environment, or None; it is checked because obstore panics if it is not a URL."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        given = environment.get(name)
        if given is not None and not re.match(r"https?://[^/]", given):
            raise InputError(
                f"{name} should be a URL such as http://localhost:9000; got {given!r}. Correct or unset it."
            )
    return environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")


def _profile_endpoint(session: Session) -> S3Config:
    """The endpoint of a profile, unless it is Amazon's own."""
    endpoint = str(session.client("s3", region_name=session.region_name or "us-east-1").meta.endpoint_url)
    return {} if re.search(r"\.amazonaws\.com(\.cn)?/?$", endpoint) else {"endpoint": endpoint}


def library(name: str) -> ModuleType:
    """A module of obstore; raises :class:`InputError` with the command to install it if it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError("object stores need obstore; install it with: pip install 'dpdist[s3]'") from error


@contextlib.contextmanager
def told(url: str) -> Iterator[None]:
    """Convert obstore's errors; their texts are not shown, as they contain whole answers of the server."""
    exceptions = library("obstore.exceptions")
    try:
        yield
    except exceptions.BaseError as error:
        raise _sentence(url, str(error)) from None
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise _sentence(url, str(error)) from None
        raise FileNotFoundError(f"there is no such object in {url}.") from None


def _sentence(url: str, text: str) -> Exception:
    """The error to raise for obstore's message `text`."""
    reason = _reason(text)
    if "NoSuchBucket" in text:
        return WrongStoreError(f"there is no bucket for {url}; create it, or correct the URL or AWS_ENDPOINT_URL.")
    if "169.254.169.254" in text or "/latest/api/token" in text:
        return WrongStoreError(_NO_CREDENTIALS)
    if "configured region" in text or "PermanentRedirect" in text:
        return WrongStoreError(
            f"{url} is in another region than the configured one; set AWS_REGION to the bucket's region."
        )
    if re.search(r"status code: 40[13]\b", text):
        return AccessDeniedError(
            f"access to {url} was denied ({reason}); check the credentials and their permissions to read, "
            "list and write."
        )
    kind = BrokenAnswerError if re.search(_BROKEN, text) else ObjectStoreError
    return kind(
        f"the object store did not answer for {url} ({reason}); check the network and AWS_ENDPOINT_URL, then try again."
    )


def _reason(text: str) -> str:
    """The short reason in an error text; the rest may contain what a log should not."""
    for pattern in (r"<Code>(\w+)</Code>", r"status code: (\d+[ \w]*)", r"(HTTP error: [a-z ]+)", r"(timed out)"):
        found = re.search(pattern, text)
        if found is not None:
            return found.group(1).strip()
    return "no reason given"
