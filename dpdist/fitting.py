"""From data and settings to a running fit: survey, priors, start, laps, stopping, checkpoints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np

from dpdist.allocations import Allocation
from dpdist.backends.base import Backend
from dpdist.cadence import Cadence
from dpdist.checkpoint import Fitted, RunStore
from dpdist.checks import require_least
from dpdist.descriptions import check_description
from dpdist.engine import Step, first_state, steps
from dpdist.errors import CheckpointError, ClusterLostError, InputError
from dpdist.families.base import Family, Moments
from dpdist.footprint import warn_if_large
from dpdist.history import History
from dpdist.memo import Manifest, Memo
from dpdist.model import Model, Precision
from dpdist.moves.plan import MovePlan
from dpdist.preparation import Preparation, Transform, TransformPlan
from dpdist.problem import Problem
from dpdist.schedules import Schedule
from dpdist.sources.base import Source
from dpdist.starts import kmeans_start, responsibility_start, sequential_start
from dpdist.state import Info, State
from dpdist.storage import GenerationStore
from dpdist.summary import Summary
from dpdist.survey import survey_source
from dpdist.threads import one_thread

CONVERGED = "converged: the ELBO settled and no move is pending"
MAX_LAPS = "stopped: max_laps reached"
MAX_TIME = "stopped: max_time reached"


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a person asks for, before the data are seen.

    Raises
    ------
    InputError
        If the floor or the tolerance is not what was asked for.
    """

    family: Family
    allocation: Allocation
    schedule: Schedule
    plan: MovePlan
    transform: TransformPlan
    precision: Precision
    seed: int
    tolerance: float
    initial: Any = "one"
    initial_components: int = 20
    initial_rows: int | None = 20_000

    def __post_init__(self) -> None:
        if not 0 <= self.precision.floor < 0.01:
            raise InputError(f"floor should be from 0 to below 0.01; got {self.precision.floor}.")
        require_least("tolerance", self.tolerance, 0, " nats a row")


@dataclass(frozen=True)
class Limits:
    """When to stop whatever the ELBO does.

    Parameters
    ----------
    max_laps : laps in all, or None
    max_time : seconds of this session, or None
    """

    max_laps: int | None = 100
    max_time: float | None = None

    def __post_init__(self) -> None:
        if not (self.max_laps is None or (isinstance(self.max_laps, Integral) and self.max_laps >= 1)):
            raise InputError(f"max_laps should be at least 1, whole, or None for no bound; got {self.max_laps!r}.")
        if not (self.max_time is None or (isinstance(self.max_time, Real) and self.max_time > 0)):
            raise InputError(f"max_time should be above zero seconds, or None for no bound; got {self.max_time!r}.")

    def but(self, max_laps: int | None, max_time: float | None) -> Limits:
        """These limits, but for those that are given."""
        return Limits(self.max_laps if max_laps is None else max_laps, self.max_time if max_time is None else max_time)

    def reached(self, laps: int) -> bool:
        """Whether so many laps are as many as there may be."""
        return self.max_laps is not None and laps >= self.max_laps

    def reason(self, state: State, info: Info, began: float) -> str | None:
        """Why to stop after a lap, or None to go on."""
        return CONVERGED if state.quiet else self.met(info.lap, began)

    def met(self, laps: int, began: float) -> str | None:
        """Which limit is met after so many laps, or None."""
        if self.reached(laps):
            return MAX_LAPS
        if self.max_time is not None and time.monotonic() - began >= self.max_time:
            return MAX_TIME
        return None


def pose(recipe: Recipe, source: Source, backend: Backend) -> Problem:
    """Survey the data in one pass and fix everything for the run."""
    family, preparation = prepared_family(recipe.family, recipe.transform, source, backend)
    return Problem(
        model=Model(family, recipe.allocation),
        preparation=preparation,
        schedule=recipe.schedule,
        plan=recipe.plan,
        precision=recipe.precision,
        seed=recipe.seed,
        tolerance=float(recipe.tolerance),
    )


