"""The base of specs: frozen dataclasses of settings, which can be read from a table of a TOML file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, ClassVar, Self

from dpdist.core.checks import COUNT, POSITIVE, one_of, shown, whole
from dpdist.core.errors import InputError
from dpdist.core.settings import Setting, check_settings, part, setting, settings_of
from dpdist.inference.transform import TransformPlan
from dpdist.models.mixture import DTYPES
from dpdist.runs.limits import Limits

#: The text for None in TOML files and on the command line.
NONE = "none"


@dataclass(frozen=True, eq=False, kw_only=True)
class Spec(ABC):
    """All settings of a method, without the data.

    Raises
    ------
    InputError
        If a setting is invalid.
    """

    #: Import path of the estimator with these parameters.
    estimator: ClassVar[str]

    @property
    @abstractmethod
    def method(self) -> str:
        """Name of the method, in :data:`dpdist.runs.methods.METHODS`."""

    @property
    def limits(self) -> Limits:
        """Limits of a run; without limits unless the spec has settings for them."""
        return Limits(None)

    random_state: int = setting(
        0, whole(0), "Seed of all random draws; the same seed gives the same results to the bit."
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def idle(self) -> dict[str, str]:
        """Settings without effect beside the others, by name, and what they would need."""
        return {}

    @property
    def parameters(self) -> dict[str, object]:
        """All settings by name, as given; None for a part that equals the default part."""
        held = {name: (getattr(self, name), each.default_part) for name, each in settings_of(type(self)).items()}
        return {name: None if value is default_part else value for name, (value, default_part) in held.items()}

    @classmethod
    def from_table(cls, table: Mapping[str, object], others: Iterable[str] = ()) -> Self:
        """The spec of a table of plain values.

        Parameters
        ----------
        table : of a TOML file; a part is a nested table, or its name
        others : names that are ignored

        Raises
        ------
        InputError
            If a setting is invalid or unknown; for an unknown one, the nearest name is suggested.
        """
        known = settings_of(cls)
        for name in table:
            if name not in known and name not in others:
                raise InputError(f"there is no setting {name}; {_nearest(name, [*others, *known])}")
        return cls(**{name: _value(name, table[name], known[name]) for name in table if name in known})


@dataclass(frozen=True, eq=False, kw_only=True)
class RowSpec(Spec):
    """Settings of all methods for rows."""

    row_transform: TransformPlan = part(
        {"transform": TransformPlan},
        TransformPlan,
        "a dpdist.TransformPlan",
        "Centring, scaling or PCA of the rows, fitted in one pass and stored with the model. The family's "
        "hyperparameters refer to transformed rows; all results are in raw columns.",
        flat=True,
    )
    compute_dtype: str = setting(
        "float64", one_of(*DTYPES), "Type of matrix products, float64 or float32; sums are always float64."
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class LapSpec(Spec):
    """Limits of methods that make several passes over the data."""

    max_laps: int | None = setting(100, COUNT.or_none("no bound"), "Largest number of passes over the data.")
    max_time: float | None = setting(None, POSITIVE.or_none("no bound"), "Longest time of the run, in seconds.")

    @property
    def limits(self) -> Limits:
        return Limits(self.max_laps, self.max_time)


def _value(place: str, given: object, about: Setting) -> Any:
    """The value of a setting, from a plain value."""
    if given == NONE:
        return None
    if about.several:
        if not isinstance(given, list) or not all(isinstance(each, dict | str) for each in given):
            raise InputError(f"setting {place} should be a list of tables, as in [[{place}]]; got {shown(given)}.")
        return [_part(place, {"name": each} if isinstance(each, str) else each, about.kinds) for each in given]
    if isinstance(given, dict) and about.kinds:
        return _part(place, given, about.kinds)
    if isinstance(given, str) and about.default is None and len(about.kinds) > 1:
        return _part(place, {"name": given}, about.kinds)
    if about.kinds and about.default is None:
        raise InputError(f"setting {place} should be a table, as in [{place}]; got {shown(given)}.")
    return given


def _part(place: str, table: Mapping[str, object], kinds: Mapping[str, Any]) -> object:
    """The part of a table; its entry `name` selects the kind, by default the first."""
    values = dict(table)
    name = values.pop("name", next(iter(kinds))) if len(kinds) > 1 else next(iter(kinds))
    with _at(place):
        name = one_of(*kinds).take("name", name)
    kind = kinds[name]
    for key in values:
        if key not in _fields_of(kind):
            raise InputError(_unknown(place, key, name, kinds))
    values = {key: None if value == NONE else value for key, value in values.items()}
    with _at(place):
        return kind(**values) if isinstance(kind, type) else replace(kind, **values)


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Add the place of a setting to the message of an error."""
    try:
        yield
    except InputError as error:
        raise InputError(f"setting {place}: {error}") from error


def _fields_of(kind: Any) -> list[str]:
    return [each.name for each in fields(kind) if each.init]


def _unknown(place: str, key: str, name: str, kinds: Mapping[str, Any]) -> str:
    """The message about an entry of a table that is not a field of the part."""
    having = [other for other, kind in kinds.items() if key in _fields_of(kind)]
    if having:
        return (
            f"there is no setting {place}.{key} if {place} is {name!r}; leave it out, or choose "
            f"{' or '.join(map(repr, having))}, as in {place} = {{name = {having[0]!r}, ...}}."
        )
    known = [*(["name"] if len(kinds) > 1 else []), *_fields_of(kinds[name])]
    return f"there is no setting {place}.{key}; {_nearest(key, known)}"


def _nearest(name: str, known: Iterable[str]) -> str:
    """A suggestion for an unknown name."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"known settings: {', '.join(names)}."
