"""The encoding of objects as Zarr groups that xarray can read without dpdist, and the decoding, exact to the bit.

Objects that can be stored are parts (:mod:`dpdist.storage.importing`): frozen dataclasses and NamedTuples of dpdist or
derived from its classes. The attribute ``value`` of a group is a tree of plain values; it holds each part as its import
path and its fields. Arrays are stored beside it as Zarr arrays, those of a nested part in a group named like the field,
with the dimensions, units and meaning that the field declares (:mod:`dpdist.core.stored`). The arrays of a sequence of
parts of one class are concatenated or stacked. Nothing is pickled.

Every chunk is written, and ends with a checksum for readers without dpdist; dpdist itself detects damage by the digests
in a commit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import zarr
from scipy import sparse

from dpdist.core.digests import digest_of, digest_of_rows
from dpdist.core.errors import CheckpointError, InputError
from dpdist.core.stored import BESIDE, Stored, declared
from dpdist.core.strings import join_strings, part_strings
from dpdist.storage.arrays import Entry, arrays_of, put_all
from dpdist.storage.importing import fields_of, imported_enum, imported_part, is_own, made, path_of_class

#: Version of the format; readers refuse any other.
FORMAT = 13
_BOUNDARIES = Stored(("word_boundary",), "offset at which each word begins in the text, and the end of the last word")


class _Held(NamedTuple):
    """An array of a value, and its declaration."""

    values: np.ndarray
    stored: Stored


_Arrays = dict[str, _Held]


def write(group: zarr.Group, value: Any) -> None:
    """Store `value`, a part or a sequence of parts, in an empty group; raises :class:`InputError` if a class cannot be
    imported by its path, or a field cannot be stored."""
    arrays: _Arrays = {}
    group.attrs["value"] = _tree(value, "", type(value).__name__, arrays)
    sizes: dict[tuple[str, str], int] = {}
    entries = []
    for path, held in arrays.items():
        above, _, name = path.rpartition("/")
        dims = tuple(
            dim if sizes.setdefault((above, dim), size) == size else f"{dim}_of_{name}"
            for dim, size in zip(held.stored.dims, held.values.shape, strict=True)
        )
        entries.append(Entry(path, held.values, held.stored._replace(dims=dims)))
    put_all(group, entries)


def read(group: zarr.Group, kind: type = object) -> Any:
    """The value stored in `group`.

    Parameters
    ----------
    kind : required base class of a part

    Raises
    ------
    CheckpointError
        If a class cannot be imported, is not a part, is not derived from `kind`, or rejects the stored fields.
    """
    tree: Any = group.attrs.get("value")
    if tree is None:
        raise CheckpointError(f"{group.store_path} has no value; it is damaged or not from dpdist.")
    return _value(tree, arrays_of(group), kind)


def digest(value: Any) -> str:
    """A digest of everything that would be stored of a value; raises as :func:`write`."""
    arrays: _Arrays = {}
    tree = _tree(value, "", type(value).__name__, arrays)
    parts = [digest_of_rows(np.atleast_2d(held.values), None) for held in arrays.values()]
    shapes = [list(held.values.shape) for held in arrays.values()]
    return digest_of(json.dumps([tree, parts, shapes]).encode())


def shape_of(value: Any) -> tuple[Hashable, int]:
    """A key that is equal for parts whose arrays can be concatenated, and the bytes of the arrays; raises as
    :func:`write`."""
    arrays: _Arrays = {}
    _tree(value, "", type(value).__name__, arrays)
    return (type(value), *_kinds(arrays).items()), sum(held.values.nbytes for held in arrays.values())


# Encoding


def _tree(value: Any, path: str, told: str, arrays: _Arrays, stored: Stored | None = None) -> Any:
    """A value as a JSON tree without its arrays; values that JSON lacks become objects with a key for their kind.

    Parameters
    ----------
    path : of the group that its arrays go to, or of the array
    told : name of the value in messages
    arrays : by path, to which the arrays of the value are added
    stored : declaration of the value
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Enum) and is_own(type(value)):  # before str, as some enums are subclasses of it
        return {"enum": path_of_class(type(value)), "name": value.name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"array": _add(arrays, path, value, stored)}
    if isinstance(value, sparse.csr_array):
        parts = [_add(arrays, f"{path}.{name}", getattr(value, name)) for name in ("data", "indices", "indptr")]
        return {"csr": parts, "shape": list(value.shape)}
    if isinstance(value, type) and issubclass(value, np.number):
        return {"dtype": np.dtype(value).name}
    if is_own(type(value)):
        fields = _fields(value, path, arrays)
        return {"class": path_of_class(type(value)), "fields": fields}
    if isinstance(value, list | tuple):
        entries = _words(value, path, stored, arrays) if stored else _entries(value, path, told, arrays)
        return entries if isinstance(value, list) else {"tuple": entries}
    if isinstance(value, dict) and all(isinstance(key, str | int) for key in value):
        pairs = enumerate(value.items())
        return {"dict": [[key, _tree(each, f"{path}.{_word(key, i)}", told, arrays)] for i, (key, each) in pairs]}
    raise InputError(
        f"{told} should be a number, a string, None, an array of numbers, a list, tuple or dict of these (with strings "
        f"or whole numbers as keys), or a part of dpdist; got {type(value).__name__}. Give one of these."
    )


