"""Versions and processor on which the bits of a result depend."""

from __future__ import annotations

import importlib.metadata
import platform

#: Packages whose version may change a result's last bits.
VERSIONED = ("dpdist", "numpy", "scipy", "numba")


def versions() -> dict[str, str]:
    """Name -> version of each package, of Python and the kind of processor."""
    found = {name: importlib.metadata.version(name) for name in VERSIONED}
    return {**found, "python": platform.python_version(), "machine": platform.machine()}
