"""Memoized inference of mixtures: preparation by a data summary, hyperparameters, and initialisation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dpdist.core.checks import shown
from dpdist.core.errors import InputError
from dpdist.core.threads import one_thread
from dpdist.data.base import Source, rows_with_weight, total_weight
from dpdist.execution.base import Backend
from dpdist.inference.data_summary import summarise_source
from dpdist.inference.drawing import draw_rows
from dpdist.inference.empirical import empirical_family
from dpdist.inference.mixture.batches import batches_that_pay, rows_of_work
from dpdist.inference.mixture.engine import Step, first_state, steps
from dpdist.inference.mixture.footprint import warn_if_large
from dpdist.inference.mixture.prediction import MixturePredictor
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.prediction import Predictor
from dpdist.inference.starts import kmeans_start, model_start, responsibility_start, sequential_start
from dpdist.inference.state import State
from dpdist.inference.sva.prediction import predictor_of
from dpdist.inference.sva.sequence import SVAProblem
from dpdist.inference.transform import Preparation, Transform, TransformPlan
from dpdist.models.families.base import Family, Moments
from dpdist.models.mixture import Background, Model
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.methods.base import rows_of_batches, workers_of_batches
from dpdist.runs.methods.rows import HELD_OUT, RowMethod, check_new_rows
from dpdist.runs.specs.mixture import STARTS, FitSpec
from dpdist.storage.checkpoint import Fitted, RunStore
from dpdist.storage.descriptions import check_description

#: Approximate number of sampled rows that determine the background.
BACKGROUND_ROWS = 10_000


def prepared_problem(spec: FitSpec, source: Source, backend: Backend) -> Problem:
    """Summarise the data in one pass; return the problem, which holds everything that is fixed during the run."""
    family, preparation = prepared_family(spec.family, spec.row_transform, source, backend, spec.precision.dtype)
    if spec.prior == "clusters":
        if not family.spreads:
            raise InputError(
                "prior='clusters' needs a family whose covariance is learned, such as Gaussian, DiagonalGaussian or "
                f"ZeroMeanGaussian; got {family.name}. Leave prior out, or choose one of these."
            )
        family = empirical_family(spec.family, family, preparation, source, backend, spec.random_state)
    background = None
    if spec.background is not None:
        if family.has_location and not family.spreads:
            raise InputError(
                "a background as broad as all rows needs a family whose covariance is learned, such as Gaussian or "
                f"DiagonalGaussian; got {family.name}. Leave background out, or choose one of these."
            )
        drawn = draw_rows(preparation, spec.random_state, source, backend, BACKGROUND_ROWS)
        with one_thread():
            background = Background(spec.background, family.features(drawn.rows).T @ drawn.weights)
    problem = Problem(
        model=Model(family, spec.allocation, background),
        preparation=preparation,
        schedule=spec.schedule,
        moves=spec.moves,
        sampling=spec.sampling,
        candidates=spec.candidates,
        precision=spec.precision,
        seed=spec.random_state,
        tolerance=spec.tolerance,
    )
    return replace(problem, schedule=spec.schedule.in_batches(batches_that_pay(problem, rows_with_weight(source))))


def check_start(spec: FitSpec) -> None:
    """Raise :class:`InputError` if moves are given for a schedule without moves, or if such a schedule would start from
    one component, which it could never split."""
    begins_with_one = spec.starts_by("one") and spec.allocation.max_components != 1
    if begins_with_one and spec.moves and not spec.schedule.moves:
        raise InputError(
            f"the schedule {spec.schedule.name} makes no moves, so a fit from initial='one' would keep one cluster. "
            "Start from initial='k-means++', 'sva', labels or a model; or give moves=[] if you want one cluster."
        )
    if spec.parameters["moves"] and not spec.schedule.moves:
        raise InputError(
            f"the schedule {spec.schedule.name} makes no moves; got moves={shown([each.kind for each in spec.moves])}. "
            "Leave them out, or choose Memoized() or Batch()."
        )


def check_density(family: Family, source: Source) -> None:
    """Raise :class:`InputError` if the data are sparse and the family does not accept sparse rows."""
    if source.sparse and not family.accepts_sparse:
        raise InputError(
            f"the family {family.name} does not accept sparse input; pass a dense array with x.toarray(), or "
            "choose Multinomial, Bernoulli or Poisson."
        )


def prepared_family(
    family: Family, plan: TransformPlan, source: Source, backend: Backend, dtype: type
) -> tuple[Family, Preparation]:
    """The family with all hyperparameters set, about its origin, and the preparation of rows.

    For products in float32, families that are closed under rotation are rotated to the principal axes of the data.

    Raises
    ------
    InputError
        If the family does not accept the data, or its descriptions of components cannot be stored.
    """
    check_density(family, source)
    turns = family.turns and dtype is np.float32 and plan.pca is None
    data_summary = summarise_source(source, backend, products=plan.pca is not None or turns)
    with one_thread():
        transform, whole = plan.fit(data_summary), plan.turned(data_summary) if turns else None
    moments = transform.moments(data_summary)
    family = family.with_defaults(moments)
    family.check_moments(moments)
    origin = moments.mean if family.has_location else None
    family = family if origin is None else family.about(origin)
    if whole is not None and whole.matrix is not None:
        family, transform = family.turned(whole.matrix), whole
        origin = None if origin is None else origin @ whole.matrix
    typical = family.features(np.atleast_2d(moments.mean if origin is None else np.zeros_like(origin)))
    check_description(family.describe(typical), typical.shape[1], family)
    return family, Preparation(transform, origin, source.shape[1], source.names)


def fitted_transform(plan: TransformPlan, source: Source, backend: Backend) -> tuple[Transform, Moments]:
    """The transform, fitted in one pass, and the moments of the transformed rows."""
    data_summary = summarise_source(source, backend, products=plan.pca is not None)
    with one_thread():
        transform = plan.fit(data_summary)
    return transform, transform.moments(data_summary)


def start_summary(spec: FitSpec, problem: Problem, source: Source, backend: Backend) -> Summary | None:
    """The summary of the initial model; None for one component with the prior."""
    initial = spec.initial
    if isinstance(initial, np.ndarray):
        return responsibility_start(problem, source, backend, initial)
    if (model := starting_model(spec, source)) is not None:
        return model_start(problem, source, backend, model)
    if initial == "one":
        return None if problem.model.background is None else _all_data(problem.model.background, source)
    if initial == "k-means++":
        return kmeans_start(problem, source, backend, spec.starting_components)
    return sequential_start(problem, source, backend, spec.initial_rows)


def starting_model(spec: FitSpec, source: Source) -> Predictor | None:
    """The model that the fit starts from, if any; raises :class:`InputError` if it does not accept the rows."""
    initial = spec.initial
    if isinstance(initial, np.ndarray) or (isinstance(initial, str) and initial in STARTS):
        return None
    model = initial if isinstance(initial, Predictor) else _stored_model(initial)
    model.check_source(source, "initial")
    return model


def check_count(spec: FitSpec, components: int) -> None:
    """Raise :class:`InputError` if a start has more components than the allocation allows."""
    most = spec.allocation.max_components
    if most is not None and components > most:
        raise InputError(
            f"initial should give at most {most} components, the limit of the allocation; got {components}."
        )


def _all_data(background: Background, source: Source) -> Summary:
    """The summary of one component with the breadth of the background; a background would take all rows from a
    component at the prior."""
    return Summary(background.stats[None] * (total_weight(source) / background.stats[-1]), np.zeros(1))


def _stored_model(path: str) -> Predictor:
    """The predictor of the model of rows at `path`, of either method."""
    store = RunStore.open(path, Problem.method, SVAProblem.method)
    problem, model = store.problem(), store.model()
    if isinstance(problem, SVAProblem):
        return predictor_of(problem, model.total)
    return MixturePredictor(problem.model, problem.preparation, model.total, model.ids)


@dataclass(frozen=True, eq=False)
class MemoizedMixture(RowMethod[FitSpec, Problem, Summary, MixturePredictor]):
    """Mixtures of conjugate families by memoized, stochastic or batch inference; parameters as in the base."""

    command = "fit"

    def cut(self, spec: FitSpec, source: Source) -> Source:
        """The source in partitions whose size follows from the cost of a row; sparse sources are unchanged."""
        if source.sparse:
            return source
        begun = spec.starting_components if spec.starts_by("k-means++") else 1
        given = min(spec.row_transform.pca or source.shape[1], source.shape[1]), begun, spec.allocation.max_components
        return source.in_partitions_of(rows_of_work(spec.family, *given, spec.candidates))

    def begin(self, spec: FitSpec, source: Source, backend: Backend) -> tuple[Problem, State]:
        """As :meth:`Method.begin`; warns if a lap will need much memory."""
        check_start(spec)
        problem = prepared_problem(spec, source, backend)
        if self.holdout is not None:
            check_new_rows(problem.preparation, problem.model.family, self.holdout, backend, HELD_OUT)
        start = backend.kept("first clusters", lambda: start_summary(spec, problem, source, backend))
        components = 1 if start is None else len(start.entropy)
        check_count(spec, components)
        warn_if_large(problem, source, components)
        return problem, first_state(problem, source, start)

    def steps(
        self, problem: Problem, source: Source, state: State, backend: Backend, path: str | None
    ) -> Iterator[Step]:
        found = steps(problem, source, state, backend, path)
        return found if self.holdout is None else (self._scored(problem, step, backend) for step in found)

    def _scored(self, problem: Problem, step: Step, backend: Backend) -> Step:
        if step.info is None:
            return step
        score = self.score(problem, step.info.total, step.info.ids, backend)
        return step._replace(info=step.info._replace(score=score))

    def predictor(self, problem: Problem, total: Summary, ids: np.ndarray) -> MixturePredictor:
        return MixturePredictor(problem.model, problem.preparation, total, ids)

    def batch_rows(self, problem: Problem, source: Source) -> list[int]:
        return rows_of_batches(problem.schedule, source)

    def useful_workers(self, problem: Problem, partitions: int) -> int:
        return workers_of_batches(problem.schedule, partitions)

    def values(self, problem: Problem, fitted: Fitted[Summary], predictor: MixturePredictor) -> dict[str, object]:
        model = problem.model
        return {
            "family": model.family.name,
            "allocation": model.allocation.name,
            "counts": fitted.total.counts.tolist(),
        }
