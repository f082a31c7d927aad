"""Settings: dataclass fields declared with their default, their requirements and a sentence of documentation.

Estimators, TOML files and the command line use the same dataclasses, so each setting has one name, one default and one
sentence everywhere.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypeVar

from dpdist.core.checks import Wanted, instance

#: Parts by name: classes, or objects that hold the defaults.
Kinds: TypeAlias = Mapping[str, Any]
Value = TypeVar("Value")
_Kind = TypeVar("_Kind", bound=type)
_KEY = "setting"


@dataclass(frozen=True)
class Setting:
    """The declaration of a field.

    Parameters
    ----------
    default : default value
    wanted : requirements
    doc : meaning, in a sentence
    kinds : parts that a table of a TOML file can create
    default_part : the part that None stands for, or None
    flat : whether the fields of its parts are options of the command line
    several : whether it holds several parts
    """

    default: object
    wanted: Wanted[object]
    doc: str
    kinds: Kinds
    default_part: object = None
    flat: bool = False
    several: bool = False

    def take(self, name: str, value: object) -> object:
        """The plain value, or the part if its name is given; raises :class:`InputError` unless it is valid."""
        if self.default_part is not None and isinstance(value, str) and value in self.kinds:
            kind = self.kinds[value]
            return kind() if isinstance(kind, type) else kind
        found = self.wanted.take(name, value)
        return self.default_part if found is None else found


def setting(default: Value, wanted: Wanted[object], doc: str, kinds: Kinds | None = None) -> Value:
    """A field of a dataclass; arguments as for :class:`Setting`."""
    return field(default=default, metadata={_KEY: Setting(default, wanted, doc, kinds or {})})


def part(kinds: Kinds, base: type | tuple[type, ...], told: str, doc: str, *, flat: bool = False) -> Any:
    """A field of a dataclass that holds a part, by default the first of `kinds`.

    Parameters
    ----------
    kinds, doc, flat : as for :class:`Setting`
    base, told : base class of the parts, and what messages call them
    """
    first = next(iter(kinds.values()))
    default_part = first() if isinstance(first, type) else first
    bases = base if isinstance(base, tuple) else (base,)
    names = f", its name ({', '.join(kinds)})" if len(kinds) > 1 else ""
    wanted = instance(told + names, *bases).or_none(f"{type(default_part).__name__}()")
    return field(default=None, metadata={_KEY: Setting(None, wanted, doc, kinds, default_part, flat)})


def parts(default: Sequence[object], kinds: Kinds, base: type, told: str, doc: str) -> Any:
    """A field of a dataclass that holds several parts; arguments as for :func:`part`; None stands for `default`."""

    def holds(value: object) -> bool:
        return isinstance(value, list | tuple) and all(isinstance(each, base) for each in value)

    wanted: Wanted[object] = Wanted(told, holds, tuple).or_none("the default")
    return field(default=None, metadata={_KEY: Setting(None, wanted, doc, kinds, tuple(default), several=True)})


def settings_of(kind: type) -> dict[str, Setting]:
    """The declarations of the fields of a dataclass, by name; fields without a declaration are left out."""
    return {each.name: each.metadata[_KEY] for each in fields(kind) if _KEY in each.metadata}


def check_settings(owner: object, of: str = "") -> None:
    """Convert fields of a new, frozen dataclass to plain values, or raise :class:`InputError`; `of` follows a field's
    name in messages."""
    for name, each in settings_of(type(owner)).items():
        object.__setattr__(owner, name, each.take(name + of, getattr(owner, name)))


def documented(owner: _Kind, *kinds: type) -> _Kind:
    """The class, with its fields, or those of `kinds`, added to its docstring as parameters, before the attributes."""
    text, mark, rest = inspect.cleandoc(owner.__doc__ or "").partition("\n\nAttributes\n")
    every = {name: each for kind in kinds or (owner,) for name, each in settings_of(kind).items()}
    told = "\n".join(_told(name, each) for name, each in every.items())
    owner.__doc__ = f"{text}\n\nParameters\n----------\n{told}{mark}{rest}"
    return owner


def documented_by(*kinds: type) -> Callable[[_Kind], _Kind]:
    """A decorator that adds the fields of `kinds` to the docstring of a class as parameters."""
    return lambda owner: documented(owner, *kinds)


def _told(name: str, each: Setting) -> str:
    """A parameter in numpydoc format."""
    body = textwrap.fill(each.doc, 116, initial_indent="    ", subsequent_indent="    ")
    return f"{name} : {each.wanted.told}; default {each.default!r}\n{body}"