def prepared_family(
    family: Family, plan: TransformPlan, source: Source, backend: Backend
) -> tuple[Family, Preparation]:
    """The family with every hyperparameter filled, about its origin, and what is done to rows first.

    Raises
    ------
    InputError
        If the family does not take such data, or describes components in a way that cannot be stored.
    """
    if not isinstance(family, Family):
        raise InputError(
            f"a mixture needs a family of dpdist.families; got {type(family).__name__}. A likelihood without a "
            "conjugate prior is fitted by dpdist.SVA."
        )
    if source.sparse and not family.accepts_sparse:
        raise InputError(
            f"the family {family.name} does not accept sparse input; pass a dense array with x.toarray(), or "
            "choose Multinomial, Bernoulli or Poisson."
        )
    transform, moments = surveyed(plan, source, backend)
    family = family.with_defaults(moments)
    family.check_moments(moments)
    origin = moments.mean if family.has_location else None
    family = family if origin is None else family.about(origin)
    typical = family.features(np.atleast_2d(moments.mean if origin is None else np.zeros_like(origin)))
    check_description(family.describe(typical), typical.shape[1], family)
    return family, Preparation(transform, origin, source.shape[1], source.names)


def surveyed(plan: TransformPlan, source: Source, backend: Backend) -> tuple[Transform, Moments]:
    """The transform fitted to the data in one pass, and the moments of the rows it gives."""
    survey = survey_source(source, backend, products=plan.pca is not None)
    with one_thread():
        transform = plan.fit(survey)
    return transform, transform.moments(survey)


def start_summary(recipe: Recipe, problem: Problem, source: Source, backend: Backend) -> Summary | None:
    """The statistics of the first model; None for one component.

    Raises
    ------
    InputError
        If ``initial`` is none of "one", "k-means++", "sva", labels and responsibilities.
    """
    if isinstance(recipe.initial, str):
        if recipe.initial == "one":
            return None
        if recipe.initial == "k-means++":
            return kmeans_start(problem, source, backend, recipe.initial_components)
        if recipe.initial == "sva":
            return sequential_start(problem, source, backend, recipe.initial_rows, recipe.initial_components)
        raise InputError(
            f"initial should be 'one', 'k-means++', 'sva', labels or responsibilities; got '{recipe.initial}'."
        )
    return responsibility_start(problem, source, backend, recipe.initial)


def begin(recipe: Recipe, source: Source, backend: Backend) -> tuple[Problem, State]:
    """The problem and the state before the first lap; warns if a lap will take much memory."""
    problem = pose(recipe, source, backend)
    start = start_summary(recipe, problem, source, backend)
    warn_if_large(problem, source, 1 if start is None else len(start.entropy))
    return problem, first_state(problem, source, start)


class Stored(Protocol):
    """Work whose checkpoints go to a store."""

    @property
    def store(self) -> GenerationStore | None:
        """Where; None for nowhere."""

    def save(self) -> None:
        """Write a checkpoint of the present moment."""

    def close(self) -> None:
        """Finish writing, and let others write."""


@contextlib.contextmanager
def writing(work: Stored) -> Iterator[None]:
    """Be the one writer of the work's store while it goes on.

    Whatever ends it leaves a checkpoint, unless that is what failed. Who only lost the cluster stays the writer, and
    may go on.
    """
    if work.store is not None:
        work.store.lock()
    try:
        yield
    except ClusterLostError:
        raise
    except CheckpointError:
        work.close()
        raise
    except BaseException:
        try:
            work.save()
        finally:
            work.close()
        raise
    work.close()


