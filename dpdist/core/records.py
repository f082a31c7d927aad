"""Small files of plain values that carry a digest of themselves: a damaged one is told, and never believed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dpdist.core.digests import digest_of
from dpdist.core.errors import CheckpointError

_DIGEST = "digest"


def sealed(values: Mapping[str, object]) -> bytes:
    """A file of plain `values`, for people to read as well."""
    plain = json.loads(json.dumps(values))
    return json.dumps({**plain, _DIGEST: _digest(plain)}, indent=2).encode()


def unsealed(data: bytes, label: str, remedy: str) -> dict[str, Any]:
    """The values in a file.

    Parameters
    ----------
    label : what a person calls the file
    remedy : what to do where it is damaged

    Raises
    ------
    CheckpointError
        If the file is not as :func:`sealed` made it.
    """
    try:
        values = json.loads(data)
    except ValueError:
        values = None
    if not isinstance(values, dict) or values.pop(_DIGEST, None) != _digest(values):
        raise CheckpointError(f"{label} is damaged; {remedy}")
    return values


def _digest(values: Mapping[str, object]) -> str:
    """Of values that JSON gave, whatever their order."""
    return digest_of(json.dumps(values, sort_keys=True).encode())
