"""Times and sizes as people say them."""

from __future__ import annotations

_TIMES = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
_SIZES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
#: Share of a unit from which a value is told in it: what would be rounded to 1.
_NEARLY = 0.9995


def duration(seconds: float) -> str:
    """A time as people say it: three digits, in the largest unit of which it is one."""
    return _told(seconds, _TIMES)


def size(count: float) -> str:
    """Bytes as people say them, as :func:`duration` says times."""
    return _told(count, _SIZES)


def _told(value: float, units: tuple[tuple[float, str], ...]) -> str:
    least, unit = next(((each, name) for each, name in units if value >= _NEARLY * each), units[-1])
    number = value / least
    return f"{number:,.0f} {unit}" if number >= 99.95 else f"{number:.3g} {unit}"
