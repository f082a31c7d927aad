"""What a field of a class says of how it is stored, where it is declared.

    stats: Annotated[np.ndarray, Stored(("component", "feature"), "expected sufficient statistics")]

Whoever opens the file with xarray reads the dimensions, the units and the meaning beside the numbers. Arrays of which
nothing is said are stored as well, along dimensions of their own.
"""

from __future__ import annotations

import functools
from typing import Annotated, NamedTuple, get_origin, get_type_hints


class Stored(NamedTuple):
    """One stored array.

    Parameters
    ----------
    dims : a name for each of its dimensions
    doc : what it means
    units : of its values
    name : in the file, where it is not that of the field
    """

    dims: tuple[str, ...]
    doc: str
    units: str = "1"
    name: str = ""


#: Of a field that holds a part: its arrays stand beside those of what holds it, in no group of their own.
BESIDE = Stored((), "")


@functools.cache
def declared(kind: type) -> dict[str, Stored]:
    """What the fields of a class say of themselves, by name; nothing where a hint names what only type checkers see."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:
        return {}
    annotated = {name: hint.__metadata__ for name, hint in hints.items() if get_origin(hint) is Annotated}
    return {name: each for name, told in annotated.items() for each in told if isinstance(each, Stored)}
