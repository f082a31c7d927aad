"""Small JSON files that contain a digest of themselves, by which damage is detected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dpdist.core.digests import digest_of
from dpdist.core.errors import CheckpointError

_DIGEST = "digest"


def sealed(values: Mapping[str, object]) -> bytes:
    """The contents of a file of plain `values`, which people can also read."""
    plain = json.loads(json.dumps(values))
    return json.dumps({**plain, _DIGEST: _digest(plain)}, indent=2).encode()


def unsealed(data: bytes, label: str, remedy: str) -> dict[str, Any]:
    """The values in a file.

    Parameters
    ----------
    label : name of the file in messages
    remedy : what to do if it is damaged

    Raises
    ------
    CheckpointError
        If the file was not written by :func:`sealed`, or was changed.
    """
    try:
        values = json.loads(data)
    except ValueError:
        values = None
    if not isinstance(values, dict) or values.pop(_DIGEST, None) != _digest(values):
        raise CheckpointError(f"{label} is damaged; {remedy}")
    return values


def _digest(values: Mapping[str, object]) -> str:
    """Digest of JSON values, independent of the order of keys."""
    return digest_of(json.dumps(values, sort_keys=True).encode())
