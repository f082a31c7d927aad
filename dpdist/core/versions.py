"""Package versions and processor, on which the bits of a result depend."""

from __future__ import annotations

import importlib.metadata
import platform

#: Packages whose version may change a result's last bits.
VERSIONED = ("dpdist", "numpy", "scipy", "numba")


def versions() -> dict[str, str]:
    """Versions of packages and of Python, and the type of processor, by name."""
    found = {name: importlib.metadata.version(name) for name in VERSIONED}
    return {**found, "python": platform.python_version(), "machine": platform.machine()}
