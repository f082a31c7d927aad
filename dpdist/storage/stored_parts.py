"""Parts by import path and parameters: families, likelihoods, allocations, schedules, plans, and anybody's own.

A part is a dataclass. Its group names the class in the attribute ``class``, as ``module:Name``, and every field in an
attribute: a number, text, None, or a list or tuple of such stands there; of an array or another part it is said that
an array or a group of that name holds it. Nothing is pickled: to read a part is to import the class that is named, to
see that it is a part, and to call it with its fields.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import zarr

from dpdist.core.errors import CheckpointError, DpdistError, InputError
from dpdist.inference.moves.base import Move, Proposals
from dpdist.inference.moves.cooldown import Cooldowns
from dpdist.inference.moves.sampling import Sampling
from dpdist.inference.schedules import Schedule
from dpdist.inference.sva.prune_merge import MergeTest
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.problem import OnlinePlan, TopicPlan
from dpdist.inference.transform import TransformPlan
from dpdist.models.allocations import Allocation
from dpdist.models.families.base import Family
from dpdist.models.likelihoods import Likelihood
from dpdist.storage import schema

#: What a stored class may be derived from.
PARTS = (
    Family,
    Likelihood,
    Allocation,
    Schedule,
    MergeTest,
    Move,
    Proposals,
    Cooldowns,
    Sampling,
    TransformPlan,
    TopicPlan,
    OnlinePlan,
    Effort,
)
#: What an attribute says of a field that an array or a group of its name holds.
_ARRAY, _PART, _PARTS = {"stored": "array"}, {"stored": "part"}, {"stored": "parts"}
#: Bytes of a chunk of a part's array at most, rows apart.
CHUNK = 64 * 2**20


@dataclass(frozen=True, eq=False)
class Asked:
    """What a person asked for: an estimator by its import path, and its parameters."""

    estimator: str
    parameters: dict[str, Any]


def write_part(group: zarr.Group, name: str, part: Any) -> None:
    """Store `part` in a new group `name` of `group`.

    Raises
    ------
    InputError
        If its class cannot be imported again, or a field is nothing that can be stored.
    """
    kind = type(part)
    if not is_dataclass(kind):
        raise InputError(
            f"{kind.__name__} should be a dataclass of its parameters, which is what is stored and read back; "
            "decorate it with @dataclass(frozen=True, eq=False)."
        )
    values = {field.name: getattr(part, field.name) for field in fields(kind) if field.init}
    _write_values(group.create_group(name), path_of_class(kind), values)


def read_part(group: zarr.Group, name: str, kind: type | tuple[type, ...]) -> Any:
    """The part `name` of `group`.

    Parameters
    ----------
    kind : what its class must be derived from

    Raises
    ------
    CheckpointError
        If its class cannot be imported, is not derived from that, or refuses the stored parameters.
    """
    path, values = _read_values(schema.subgroup(group, name))
    return made(imported_class(path, kind), values)


def write_parts(group: zarr.Group, name: str, parts: Sequence[Any]) -> None:
    """Store several parts in a new group `name` of `group`, in their order; raises as :func:`write_part`."""
    held = group.create_group(name)
    held.attrs["parts"] = len(parts)
    for place, part in enumerate(parts):
        write_part(held, str(place), part)


def read_parts(group: zarr.Group, name: str, kind: type | tuple[type, ...]) -> list[Any]:
    """The parts `name` of `group`; raises as :func:`read_part`."""
    held = schema.subgroup(group, name)
    return [read_part(held, str(place), kind) for place in range(int(held.attrs["parts"]))]  # type: ignore[arg-type]


def write_asked(group: zarr.Group, asked: Asked) -> None:
    """Store what was asked for in a new group ``asked`` of `group`; raises as :func:`write_part`."""
    _write_values(group.create_group("asked"), asked.estimator, asked.parameters)


def read_asked(group: zarr.Group) -> Asked:
    """What was asked for, stored in `group`; raises :class:`CheckpointError` as :func:`read_part`."""
    return Asked(*_read_values(schema.subgroup(group, "asked")))


def path_of_class(kind: type) -> str:
    """``module:Name``, the shortest that leads to a class; :class:`InputError` if none does."""
    folders = kind.__module__.split(".")
    for depth in range(1, len(folders) + 1):
        path = f"{'.'.join(folders[:depth])}:{kind.__qualname__}"
        with contextlib.suppress(ImportError, AttributeError):
            if _find(path) is kind:
                return path
    raise InputError(
        f"{kind.__name__} should be defined at the top of a module that can be imported, by which a stored model "
        f"finds it again; got {kind.__module__}.{kind.__qualname__}. Move it there, out of any function."
    )


def imported_class(path: str, kind: type | tuple[type, ...]) -> Any:
    """The class at ``module:Name``.

    Raises
    ------
    CheckpointError
        If it cannot be imported, or is not derived from `kind`.
    """
    module, _, name = path.partition(":")
    try:
        found = _find(path)
    except Exception as error:  # whatever a module raises while it is imported
        where = "this script or notebook" if module == "__main__" else f"a module {module} that can be imported here"
        raise CheckpointError(
            f"the model needs the class {name} of {module}, which cannot be imported ({error}); define or import it "
            f"in {where}, under that name, then load again."
        ) from error
    if not (isinstance(found, type) and issubclass(found, kind)):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(each.__name__ for each in kinds)
        raise CheckpointError(
            f"the model names {module}.{name}, which is no {wanted} and is not used; the file is damaged or not "
            "dpdist's, or the class has changed."
        )
    return found


def made(kind: Any, values: dict[str, Any]) -> Any:
    """A class called with stored parameters; :class:`CheckpointError` if it refuses them."""
    try:
        return kind(**values)
    except DpdistError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{kind.__name__} does not take the parameters that the model stores, {', '.join(values) or 'none'} "
            f"({error}); use the version of it that the model was made with."
        ) from error


def _find(path: str) -> Any:
    module, _, name = path.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def _write_values(group: zarr.Group, path: str, values: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"class": path}
    for name, value in values.items():
        if isinstance(value, PARTS):
            write_part(group, name, value)
            plain[name] = _PART
        elif isinstance(value, list) and value and all(isinstance(each, PARTS) for each in value):
            write_parts(group, name, value)
            plain[name] = _PARTS
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            _write_array(group, name, value)
            plain[name] = _ARRAY
        else:
            plain[name] = _plain(value, name, path)
    group.attrs.update(plain)


def _read_values(group: zarr.Group) -> tuple[str, dict[str, Any]]:
    plain: dict[str, Any] = dict(group.attrs)
    path = str(plain.pop("class"))
    return path, {name: _read_value(group, name, value) for name, value in plain.items()}


def _read_value(group: zarr.Group, name: str, value: Any) -> Any:
    if value == _ARRAY:
        return schema.read(group, name)
    if value == _PARTS:
        return read_parts(group, name, PARTS)
    return read_part(group, name, PARTS) if value == _PART else _from_plain(value)


def _write_array(group: zarr.Group, name: str, array: np.ndarray) -> None:
    """An array under a name of its owner's; in chunks along its first axis, for it may have an entry a row."""
    dims = tuple(f"{name}_{axis}" for axis in range(array.ndim))
    chunks = array.shape
    if array.nbytes > CHUNK:
        chunks = (max(1, CHUNK * len(array) // array.nbytes), *array.shape[1:])
    stored = schema.create_as(group, name, schema.Variable(dims, f"parameter {name}"), array.shape, array.dtype, chunks)
    if array.size:
        stored[...] = array


def _plain(value: Any, name: str, path: str) -> Any:
    """A value as JSON has it; what JSON has not is an object that says what it is."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(entry, name, path) for entry in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(entry, name, path) for entry in value]}
    raise InputError(
        f"{name} of {path.partition(':')[2]} should be a number, text, None, an array of numbers, a list or tuple of "
        f"such, or a part of dpdist to be stored; got {type(value).__name__}. Give one of these."
    )


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return float(value["number"]) if "number" in value else tuple(_from_plain(entry) for entry in value["tuple"])