def _fields(value: Any, path: str, arrays: _Arrays) -> dict[str, Any]:
    """The fields of a part as trees."""
    kind: type = type(value)
    names, known = fields_of(kind), declared(kind)
    if names is None:
        raise InputError(
            f"{kind.__name__} should be a dataclass, whose fields are stored and read back; "
            "decorate it with @dataclass(frozen=True, eq=False)."
        )
    found = {}
    for name in names:
        stored = known.get(name)
        below = path if stored == BESIDE else f"{path}/{stored.name if stored and stored.name else name}".lstrip("/")
        found[name] = _tree(getattr(value, name), below, f"{name} of {kind.__name__}", arrays, stored)
    return found


def _words(words: Sequence[str], path: str, stored: Stored, arrays: _Arrays) -> Any:
    """Words that a field declares as stored in arrays."""
    text, offsets = join_strings(words)
    return {"words": [_add(arrays, f"{path}.text", text, stored), _add(arrays, f"{path}.offset", offsets, _BOUNDARIES)]}


def _entries(values: Sequence[Any], path: str, told: str, arrays: _Arrays) -> Any:
    """The entries of a list or tuple: parts of one class with equal arrays are combined, others are encoded one by
    one."""
    kinds = {type(each) for each in values}
    if len(kinds) == 1 and is_own(kind := kinds.pop()) and not issubclass(kind, Enum):
        row: list[_Arrays] = [{} for _ in values]
        fields = [_fields(each, path, own) for each, own in zip(values, row, strict=True)]
        if _alike(row):
            lengths = {name: _add_all(arrays, name, [own[name] for own in row]) for name in row[0]}
            columns = {name: [each[name] for each in fields] for name in fields[0]}
            return {"class": path_of_class(kind), "row": columns, "count": len(values), "lengths": lengths}
    return [_tree(each, f"{path}.{i}", told, arrays) for i, each in enumerate(values)]


def _alike(row: list[_Arrays]) -> bool:
    """Whether parts have the same arrays, with shapes that can be concatenated."""
    kinds = [_kinds(own) for own in row]
    some = all(held.values.ndim for own in row for held in own.values())
    return some and all(each == kinds[0] for each in kinds)


def _kinds(arrays: _Arrays) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and row shape of each array."""
    return {name: (held.values.dtype.str, held.values.shape[1:]) for name, held in arrays.items()}


def _add(arrays: _Arrays, path: str, values: np.ndarray, stored: Stored | None = None) -> str:
    """Add an array, and return its path."""
    if stored is None or len(stored.dims) != values.ndim:
        name = path.rpartition("/")[2]
        dims = tuple(f"{name}_{axis}" for axis in range(values.ndim))
        stored = Stored(dims, f"parameter {name}" if stored is None else stored.doc)
    assert path not in arrays, f"{path} is the name of two arrays"
    arrays[path] = _Held(values, stored)
    return path


def _add_all(arrays: _Arrays, path: str, row: list[_Held]) -> list[int] | None:
    """Add arrays as one: stacked along a new axis if their shapes are equal, otherwise concatenated, returning their
    lengths."""
    values, stored = [held.values for held in row], row[0].stored
    if len({each.shape for each in values}) == 1:
        arrays[path] = _Held(np.stack(values), stored._replace(dims=("entry", *stored.dims)))
        return None
    arrays[path] = _Held(np.concatenate(values), stored)
    return [len(each) for each in values]


def _word(key: Any, place: int) -> str:
    return key if isinstance(key, str) and key.isidentifier() else f"{place}"


# Decoding


def _value(tree: Any, arrays: Callable[[str], np.ndarray], kind: type = object) -> Any:
    """The value of a tree; `arrays` returns an array by path."""
    if isinstance(tree, list):
        return [_value(each, arrays) for each in tree]
    if not isinstance(tree, dict):
        return tree
    match tree:
        case {"number": text}:
            return float(text)
        case {"array": path}:
            return arrays(path)
        case {"csr": paths, "shape": shape}:
            return sparse.csr_array(tuple(arrays(path) for path in paths), shape=tuple(shape))
        case {"dtype": name}:
            return np.dtype(name).type
        case {"enum": path, "name": name}:
            return imported_enum(path)[name]
        case {"class": path, "fields": fields}:
            found = imported_part(path, kind)
            return made(found, {name: _value(each, arrays) for name, each in fields.items()})
        case {"class": path, "row": columns}:
            return _row(imported_part(path, kind), columns, tree, arrays)
        case {"words": [text, offsets]}:
            return part_strings(arrays(text), arrays(offsets))
        case {"tuple": entries}:
            return tuple(_value(entries, arrays, kind))
        case {"dict": pairs}:
            return {key: _value(each, arrays) for key, each in pairs}
    raise CheckpointError(f"a stored value has unknown keys {sorted(tree)}; it is damaged or not from dpdist.")


def _row(kind: Any, columns: dict[str, list[Any]], tree: dict[str, Any], arrays: Callable[[str], np.ndarray]) -> Any:
    """Parts that were combined."""
    joined = {name: arrays(name) for name in tree["lengths"]}
    ends = {name: np.cumsum([0, *lengths]) for name, lengths in tree["lengths"].items() if lengths is not None}

    def own(place: int) -> Callable[[str], np.ndarray]:
        def of(name: str) -> np.ndarray:
            if name not in ends:
                return np.array(joined[name][place])
            return joined[name][ends[name][place] : ends[name][place + 1]].copy()

        return of

    return [
        made(kind, {name: _value(column[place], own(place)) for name, column in columns.items()})
        for place in range(tree["count"])
    ]
