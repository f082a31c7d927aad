"""Command-line options for the settings of a spec, with the same names, defaults and descriptions."""

from __future__ import annotations

import datetime
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Annotated, Any, NamedTuple

import typer

from dpdist.core.settings import Setting, settings_of
from dpdist.runs.specs import SPECS

#: A name with the comma after it.
_NAME = re.compile(r'\s*(?:("(?:[^"]|"")*")\s*|([^,]*)),')
#: The given settings as tables, which command functions take.
Options = dict[str, Any]


def _plain(value: object) -> object:
    """The value of an option; several names are separated by commas."""
    return split(value) if isinstance(value, list) else value


def split(names: list[str] | None) -> list[str] | None:
    """Names separated by commas, or given in several options; a single empty text stands for no names."""
    if names == [""]:
        return []
    return [name for each in names for name in _named(each)] if names else None


def _named(text: str) -> Iterator[str]:
    """Names separated by commas; a name in double quotes is taken literally."""
    for quoted, plain in _NAME.findall(f"{text},"):
        yield quoted[1:-1].replace('""', '"') if quoted else plain.strip()


class _Option(NamedTuple):
    """An option: its place in the tables, default, help, and the meaning of the default None."""

    path: tuple[str, ...]
    default: Any
    doc: str
    unset: str = ""

    @property
    def parameter(self) -> inspect.Parameter:
        """The option as a function parameter for Typer."""
        name = self.path[0] if self.path[1:] in ((), ("name",)) else self.path[-1]
        flag, help = f"--{name.replace('_', '-')}", f"{self.doc} Default: {_shown(self.default, self.unset)}."
        kind: Any = str
        metavar: str | None = "VALUE"
        if isinstance(self.default, bool):
            kind, flag, metavar = bool, f"{flag}/--no-{flag[2:]}", None
        elif isinstance(self.default, tuple):
            kind, help = list[str], f"{help} Separate names by commas; '' for none."
        annotation = Annotated[kind | None, typer.Option(flag, help=help, metavar=metavar, rich_help_panel="Settings")]
        keyword = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter("__".join(self.path), keyword, default=None, annotation=annotation)


def with_settings(command: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that adds an option for each setting of a command (fit, sva or topics); the given ones are passed as
    tables in its first argument."""
    options = {option.parameter.name: option for option in _options_of(SPECS[command])}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()

        @wraps(function)
        def run(**given: Any) -> None:
            told = {option.path: _plain(given.pop(name)) for name, option in options.items()}
            function(_tables({path: value for path, value in told.items() if value is not None}), **given)

        parameters = [*own, *(option.parameter for option in options.values())]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        vars(run)["__signature__"] = inspect.Signature(
            [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        )
        return run

    return decorate


def _options_of(spec: type) -> Iterator[_Option]:
    for name, each in settings_of(spec).items():
        if each.several:
            continue
        if len(each.kinds) > 1 and each.default is None:
            default = next((known for known in each.kinds if each.default_part is not None), None)
            yield _Option((name, "name"), default, f"{each.doc} One of {', '.join(each.kinds)}.", each.wanted.unset)
        elif not each.kinds or each.default is not None:
            yield _Option((name,), each.default, each.doc, each.wanted.unset)
        if each.flat:
            yield from _options_of_parts(name, each)


def _options_of_parts(name: str, each: Setting) -> Iterator[_Option]:
    """Options for the fields of a setting's parts; a shared field is described by the first part that has it."""
    seen: set[str] = set()
    for kind in each.kinds.values():
        instance = kind() if isinstance(kind, type) else kind
        for inner, about in settings_of(type(instance)).items():
            if inner not in seen:
                seen.add(inner)
                yield _Option((name, inner), getattr(instance, inner), about.doc, about.wanted.unset)


def _tables(given: dict[tuple[str, ...], Any]) -> Options:
    tables: Options = {}
    for (name, *inner), value in given.items():
        plain = [_read(each) for each in value] if isinstance(value, list) else _read(value)
        if inner:
            tables.setdefault(name, {})[inner[0]] = plain
        else:
            tables[name] = plain
    return tables


def _read(value: Any) -> Any:
    """A value as TOML would read it; text that is not a TOML value stays text, and so do dates, which no setting
    takes."""
    if not isinstance(value, str):
        return value
    try:
        read = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value
    return value if isinstance(read, datetime.date | datetime.time) else read


def _shown(default: Any, unset: str) -> str:
    if isinstance(default, tuple):
        return ", ".join(default) or "none"
    if default is None:
        return unset or "none"
    return str(default).lower() if isinstance(default, bool) else str(default)
