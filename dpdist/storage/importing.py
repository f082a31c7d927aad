"""Classes by import path: which ones can be stored, and how stored objects are created again.

A part is an object that can be created again by calling its class with its fields: a frozen dataclass or NamedTuple
that is defined in dpdist or derived from a class of dpdist, such as a user-defined family. No other class or function
that a file names is ever called.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from dpdist.core.errors import CheckpointError, DpdistError, InputError


def is_own(kind: type) -> bool:
    """Whether a class is defined in dpdist, or derived from a class of dpdist."""
    return any(base.__module__.partition(".")[0] == "dpdist" for base in kind.__mro__)


def is_part(kind: type) -> bool:
    """Whether objects of a class can be stored by import path and fields."""
    return is_own(kind) and fields_of(kind) is not None


def fields_of(kind: type) -> tuple[str, ...] | None:
    """The constructor fields of a frozen dataclass or NamedTuple; None for any other class."""
    if issubclass(kind, tuple):
        return getattr(kind, "_fields", None)
    if is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return tuple(field.name for field in fields(kind) if field.init)
    return None


def path_of_class(kind: type) -> str:
    """The shortest path ``module:Name`` from which a class can be imported; raises :class:`InputError` if there is
    none."""
    folders = kind.__module__.split(".")
    for depth in range(1, len(folders) + 1):
        path = f"{'.'.join(folders[:depth])}:{kind.__qualname__}"
        with contextlib.suppress(ImportError, AttributeError):
            if _find(path) is kind:
                return path
    raise InputError(
        f"{kind.__name__} should be defined at the top level of an importable module, where a stored model can find "
        f"it; got {kind.__module__}.{kind.__qualname__}. Move it there, out of any function."
    )


def imported_part(path: str, kind: type = object) -> Any:
    """The class of a part, derived from `kind`; raises as :func:`imported_class`."""
    wanted = "part of a model" if kind is object else kind.__name__
    return _imported(path, lambda found: issubclass(found, kind) and is_part(found), wanted)


def imported_enum(path: str) -> Any:
    """An enumeration of dpdist; raises as :func:`imported_class`."""
    return _imported(path, lambda found: issubclass(found, Enum) and is_own(found), "enumeration of dpdist")


def imported_class(path: str, kinds: tuple[type, ...]) -> Any:
    """The class at ``module:Name``; raises :class:`CheckpointError` if it cannot be imported, or is derived from none
    of `kinds`."""
    return _imported(path, lambda found: issubclass(found, kinds), " or ".join(kind.__name__ for kind in kinds))


def made(kind: Any, values: dict[str, Any]) -> Any:
    """Call a class with stored parameters; raises :class:`CheckpointError` if it rejects them."""
    try:
        return kind(**values)
    except DpdistError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{kind.__name__} does not accept the parameters stored with the model, {', '.join(values) or 'none'} "
            f"({error}); use the version of {kind.__name__} with which the model was made."
        ) from error


def _imported(path: str, holds: Callable[[type], bool], wanted: str) -> Any:
    module, _, name = path.partition(":")
    try:
        found = _find(path)
    except Exception as error:  # importing a module can raise any error
        where = "this script or notebook" if module == "__main__" else f"a module {module} that can be imported here"
        raise CheckpointError(
            f"the model needs the class {name} of {module}, which cannot be imported ({error}); define or import it "
            f"in {where}, under that name, then load again."
        ) from error
    if not (isinstance(found, type) and holds(found)):
        raise CheckpointError(
            f"the model refers to {module}.{name}, which is not the expected {wanted} and is not used; the file is "
            "damaged or not from dpdist, or the class has changed."
        )
    return found


def _find(path: str) -> Any:
    module, _, name = path.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))
