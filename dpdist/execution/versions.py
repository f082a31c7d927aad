"""Do workers run the code that the coordinator runs? Other versions may give other bits, or fail half-way."""

from __future__ import annotations

import functools
import socket
from collections.abc import Mapping

from dpdist.core.errors import InputError
from dpdist.core.versions import VERSIONED, versions


@functools.cache
def code_versions() -> dict[str, str]:
    """Package -> version, and Python's without its last number, which brings no other code."""
    found = versions()
    return {name: found[name] for name in VERSIONED} | {"python": _python(found["python"])}


def refusal(theirs: Mapping[str, str | None], ours: Mapping[str, str], host: str) -> InputError | None:
    """The error that says how a worker's versions differ from the coordinator's, or None if they do not."""
    found = {**theirs, "python": _python(theirs["python"] or "")}
    other = [name for name in ours if found.get(name) != ours[name]]
    if not other:
        return None
    told = " and ".join(f"{name} {found.get(name) or 'not installed'} instead of {ours[name]}" for name in other)
    return InputError(
        f"the worker on {host} has {told}; install the coordinator's version there, or give that host up."
    )


def own_refusal(coordinator: Mapping[str, str]) -> InputError | None:
    """As :func:`refusal`, for the process that asks."""
    mine = code_versions()
    return None if mine == coordinator else refusal(mine, coordinator, socket.gethostname())


def _python(version: str) -> str:
    return ".".join(version.split(".")[:2])
