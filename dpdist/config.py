"""What a run is asked for, as a TOML file or command-line options: checked with sentences, kept with the run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpdist.allocations import Allocation, DirichletProcess, LearnedDirichletProcess
from dpdist.backends.base import Backend
from dpdist.errors import InputError
from dpdist.families import FAMILIES, Family
from dpdist.fitting import Fit, Limits, Recipe
from dpdist.likelihoods import LIKELIHOODS, Likelihood
from dpdist.model import DTYPES, Precision
from dpdist.moves.plan import MovePlan
from dpdist.passing import PassFit, PassRecipe
from dpdist.preparation import TransformPlan
from dpdist.preparing import Keeping, prepare_fit, prepare_pass, prepare_topics
from dpdist.schedules import Batch, Memoized, Schedule, Stochastic
from dpdist.sequence import Rounds
from dpdist.sequential.base import Rule
from dpdist.sequential.tidy import Tidy, merge_test
from dpdist.sources import Source, as_source
from dpdist.stored_parts import Asked
from dpdist.topic_recipe import TopicRecipe
from dpdist.topics.documents import Effort
from dpdist.topics.hyperparameters import LEARNABLE
from dpdist.topics.online import OnlinePlan
from dpdist.topics.problem import TopicPlan

#: Settings that no parameter of an estimator has the name of.
_RENAMED = {"data", "holdout", "seed", "transform", "online_moves"}

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FamilyConfig(_Strict):
    """The likelihood and its hyperparameters; those left out are derived from the data."""

    name: Literal[tuple(FAMILIES)] = "gaussian"  # type: ignore[valid-type]
    hyperparameters: dict[str, float | list[float] | list[list[float]]] = {}

    def build(self) -> Family:
        """The family."""
        family: Family = _built(FAMILIES[self.name], self.name, self.hyperparameters)
        return family


class PassFamilyConfig(_Strict):
    """The likelihood of a sequential pass, conjugate or not, and its hyperparameters."""

    name: Literal[(*FAMILIES, *LIKELIHOODS)] = "gaussian"  # type: ignore[valid-type]
    hyperparameters: dict[str, bool | float | list[float] | list[list[float]]] = {}

    def build(self) -> Family | Likelihood:
        """The family or likelihood."""
        return _built({**FAMILIES, **LIKELIHOODS}[self.name], self.name, self.hyperparameters)


def _built(kind: Any, name: str, hyperparameters: dict[str, Any]) -> Any:
    known = set(kind.__dataclass_fields__)
    unknown = sorted(set(hyperparameters) - known)
    if unknown:
        raise InputError(
            f"family {name} has no hyperparameter {', '.join(unknown)}; it has {', '.join(sorted(known))}."
        )
    return kind(**hyperparameters)


class GammaPrior(_Strict):
    """Gamma prior of a learned concentration."""

    shape: Positive
    rate: Positive


#: What each schedule heeds.
_HEEDED = {
    "memoized": {"name", "waves", "lookahead", "keep_start"},
    "stochastic": {"name", "waves", "lookahead", "delay", "forgetting"},
    "batch": {"name"},
}


def _check_heeded(settings: ScheduleConfig | TopicScheduleConfig) -> None:
    """Raise :class:`InputError` if a schedule is told what it would not heed."""
    fields = type(settings).model_fields
    told = [name for name, field in fields.items() if getattr(settings, name) != field.default]
    idle = [name for name in told if name not in _HEEDED[settings.name]]
    if idle:
        heeding = [name for name, heeded in _HEEDED.items() if {*idle} <= heeded]
        other = f"choose the schedule {' or '.join(heeding)}" if heeding else "choose another schedule"
        raise InputError(f"the schedule {settings.name} has no {' and no '.join(idle)}; leave it out, or {other}.")


class ScheduleConfig(_Strict):
    """How summaries become the total."""

    name: Literal["memoized", "stochastic", "batch"] = "memoized"
    waves: Count = 40
    lookahead: Literal[0, 1] = 0
    keep_start: bool = True
    delay: Annotated[float, Field(ge=0)] = 1.0
    forgetting: Annotated[float, Field(gt=0, le=1)] = 0.6

    def build(self) -> Schedule:
        """The schedule."""
        _check_heeded(self)
        if self.name == "batch":
            return Batch()
        if self.name == "stochastic":
            return Stochastic(self.waves, self.lookahead, self.delay, self.forgetting)
        return Memoized(self.waves, self.lookahead, self.keep_start)


class MovesConfig(_Strict):
    """Which moves to make, and how hard to try."""

    split: bool = True
    merge: bool = True
    delete: bool = True
    children: Annotated[int, Field(ge=2)] = 2
    sample: Annotated[int, Field(ge=2)] = MovePlan.sample
    refine: Count = MovePlan.refine
    rest: Annotated[int, Field(ge=0)] = MovePlan.rest
    tries: Count = MovePlan.tries

    def build(self) -> MovePlan:
        """The plan of moves."""
        return MovePlan(**self.model_dump())


class TransformConfig(_Strict):
    """What is done to rows first, fitted in one pass and kept with the model."""

    center: bool = False
    scale: bool = False
    pca: Count | None = None

    def build(self) -> TransformPlan:
        """The plan of the transform."""
        return TransformPlan(self.center, self.scale, self.pca)


class PassConfig(_Strict):
    """Everything that ``dpdist sva`` can be told."""

    data: str | None = None
    holdout: str | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    family: PassFamilyConfig = PassFamilyConfig()
    concentration: Positive = 1.0
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.001
    merge: Literal["auto", "evidence", "distance", "absolute distance", "none"] = "auto"
    merge_threshold: Positive = 0.5
    prune: Annotated[float, Field(ge=0, lt=1)] = 1e-5
    max_components: Count | None = None
    parallel: bool = True
    round_partitions: Count = 64
    shuffle: bool = True
    transform: TransformConfig = TransformConfig()
    compute_dtype: Literal["float64", "float32"] = "float64"
    floor: Annotated[float, Field(ge=0, lt=0.01)] = 1e-6
    forgetting: Annotated[float, Field(gt=0.5, le=1)] = 0.8
    own_clock: bool = True

    def recipe(self) -> PassRecipe:
        """What these settings ask for."""
        family = self.family.build()
        asked = None if self.merge == "none" else self.merge
        merging = merge_test(asked, self.merge_threshold, isinstance(family, Family))
        return PassRecipe(
            family=family,
            rule=Rule(self.concentration, self.threshold, self.floor, self.max_components),
            tidy=Tidy(self.prune, merging),
            rounds=Rounds(self.parallel, self.round_partitions, self.shuffle),
            transform=self.transform.build(),
            dtype=DTYPES[self.compute_dtype],
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
        plain = {name: getattr(self, name) for name in type(self).model_fields if name not in _RENAMED}
        made = {
            "family": self.family.build(),
            "merge": None if self.merge == "none" else self.merge,
            "row_transform": self.transform.build(),
            "random_state": self.seed,
        }
        return Asked("dpdist:SVA", {**plain, **made})


class FitConfig(_Strict):
    """Everything that ``dpdist fit`` can be told."""

    data: str | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    family: FamilyConfig = FamilyConfig()
    concentration: Positive | GammaPrior = 10.0
    initial: Literal["one", "k-means++", "sva"] = "one"
    initial_components: Count = 20
    initial_rows: Count | None = 20_000
    max_components: Count | None = None
    schedule: ScheduleConfig = ScheduleConfig()
    moves: MovesConfig = MovesConfig()
    transform: TransformConfig = TransformConfig()
    compute_dtype: Literal["float64", "float32"] = "float64"
    floor: Annotated[float, Field(ge=0, lt=0.01)] = 1e-8
    tolerance: Annotated[float, Field(ge=0)] = 1e-5
    max_laps: Count | None = 100
    max_time: Positive | None = None

    def recipe(self) -> Recipe:
        """What these settings ask for."""
        return Recipe(
            family=self.family.build(),
            allocation=self._concentration(),
            schedule=self.schedule.build(),
            plan=self.moves.build(),
            transform=self.transform.build(),
            precision=Precision(DTYPES[self.compute_dtype], self.floor),
            seed=self.seed,
            tolerance=self.tolerance,
            initial=self.initial,
            initial_components=self.initial_components,
            initial_rows=self.initial_rows,
        )

    def prepare(self, source: Source, out: str | Path, overwrite: bool, backend: Backend) -> Fit:
        """The fit to `source`, ready to run and kept at `out`."""
        limits = Limits(self.max_laps, self.max_time)
        keeping = Keeping(out, self.model_dump(), overwrite, self.asked())
        return prepare_fit(self.recipe(), source, limits, backend, keeping)

    def asked(self) -> Asked:
        """These settings as parameters of the estimator."""
        plain = {name: getattr(self, name) for name in type(self).model_fields if name not in _RENAMED}
        made = {
            "family": self.family.build(),
            "concentration": self.concentration if isinstance(self.concentration, float) else self._concentration(),
            "schedule": self.schedule.build(),
            "moves": self.moves.build(),
            "row_transform": self.transform.build(),
            "random_state": self.seed,
        }
        return Asked("dpdist:DPMixture", {**plain, **made})

    def _concentration(self) -> Allocation:
        if isinstance(self.concentration, GammaPrior):
            prior = self.concentration
            return LearnedDirichletProcess(prior.shape, prior.rate, max_components=self.max_components)
        return DirichletProcess(self.concentration, self.max_components)


class TopicScheduleConfig(_Strict):
    """How summaries of documents become the total; stochastic is online inference, by default at the paper's rates."""

    name: Literal["memoized", "stochastic", "batch"] = "memoized"
    waves: Count = 20
    lookahead: Literal[0, 1] = 0
    delay: Annotated[float, Field(ge=0)] = 1.0
    forgetting: Annotated[float, Field(gt=0, le=1)] = 0.5

    def build(self) -> Schedule:
        """The schedule."""
        _check_heeded(self)
        if self.name == "batch":
            return Batch()
        if self.name == "stochastic":
            return Stochastic(self.waves, self.lookahead, self.delay, self.forgetting)
        return Memoized(self.waves, self.lookahead)


