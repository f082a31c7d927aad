"""What a run is asked for, as a TOML file or command-line options: checked with sentences, kept with the run."""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from dpdist.core.checks import instance, one_of, shown
from dpdist.core.errors import InputError
from dpdist.data import Source, as_source
from dpdist.execution.base import Backend
from dpdist.inference.moves.base import AnyMove
from dpdist.inference.moves.registry import MOVES
from dpdist.inference.moves.sampling import Sampling
from dpdist.inference.moves.split import Split
from dpdist.inference.schedules import Batch, Memoized, Schedule, Stochastic
from dpdist.inference.sva.base import OpeningRule
from dpdist.inference.sva.prune_merge import PruneMerge, merge_test
from dpdist.inference.sva.sequence import Rounds
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.problem import OnlinePlan, TopicPlan
from dpdist.inference.transform import TransformPlan
from dpdist.models.allocations import Allocation, DirichletProcess, LearnedDirichletProcess
from dpdist.models.families import FAMILIES, Family
from dpdist.models.likelihoods import LIKELIHOODS, Likelihood
from dpdist.models.mixture import Precision, dtype_of
from dpdist.runs.fitting import MemoizedMixture, Recipe
from dpdist.runs.limits import Limits
from dpdist.runs.online_topic_fitting import topics_by
from dpdist.runs.passing import PassFit, PassRecipe
from dpdist.runs.preparing import Keeping, prepare, prepare_pass
from dpdist.runs.run import Run
from dpdist.runs.topic_recipe import TopicRecipe
from dpdist.storage.checkpoint import Asked

#: Settings that no parameter of an estimator has the name of.
_RENAMED = {"data", "holdout", "seed", "transform", "online_moves"}

#: Kinds of settings, named for who reads. Pydantic takes any value: what a setting has to be is said once, where it is
#: used, by the dataclasses that parameters in Python come to as well.
Whole: TypeAlias = Any
Real: TypeAlias = Any
Flag: TypeAlias = Any
Name: TypeAlias = Any
Names: TypeAlias = Any
Table: TypeAlias = Any
#: Where data are.
_PLACE = instance("a path or URL, as text", str).or_none("none")


class _Strict(BaseModel, ABC):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @abstractmethod
    def build(self) -> Any:
        """What the settings come to; raises :class:`InputError` if one is not what it should be."""

    @model_validator(mode="after")
    def _comes_to_something(self) -> Self:
        self.build()
        return self


class FamilyConfig(_Strict):
    """The likelihood and its hyperparameters; those left out are derived from the data."""

    name: Name = "gaussian"
    hyperparameters: Table = {}

    def build(self) -> Family:
        """The family."""
        family: Family = _built(FAMILIES, self.name, self.hyperparameters)
        return family


class PassFamilyConfig(_Strict):
    """The likelihood of a sequential pass, conjugate or not, and its hyperparameters."""

    name: Name = "gaussian"
    hyperparameters: Table = {}

    def build(self) -> Family | Likelihood:
        """The family or likelihood."""
        return _built({**FAMILIES, **LIKELIHOODS}, self.name, self.hyperparameters)


def _built(kinds: Mapping[str, Any], name: str, hyperparameters: dict[str, Any]) -> Any:
    kind = kinds[one_of(*kinds).take("name", name)]
    instance("a table, as in { variance = 2.0 }", dict).take("hyperparameters", hyperparameters)
    known = set(kind.__dataclass_fields__)
    unknown = sorted(set(hyperparameters) - known)
    if unknown:
        raise InputError(
            f"family {name} has no hyperparameter {', '.join(unknown)}; it has {', '.join(sorted(known))}."
        )
    return kind(**hyperparameters)


#: What each schedule heeds.
_HEEDED = {
    "memoized": {"name", "batches", "lookahead", "keep_start"},
    "stochastic": {"name", "batches", "lookahead", "delay", "forgetting"},
    "batch": {"name"},
}


def _check_heeded(settings: ScheduleConfig | TopicScheduleConfig) -> None:
    """Raise :class:`InputError` if a schedule is none, or is told what it would not heed."""
    one_of(*_HEEDED).take("name", settings.name)
    fields = type(settings).model_fields
    told = [name for name, field in fields.items() if getattr(settings, name) != field.default]
    idle = [name for name in told if name not in _HEEDED[settings.name]]
    if idle:
        heeding = [name for name, heeded in _HEEDED.items() if {*idle} <= heeded]
        other = f"choose the schedule {' or '.join(heeding)}" if heeding else "choose another schedule"
        raise InputError(f"the schedule {settings.name} has no {' and no '.join(idle)}; leave it out, or {other}.")