@dataclass
class Fit:
    """A fit under way: iterate over it for its steps; interrupt it at any time.

    Checkpoints are written by a thread of their own, at most one at a time: the first before the first wave, the last
    at the end, and between these as :class:`dpdist.cadence.Cadence` says.

    Parameters
    ----------
    problem, source, backend, state : as :func:`begin` gives them, or a checkpoint
    limits : when to stop
    history : laps so far
    store : where to checkpoint, or None
    checkpoint_seconds : longest time between two checkpoints, whatever they cost; 0 for one after every wave
    fitted : the model of the last lap; None before the first
    manifest : stored objects of `state`, where it comes from a checkpoint
    run : the steps of this kind of model
    """

    problem: Any
    source: Source
    backend: Backend
    state: State
    limits: Limits
    history: History
    store: RunStore | None = None
    checkpoint_seconds: float = 600.0
    fitted: Fitted | None = None
    manifest: Manifest | None = None
    run: Callable[[Any, Source, State, Backend], Iterator[Step]] = steps

    def __post_init__(self) -> None:
        self.source.prepare_for_laps()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dpdist-checkpoint")
        self._writing: Future[None] | None = None
        self._memo, self._cadence = Memo(self.state, self.manifest), Cadence()
        self._saved: tuple[int, int] | None = None  # lap and visit, not the state, which would be held

    def __iter__(self) -> Iterator[Step]:
        """Yield after each wave; the last step is the lap that met a limit.

        A fit that has ended yields nothing. An interruption such as Ctrl-C leaves a checkpoint of the last wave.
        After an error that lost the cluster the fit can be iterated over again, with another backend.

        Raises
        ------
        CheckpointError
            If a checkpoint could not be written, or another coordinator holds the run.
        """
        began = time.monotonic()
        stop = None if self.fitted is None else self.fitted.stop
        if stop is not None:
            self.close()
            return
        with writing(self):
            for step in self.run(self.problem, self.source, self.state, self.backend):
                if self.store is not None:
                    self._memo.follow(step)
                if step.info is not None:
                    stop = self._finish_lap(step.state, step.info, began)
                self.state = step.state
                self._save_in_time(stop)
                yield step
                if stop is not None:
                    return

    def save(self) -> None:
        """Begin to write a checkpoint of the present moment; raises what became of the one before."""
        place = self.state.lap, self.state.visit
        if self.store is not None and self._saved != place:
            self.settle()
            self._cadence.begin()
            history = self.history.before(self.state.lap)
            manifest, packs = self._memo.manifest(self.state)
            given = (self.problem, self.fitted, history, self.state, manifest)
            self._writing = self._writer.submit(self._write, self.store, packs, given)
            self._memo.stored(self.state, manifest)
            self._saved = place

    def settle(self) -> None:
        """Wait for what is being written; raises :class:`CheckpointError` if it failed."""
        if self._writing is not None:
            wait([self._writing])
            written, self._writing = self._writing, None
            written.result()

    def close(self) -> None:
        """Wait as :meth:`settle` does, then let others write to the run."""
        with contextlib.ExitStack() as last:
            if self.store is not None:
                last.callback(self.store.release)
            last.callback(self.settle)  # again: an interrupted wait leaves a commit under way, which needs the lease
            self.settle()

    def _save_in_time(self, stop: str | None) -> None:
        """Begin a checkpoint if one is due, or this is the end; raises what became of one that is done."""
        if self._writing is not None and self._writing.done():
            self.settle()
        if stop is not None or self._cadence.due(self.checkpoint_seconds):
            self.save()

    def _write(self, store: RunStore, packs: dict[str, list[Any]], given: tuple[Any, ...]) -> None:
        """Write a checkpoint: first the leaves that are not stored yet, then what names them."""
        with self._cadence.timed():
            for name, leaves in packs.items():
                store.put_leaves(name, leaves)
            store.commit(*given)

    def _finish_lap(self, state: State, info: Info, began: float) -> str | None:
        self.history.add(info)
        stop = self.limits.reason(state, info, began)
        self.fitted = Fitted(info.ids, info.total, info.elbo, info.rows, stop, stop == CONVERGED)
        return stop


def resumed(
    store: RunStore,
    source: Source,
    backend: Backend,
    limits: Limits,
    run: Callable[[Any, Source, State, Backend], Iterator[Step]] = steps,
) -> Fit:
    """The fit in `store`, to go on from its checkpoint.

    Raises
    ------
    CheckpointError
        If the data are not those the run began with, or another coordinator holds the run.
    """
    store.lock()
    source = store.same_data(source)
    problem = store.problem()
    fitted, history = store.fitted(), store.history()
    if fitted is not None and limits.reached(len(history.laps)):
        fitted = fitted._replace(stop=fitted.stop or MAX_LAPS)
    elif fitted is not None:
        fitted = fitted._replace(stop=None, converged=False)
    state, manifest = store.state()
    state = replace(state, quiet=False)
    return Fit(problem, source, backend, state, limits, history, store, fitted=fitted, manifest=manifest, run=run)
