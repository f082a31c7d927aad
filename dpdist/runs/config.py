"""Configuration of a command: a TOML file, overridden by options, as a spec and the paths of its data."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdist.core.checks import Wanted, instance
from dpdist.core.errors import InputError
from dpdist.data import Source, chosen_source
from dpdist.data.files import located
from dpdist.execution.base import Backend
from dpdist.runs.methods import method_named
from dpdist.runs.preparing import Output, prepare
from dpdist.runs.run import Run
from dpdist.runs.specs import SPECS, Spec
from dpdist.storage.checkpoint import Asked

#: The check of a path of data.
_PLACE = instance("a path or URL, as text", str).or_none("none")
#: The check of the columns that are taken or dropped.
_NAMES = Wanted[Any](
    "a list of names, as in ['A', 'B']",
    lambda value: isinstance(value, list | tuple) and all(isinstance(name, str) for name in value),
).or_none("all")
_CHOICES = {"fit": ("columns", "drop"), "sva": ("columns", "drop"), "topics": ()}
#: Paths that each command takes beside the settings of its spec.
_PLACES = {"fit": ("data", "holdout"), "sva": ("data", "holdout"), "topics": ("data",)}


@dataclass(frozen=True, eq=False)
class Config:
    """The configuration of a command.

    Parameters
    ----------
    spec : the checked settings
    data, holdout : absolute paths or URLs, or None
    tables : the same configuration as plain values that :func:`parse_config` accepts, including the choice of columns
    """

    spec: Spec
    data: str | None
    holdout: str | None
    tables: Mapping[str, object]

    def source(self) -> Source:
        """The configured data, with the chosen columns."""
        assert self.data is not None, "the configuration has data"
        return chosen_source(self.data, self.tables)

    def prepare(self, source: Source, out: str | Path, overwrite: bool, backend: Backend, request: str = "") -> Run:
        """A run on `source`, ready to iterate and stored at `out`; `request` identifies its submission, if any."""
        spec = self.spec
        output = Output(out, self.tables, overwrite, Asked(spec.estimator, spec.parameters), request)
        method = method_named(spec.method, self.holdout, source.names, self.tables)
        return prepare(method, spec, source, spec.limits, backend, output)


def read_config(command: str, path: str | Path | None, options: Mapping[str, object]) -> Config:
    """The configuration in a TOML file, overridden by options.

    Parameters
    ----------
    command : fit, sva or topics
    options : plain values of the given settings; a table is a nested dict

    Raises
    ------
    InputError
        If the file cannot be read, or an entry is wrong or has no effect beside the others; the message names the
        entry, what is expected, and its value.
    """
    try:
        given = {} if path is None else tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"the configuration {path} cannot be read ({error.strerror}); check the path.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the configuration {path} is not UTF-8 ({error.reason}); save it as UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the configuration {path} is not valid TOML ({error}); correct the file.") from error
    config = parse_config(command, _merged(given, options))
    # An option may leave a setting of the file without effect, but not a setting given beside it.
    asked = [name for name in options if name in config.spec.parameters] or given
    for name, needed in config.spec.idle.items():
        if name in asked:
            raise InputError(f"{name} has an effect only with {needed}; leave it out, or set that as well.")
    return config


def parse_config(command: str, tables: Mapping[str, object]) -> Config:
    """The configuration in plain values; raises :class:`InputError` as :func:`read_config` does."""
    places = {}
    for name in _PLACES[command]:
        place = _PLACE.take(name, tables.get(name))
        places[name] = None if place is None else located(place)
    for name in _CHOICES[command]:
        _NAMES.take(name, tables.get(name))
    spec = SPECS[command].from_table(tables, (*places, *_CHOICES[command]))
    told = {**tables, **places}
    if "initial" in tables:  # an absolute path, which is valid in any working directory
        told["initial"] = spec.initial  # type: ignore[attr-defined]
    return Config(spec, places["data"], places.get("holdout"), told)


def _merged(given: Mapping[str, object], options: Mapping[str, object]) -> dict[str, object]:
    merged = dict(given)
    for name, value in options.items():
        merged[name] = {**_as_table(merged.get(name)), **value} if isinstance(value, dict) else value
    return merged


def _as_table(value: object) -> dict[str, object]:
    """A setting as a table, also if it is given by name alone."""
    return {"name": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