class TopicMovesConfig(_Strict):
    """Which moves of topics to make, and how hard to try."""

    birth: bool = TopicPlan.birth
    merge: bool = TopicPlan.merge
    delete: bool = TopicPlan.delete
    topics: Count = TopicPlan.topics
    most: Count = TopicPlan.most
    sample: Count = TopicPlan.sample
    tries: Annotated[int, Field(ge=0)] = TopicPlan.tries
    refine: Annotated[int, Field(ge=0)] = TopicPlan.refine
    rest: Annotated[int, Field(ge=0)] = TopicPlan.rest
    partners: Count = TopicPlan.partners

    def build(self) -> TopicPlan:
        """The plan of moves."""
        return TopicPlan(**self.model_dump())


class OnlineMovesConfig(_Strict):
    """Which moves of topics to make after each mini-batch, and how hard to try."""

    split: bool = OnlinePlan.split
    merge: bool = OnlinePlan.merge
    splits: Count = OnlinePlan.splits
    merges: Annotated[int, Field(ge=0)] = OnlinePlan.merges
    alike: Annotated[int, Field(ge=0)] = OnlinePlan.alike
    lasting: bool = OnlinePlan.lasting
    iterations: Count = OnlinePlan.iterations
    smoothing: Positive = OnlinePlan.smoothing
    topics: Count = OnlinePlan.topics
    restricted: Literal["shared", "free"] = OnlinePlan.restricted

    def build(self) -> OnlinePlan:
        """The plan of moves."""
        return OnlinePlan(**self.model_dump())


