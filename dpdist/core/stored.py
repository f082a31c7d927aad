"""Declarations of how the fields of a class are stored.

    stats: Annotated[np.ndarray, Stored(("component", "feature"), "expected sufficient statistics")]

A reader that opens the file with xarray finds the dimensions, units and meaning beside the numbers. Arrays without a
declaration are stored with generated dimension names.
"""

from __future__ import annotations

import functools
from typing import Annotated, NamedTuple, get_origin, get_type_hints


class Stored(NamedTuple):
    """The declaration of a stored array.

    Parameters
    ----------
    dims : names of its dimensions
    doc : meaning
    units : of its values
    name : in the file, if different from the field's
    """

    dims: tuple[str, ...]
    doc: str
    units: str = "1"
    name: str = ""


#: For a field that holds a part: its arrays are stored in the group of its owner, not in a group of their own.
BESIDE = Stored((), "")


@functools.cache
def declared(kind: type) -> dict[str, Stored]:
    """The declarations of the fields of a class, by name; empty if a type hint exists only for type checkers."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:
        return {}
    annotated = {name: hint.__metadata__ for name, hint in hints.items() if get_origin(hint) is Annotated}
    return {name: each for name, told in annotated.items() for each in told if isinstance(each, Stored)}
