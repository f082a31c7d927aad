"""Comparison of the versions of workers and coordinator: other versions may give other bits, or fail later."""

from __future__ import annotations

import functools
import socket
from collections.abc import Mapping

from dpdist.core.errors import InputError
from dpdist.core.versions import VERSIONED, versions


@functools.cache
def code_versions() -> dict[str, str]:
    """Versions of the packages that affect results, and of Python without its patch number."""
    found = versions()
    return {name: found[name] for name in VERSIONED} | {"python": _python(found["python"])}


def refusal(theirs: Mapping[str, str | None], ours: Mapping[str, str], host: str) -> InputError | None:
    """The error if a worker's versions differ from the coordinator's, or None."""
    found = {**theirs, "python": _python(theirs["python"] or "")}
    other = [name for name in ours if found.get(name) != ours[name]]
    if not other:
        return None
    told = " and ".join(f"{name} {found.get(name) or 'not installed'} instead of {ours[name]}" for name in other)
    return InputError(
        f"the worker on {host} has {told}; install the coordinator's version there, or leave that host out."
    )


def own_refusal(coordinator: Mapping[str, str]) -> InputError | None:
    """As :func:`refusal`, for this process."""
    mine = code_versions()
    return None if mine == coordinator else refusal(mine, coordinator, socket.gethostname())


def _python(version: str) -> str:
    return ".".join(version.split(".")[:2])