class ScheduleConfig(_Strict):
    """How summaries become the total."""

    name: Name = "memoized"
    batches: Whole = 40
    lookahead: Whole = 0
    keep_start: Flag = True
    delay: Real = 1.0
    forgetting: Real = 0.6

    def build(self) -> Schedule:
        """The schedule."""
        _check_heeded(self)
        if self.name == "batch":
            return Batch()
        if self.name == "stochastic":
            return Stochastic(self.batches, self.lookahead, self.delay, self.forgetting)
        return Memoized(self.batches, self.lookahead, self.keep_start)


class MovesConfig(_Strict):
    """Which moves to make, and how hard to try."""

    split: Flag = True
    merge: Flag = True
    delete: Flag = True
    children: Whole = Split.children
    sample: Whole = Sampling.rows
    refine: Whole = Split.refine
    cooldown: Whole = Split.cooldown
    tries: Whole = Split.tries

    def build(self) -> list[AnyMove]:
        """The moves."""
        told = {"split": Split(self.children, refine=self.refine, cooldown=self.cooldown, tries=self.tries)}
        return [told.get(move.kind, move) for move in MOVES if getattr(self, move.kind)]

    def sampling(self) -> Sampling:
        """The rows that moves may draw."""
        return Sampling(self.sample)


class TransformConfig(_Strict):
    """What is done to rows first, fitted in one pass and kept with the model."""

    center: Flag = False
    scale: Flag = False
    pca: Whole | None = None

    def build(self) -> TransformPlan:
        """The plan of the transform."""
        return TransformPlan(self.center, self.scale, self.pca)


def _same_named(settings: _Strict) -> dict[str, Any]:
    """The settings that parameters of an estimator have the names of."""
    return {name: getattr(settings, name) for name in type(settings).model_fields if name not in _RENAMED}


class PassConfig(_Strict):
    """Everything that ``dpdist sva`` can be told."""

    data: Name | None = None
    holdout: Name | None = None
    seed: Whole = 0
    family: PassFamilyConfig = PassFamilyConfig()
    concentration: Real = 1.0
    threshold: Real = 0.001
    merge: Name = "auto"
    merge_threshold: Real = 0.5
    prune: Real = 1e-5
    max_components: Whole | None = None
    parallel: Flag = True
    round_partitions: Whole = 64
    shuffle: Flag = True
    transform: TransformConfig = TransformConfig()
    compute_dtype: Name = "float64"
    floor: Real = 1e-6
    forgetting: Real = 0.8
    own_clock: Flag = True

    def build(self) -> PassRecipe:
        """What these settings ask for."""
        _PLACE.take("data", self.data)
        _PLACE.take("holdout", self.holdout)
        return self.recipe()

    def recipe(self) -> PassRecipe:
        """What these settings ask for."""
        family = self.family.build()
        asked = None if self.merge == "none" else self.merge
        merging = merge_test(asked, self.merge_threshold, isinstance(family, Family))
        return PassRecipe(
            family=family,
            rule=OpeningRule(self.concentration, self.threshold, self.floor, self.max_components),
            tidy=PruneMerge(self.prune, merging),
            rounds=Rounds(self.parallel, self.round_partitions, self.shuffle),
            transform=self.transform.build(),
            dtype=dtype_of(self.compute_dtype),
            seed=self.seed,
            forgetting=self.forgetting,
            own_clock=self.own_clock,
        )

    def prepare(self, source: Source, out: str | Path, overwrite: bool, backend: Backend) -> PassFit:
        """The pass over `source`, ready to run and kept at `out`."""
        held = None if self.holdout is None else as_source(self.holdout)
        keeping = Keeping(out, self.model_dump(), overwrite, self.asked())
        return prepare_pass(self.recipe(), source, held, backend, keeping)

    def asked(self) -> Asked:
        """These settings as parameters of the estimator."""
        made = {
            "family": self.family.build(),
            "merge": None if self.merge == "none" else self.merge,
            "row_transform": self.transform.build(),
            "random_state": self.seed,
        }
        return Asked("dpdist:SVA", {**_same_named(self), **made})


