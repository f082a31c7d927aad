"""Options of the command line that are the settings of a spec: their names, defaults and sentences are its own."""

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

#: A name and the comma after it.
_NAME = re.compile(r'\s*(?:("(?:[^"]|"")*")\s*|([^,]*)),')
#: What a command function takes: the settings that were given, as tables.
Options = dict[str, Any]


def _plain(value: object) -> object:
    """What an option is given; several names may be separated by commas."""
    return split(value) if isinstance(value, list) else value


def split(names: list[str] | None) -> list[str] | None:
    """Names that are separated by commas, or given one after the other; an empty text alone is none of them."""
    if names == [""]:
        return []
    return [name for each in names for name in _named(each)] if names else None


def _named(text: str) -> Iterator[str]:
    """Names between commas; one in double quotes is as it stands there."""
    for quoted, plain in _NAME.findall(f"{text},"):
        yield quoted[1:-1].replace('""', '"') if quoted else plain.strip()


class _Option(NamedTuple):
    """An option: where it stands in the tables, its default, its help, and what the default None means."""

    path: tuple[str, ...]
    default: Any
    doc: str
    unset: str = ""

    @property
    def parameter(self) -> inspect.Parameter:
        """The option as a parameter of a function that Typer reads."""
        name = self.path[0] if self.path[1:] in ((), ("name",)) else self.path[-1]
        flag, help = f"--{name.replace('_', '-')}", f"{self.doc} Default: {_shown(self.default, self.unset)}."
        kind: Any = str
        metavar: str | None = "VALUE"
        if isinstance(self.default, bool):
            kind, flag, metavar = bool, f"{flag}/--no-{flag[2:]}", None
        elif isinstance(self.default, tuple):
            kind, help = list[str], f"{help} Separated by commas; '' for none."
        annotation = Annotated[kind | None, typer.Option(flag, help=help, metavar=metavar, rich_help_panel="Settings")]
        keyword = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter("__".join(self.path), keyword, default=None, annotation=annotation)


def with_settings(command: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each setting; its first argument receives, as tables, those that are given.

    Parameters
    ----------
    command : fit, sva or topics
    """
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
            yield _Option((name, "name"), default, f"{each.doc} One of {', '.join(each.kinds)}.")
        elif not each.kinds or each.default is not None:
            yield _Option((name,), each.default, each.doc, each.wanted.unset)
        if each.flat:
            yield from _options_of_parts(name, each)


def _options_of_parts(name: str, each: Setting) -> Iterator[_Option]:
    """The fields of a setting's parts, each as the first part says that has it."""
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
    """A value as a TOML file would have it; text that is none is text, and so are dates, of which no setting is one."""
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
