"""Times and sizes as people say them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time as people say it."""
    for least, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= least:
            return f"{seconds / least:.3g} {unit}"
    return f"{1e3 * seconds:.3g} ms"


def size(count: float) -> str:
    """Bytes as people say them."""
    for least, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= least:
            return f"{count / least:.3g} {unit}"
    return f"{count:.0f} bytes"
