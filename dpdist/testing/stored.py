"""Checks that parts are unchanged by storing and reading."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import zarr
from zarr.storage import MemoryStore

from dpdist.storage import codec


def check_stored(part: Any) -> None:
    """Check that a part (family, likelihood, allocation, schedule, move) is unchanged by storing and reading.

    Raises
    ------
    InputError
        If it cannot be stored: its class is not at the top level of a module, or a field cannot be written.
    """
    group = zarr.create_group(store=MemoryStore())
    codec.write(group, part)
    same_part("a part does not change when stored", codec.read(group), part)


def same_part(law: str, found: Any, expected: Any) -> None:
    """Assert that two parts have the same class and fields; `law` is the message."""
    assert type(found) is type(expected), law
    for field in fields(expected):
        if field.init:
            _same_value(f"{law}: {field.name}", getattr(found, field.name), getattr(expected, field.name))


def _same_value(law: str, found: Any, expected: Any) -> None:
    """Compare parts, arrays and lists by their contents; numbers by value, whether of NumPy or Python."""
    if is_dataclass(expected):
        same_part(law, found, expected)
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected) and len(found) == len(expected), law
        for each, other in zip(found, expected, strict=True):
            _same_value(law, each, other)
    elif isinstance(expected, dict):
        assert isinstance(found, dict), law
        _same_value(law, [*found, *found.values()], [*expected, *expected.values()])
    else:
        np.testing.assert_array_equal(found, expected, law, strict=isinstance(expected, np.ndarray))