class FitConfig(_Strict):
    """Everything that ``dpdist fit`` can be told."""

    data: Name | None = None
    seed: Whole = 0
    family: FamilyConfig = FamilyConfig()
    concentration: Real | Table = 10.0
    initial: Name = "one"
    initial_components: Whole = 20
    initial_rows: Whole | None = 20_000
    max_components: Whole | None = None
    schedule: ScheduleConfig = ScheduleConfig()
    moves: MovesConfig = MovesConfig()
    transform: TransformConfig = TransformConfig()
    compute_dtype: Name = "float64"
    floor: Real = 1e-8
    tolerance: Real = 1e-5
    max_laps: Whole | None = 100
    max_time: Real | None = None

    def build(self) -> tuple[Recipe, Limits]:
        """What these settings ask for, and when to stop."""
        _PLACE.take("data", self.data)
        return self.recipe(), Limits(self.max_laps, self.max_time)

    def recipe(self) -> Recipe:
        """What these settings ask for."""
        return Recipe(
            family=self.family.build(),
            allocation=self._concentration(),
            schedule=self.schedule.build(),
            moves=self.moves.build(),
            sampling=self.moves.sampling(),
            transform=self.transform.build(),
            precision=Precision(dtype_of(self.compute_dtype), self.floor),
            seed=self.seed,
            tolerance=self.tolerance,
            initial=self.initial,
            initial_components=self.initial_components,
            initial_rows=self.initial_rows,
        )

    def prepare(self, source: Source, out: str | Path, overwrite: bool, backend: Backend) -> Run[Any]:
        """The fit to `source`, ready to run and kept at `out`."""
        recipe, limits = self.build()
        keeping = Keeping(out, self.model_dump(), overwrite, self.asked())
        return prepare(MemoizedMixture(), recipe, source, limits, backend, keeping)

    def asked(self) -> Asked:
        """These settings as parameters of the estimator."""
        made = {
            "family": self.family.build(),
            "concentration": self._concentration() if isinstance(self.concentration, dict) else self.concentration,
            "schedule": self.schedule.build(),
            "moves": self.moves.build(),
            "sampling": self.moves.sampling(),
            "row_transform": self.transform.build(),
            "random_state": self.seed,
        }
        return Asked("dpdist:DPMixture", {**_same_named(self), **made})

    def _concentration(self) -> Allocation:
        asked = self.concentration
        if not isinstance(asked, dict):
            return DirichletProcess(asked, self.max_components)
        if set(asked) != {"shape", "rate"}:
            raise InputError(
                "concentration should be a number or, to be learned, the table of a Gamma prior, "
                f"{{ shape = 1.0, rate = 0.1 }}; got {shown(asked)}."
            )
        return LearnedDirichletProcess(asked["shape"], asked["rate"], max_components=self.max_components)


class TopicScheduleConfig(_Strict):
    """How summaries of documents become the total; stochastic is online inference, by default at the paper's rates."""

    name: Name = "memoized"
    batches: Whole = 20
    lookahead: Whole = 0
    delay: Real = 1.0
    forgetting: Real = 0.5

    def build(self) -> Schedule:
        """The schedule."""
        _check_heeded(self)
        if self.name == "batch":
            return Batch()
        if self.name == "stochastic":
            return Stochastic(self.batches, self.lookahead, self.delay, self.forgetting)
        return Memoized(self.batches, self.lookahead)


class TopicMovesConfig(_Strict):
    """Which moves of topics to make, and how hard to try."""

    birth: Flag = TopicPlan.birth
    merge: Flag = TopicPlan.merge
    delete: Flag = TopicPlan.delete
    births: Whole = TopicPlan.births
    max_births: Whole = TopicPlan.max_births
    sample: Whole = TopicPlan.sample
    tries: Whole = TopicPlan.tries
    refine: Whole = TopicPlan.refine
    cooldown: Whole = TopicPlan.cooldown
    partners: Whole = TopicPlan.partners

    def build(self) -> TopicPlan:
        """The plan of moves."""
        return TopicPlan(**self.model_dump())


class OnlineMovesConfig(_Strict):
    """Which moves of topics to make after each mini-batch, and how hard to try."""

    split: Flag = OnlinePlan.split
    merge: Flag = OnlinePlan.merge
    splits: Whole = OnlinePlan.splits
    merges: Whole = OnlinePlan.merges
    alike: Whole = OnlinePlan.alike
    lasting: Flag = OnlinePlan.lasting
    iterations: Whole = OnlinePlan.iterations
    smoothing: Real = OnlinePlan.smoothing
    max_topics: Whole = OnlinePlan.max_topics
    restricted: Name = OnlinePlan.restricted

    def build(self) -> OnlinePlan:
        """The plan of moves."""
        return OnlinePlan(**self.model_dump())


class EffortConfig(_Strict):
    """How far documents are iterated."""

    tolerance: Real = Effort.tolerance
    most: Whole = Effort.most

    def build(self) -> Effort:
        """The effort."""
        return Effort(self.tolerance, self.most)


