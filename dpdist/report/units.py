"""Times and sizes in units for people."""

from __future__ import annotations

_TIMES = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
_SIZES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
#: Least share of a unit at which it is used: values that are rounded to 1.
_NEARLY = 0.9995


def duration(seconds: float) -> str:
    """A time with three digits, in the largest unit of which it is at least one."""
    return _told(seconds, _TIMES)


def size(count: float) -> str:
    """Bytes, as in :func:`duration`."""
    return _told(count, _SIZES)


def _told(value: float, units: tuple[tuple[float, str], ...]) -> str:
    least, unit = next(((each, name) for each, name in units if value >= _NEARLY * each), units[-1])
    number = value / least
    return f"{number:,.0f} {unit}" if number >= 99.95 else f"{number:.3g} {unit}"