class EffortConfig(_Strict):
    """How far documents are iterated."""

    tolerance: Positive = Effort.tolerance
    most: Count = Effort.most

    def build(self) -> Effort:
        """The effort."""
        return Effort(self.tolerance, self.most)


class TopicsConfig(_Strict):
    """Everything that ``dpdist topics`` can be told; `online_moves` are those of a stochastic schedule."""

    data: str | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    concentration: Positive = 10.0
    document_concentration: Positive = 1.0
    pseudocount: Positive = 0.1
    learn: tuple[Literal[LEARNABLE], ...] = ()  # type: ignore[valid-type]
    initial_topics: Count = 50
    schedule: TopicScheduleConfig = TopicScheduleConfig()
    moves: TopicMovesConfig = TopicMovesConfig()
    online_moves: OnlineMovesConfig = OnlineMovesConfig()
    effort: EffortConfig = EffortConfig()
    tolerance: Annotated[float, Field(ge=0)] = 1e-5
    max_laps: Count | None = 100
    max_time: Positive | None = None

    def recipe(self) -> TopicRecipe:
        """What these settings ask for, limits apart."""
        return TopicRecipe(
            concentration=self.concentration,
            document_concentration=self.document_concentration,
            pseudocount=self.pseudocount,
            learn=self.learn,
            initial_topics=self.initial_topics,
            schedule=self.schedule.build(),
            moves=self._moves(),
            effort=self.effort.build(),
            tolerance=self.tolerance,
            seed=self.seed,
        )

    def prepare(self, source: Source, out: str | Path, overwrite: bool, backend: Backend) -> Fit:
        """The fit to `source`, ready to run and kept at `out`."""
        limits = Limits(self.max_laps, self.max_time)
        keeping = Keeping(out, self.model_dump(), overwrite, self.asked())
        return prepare_topics(self.recipe(), source, limits, backend, keeping)

    def asked(self) -> Asked:
        """These settings as parameters of the estimator."""
        plain = {name: getattr(self, name) for name in type(self).model_fields if name not in _RENAMED}
        made = {
            "schedule": self.schedule.build(),
            "moves": self._moves(),
            "effort": self.effort.build(),
            "random_state": self.seed,
        }
        return Asked("dpdist:HDPTopicModel", {**plain, **made})

    def _moves(self) -> TopicPlan | OnlinePlan | None:
        if self.schedule.name == "batch":
            return None
        return self.online_moves.build() if self.schedule.name == "stochastic" else self.moves.build()


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
        given = {} if path is None else tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise InputError(f"the configuration {path} cannot be read ({error.strerror}); check the path.") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the configuration {path} is not TOML ({error}).") from error
    return parse_config(kind, _merged(given, options))


def parse_config(kind: type[Config], values: dict[str, Any]) -> Config:
    """The configuration in plain values; raises :class:`InputError` as :func:`read_config` does."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"setting {place}: {first['msg']}; got {first['input']!r}.") from error


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