class TopicsConfig(_Strict):
    """Everything that ``dpdist topics`` can be told; `online_moves` are those of a point estimate of the weights."""

    data: Name | None = None
    seed: Whole = 0
    concentration: Real = 10.0
    document_concentration: Real = 1.0
    pseudocount: Real = 0.1
    learn: Names = ()
    initial_topics: Whole = 50
    weights: Name = "posterior"
    schedule: TopicScheduleConfig = TopicScheduleConfig()
    moves: TopicMovesConfig = TopicMovesConfig()
    online_moves: OnlineMovesConfig = OnlineMovesConfig()
    effort: EffortConfig = EffortConfig()
    tolerance: Real = 1e-5
    max_laps: Whole | None = 100
    max_time: Real | None = None

    def build(self) -> tuple[TopicRecipe, Limits]:
        """What these settings ask for, and when to stop."""
        _PLACE.take("data", self.data)
        return self.recipe(), Limits(self.max_laps, self.max_time)

    def recipe(self) -> TopicRecipe:
        """What these settings ask for, limits apart."""
        return TopicRecipe(
            concentration=self.concentration,
            document_concentration=self.document_concentration,
            pseudocount=self.pseudocount,
            learn=self.learn,
            initial_topics=self.initial_topics,
            weights=self.weights,
            schedule=self.schedule.build(),
            moves=self._moves(),
            effort=self.effort.build(),
            tolerance=self.tolerance,
            seed=self.seed,
        )

    def prepare(self, source: Source, out: str | Path, overwrite: bool, backend: Backend) -> Run[Any]:
        """The fit to `source`, ready to run and kept at `out`."""
        recipe, limits = self.build()
        keeping = Keeping(out, self.model_dump(), overwrite, self.asked())
        return prepare(topics_by(recipe.weights), recipe, source, limits, backend, keeping)

    def asked(self) -> Asked:
        """These settings as parameters of the estimator."""
        made = {
            "schedule": self.schedule.build(),
            "moves": self._moves(),
            "effort": self.effort.build(),
            "random_state": self.seed,
        }
        return Asked("dpdist:HDPTopicModel", {**_same_named(self), **made})

    def _moves(self) -> TopicPlan | OnlinePlan | None:
        if self.weights == "posterior":
            return self.moves.build()
        return None if self.schedule.name == "batch" else self.online_moves.build()


#: What each command that makes a model can be told.
CONFIGS: dict[str, type[FitConfig | PassConfig | TopicsConfig]] = {
    "fit": FitConfig,
    "sva": PassConfig,
    "topics": TopicsConfig,
}

Config = TypeVar("Config", bound=_Strict)


def read_config(kind: type[Config], path: str | Path | None, options: dict[str, Any]) -> Config:
    """The configuration in a TOML file, overridden by `options` (nested dicts; None means not given).

    Parameters
    ----------
    kind : FitConfig, PassConfig or TopicsConfig

    Raises
    ------
    InputError
        If the file cannot be read or an entry is wrong: where, what was expected, what came.
    """
    try:
        given = {} if path is None else tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the configuration {path} cannot be read ({error.strerror}); check the path.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the configuration {path} is not UTF-8 ({error.reason}); save it as UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the configuration {path} is not TOML ({error}).") from error
    return parse_config(kind, _merged(given, options))


def parse_config(kind: type[Config], values: dict[str, Any]) -> Config:
    """The configuration in plain values; raises :class:`InputError` as :func:`read_config` does."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise InputError(_sentence(kind, error)) from error


def _sentence(kind: type[BaseModel], error: ValidationError) -> str:
    """The first fault, at the place where the person who wrote it finds it."""
    first = error.errors(include_url=False)[0]
    place, cause = ".".join(map(str, first["loc"])), first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return f"setting {place}: {cause}" if place else str(cause)
    if first["type"] == "extra_forbidden":
        return f"there is no setting {place}; known are {', '.join(_fields_at(kind, first['loc'][:-1]))}."
    return f"setting {place} should be a table, as in [{place}]; got {shown(first['input'])}."


def _fields_at(kind: Any, tables: Sequence[Any]) -> list[str]:
    """Names of the settings in a table of the configuration."""
    for name in tables:
        kind = kind.model_fields[name].annotation
    return list(kind.model_fields)


def _merged(given: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    merged = dict(given)
    for name, value in options.items():
        if isinstance(value, dict):
            below = merged.get(name)
            inner = _merged(below if isinstance(below, dict) else {}, value)
            if inner:
                merged[name] = inner
        elif value is not None:
            merged[name] = value
    return merged
