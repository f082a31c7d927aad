"""Do workers run the code that the coordinator runs? Other versions may give other bits, or fail half-way."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping
from typing import Any

from dpdist.core.errors import InputError
from dpdist.core.versions import VERSIONED, versions


@functools.cache
def code_versions() -> dict[str, str]:
    """Package -> version, and Python's without its last number, which brings no other code."""
    found = versions()
    python = ".".join(found["python"].split(".")[:2])
    return {**{name: found[name] for name in VERSIONED}, "python": python}


def refusal(theirs: Mapping[str, str], ours: Mapping[str, str], host: str) -> InputError | None:
    """The error that says how a worker's versions differ from the coordinator's, or None if they do not."""
    other = [name for name in ours if theirs.get(name) != ours[name]]
    if not other:
        return None
    told = " and ".join(f"{name} {theirs.get(name) or 'not installed'} instead of {ours[name]}" for name in other)
    return InputError(
        f"the worker on {host} has {told}; install the coordinator's version there, or give that host up."
    )


def own_refusal(coordinator: Mapping[str, str]) -> InputError | None:
    """As :func:`refusal`, for the process that asks."""
    mine = code_versions()
    return None if mine == coordinator else refusal(mine, coordinator, socket.gethostname())


def probe(names: tuple[str, ...]) -> Callable[[], dict[str, Any]]:
    """A function that tells a process's versions without dpdist: it is sent as code, not by name."""

    def tell() -> dict[str, Any]:
        import importlib.metadata
        import platform
        import socket

        found: dict[str, Any] = {"host": socket.gethostname()}
        for name in names:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = None
        return {**found, "python": ".".join(platform.python_version_tuple()[:2])}

    return tell
