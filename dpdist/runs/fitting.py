"""From data and settings to a running fit: data summary, priors, start, laps, stopping, checkpoints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dpdist.core.checks import (
    COUNT,
    POSITIVE,
    Wanted,
    check_fields,
    instance,
    number,
    real_array,
    whole,
)
from dpdist.core.errors import CheckpointError, ClusterLostError, InputError
from dpdist.core.threads import one_thread
from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.inference.data_summary import summarise_source
from dpdist.inference.mixture.engine import Step, first_state, steps
from dpdist.inference.mixture.footprint import warn_if_large
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.plan import MovePlan
from dpdist.inference.schedules import Schedule
from dpdist.inference.starts import kmeans_start, responsibility_start, sequential_start
from dpdist.inference.state import Info, State
from dpdist.inference.transform import TRANSFORM, Preparation, Transform, TransformPlan
from dpdist.models.allocations import Allocation
from dpdist.models.families.base import Family, Moments
from dpdist.models.mixture import Model, Precision
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.cadence import Cadence
from dpdist.storage.checkpoint import Fitted, RunStore
from dpdist.storage.descriptions import check_description
from dpdist.storage.generations import GenerationStore
from dpdist.storage.history import History
from dpdist.storage.memo import Manifest, Memo

CONVERGED = "converged: the ELBO settled and no move is pending"
MAX_LAPS = "stopped: max_laps reached"
MAX_TIME = "stopped: max_time reached"
#: What a start may be.
STARTS = ("one", "k-means++", "sva")


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a person asks for, before the data are seen.

    Raises
    ------
    InputError
        If one is not what it should be.
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
        check_fields(
            self,
            family=instance("a family of dpdist.families (only dpdist.SVA takes other likelihoods)", Family),
            allocation=instance("an allocation of dpdist.allocations", Allocation).called("concentration"),
            schedule=instance("a schedule, such as dpdist.inference.schedules.Memoized()", Schedule),
            plan=instance("a dpdist.MovePlan", MovePlan).called("moves"),
            transform=TRANSFORM,
            seed=whole(0),
            tolerance=number(least=0),
            initial=Wanted("'one', 'k-means++', 'sva', labels or responsibilities", _is_start),
            initial_components=COUNT,
            initial_rows=COUNT.or_none("all rows"),
        )


def _is_start(value: Any) -> bool:
    if isinstance(value, str):
        return value in STARTS
    array = real_array(value)
    return array is not None and array.ndim in (1, 2) and array.size > 0


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
        check_fields(self, max_laps=COUNT.or_none("no bound"), max_time=POSITIVE.or_none("no bound"))

    def unmet(self, stop: str | None) -> str | None:
        """The sentence about a fit that a limit ended before it converged; None for one that ended otherwise."""
        told = {MAX_LAPS: f"max_laps={self.max_laps}", MAX_TIME: f"max_time={self.max_time}"}.get(stop or "")
        if told is None:
            return None
        return (
            f"the fit stopped at {told} before it converged: the ELBO still changes, or moves are pending. Raise the "
            "limit or the tolerance, or go on from a checkpoint with dpdist.resume."
        )

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
    """DataSummary the data in one pass and fix everything for the run."""
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
    if source.sparse and not family.accepts_sparse:
        raise InputError(
            f"the family {family.name} does not accept sparse input; pass a dense array with x.toarray(), or "
            "choose Multinomial, Bernoulli or Poisson."
        )
    transform, moments = fitted_transform(plan, source, backend)
    family = family.with_defaults(moments)
    family.check_moments(moments)
    origin = moments.mean if family.has_location else None
    family = family if origin is None else family.about(origin)
    typical = family.features(np.atleast_2d(moments.mean if origin is None else np.zeros_like(origin)))
    check_description(family.describe(typical), typical.shape[1], family)
    return family, Preparation(transform, origin, source.shape[1], source.names)


def fitted_transform(plan: TransformPlan, source: Source, backend: Backend) -> tuple[Transform, Moments]:
    """The transform fitted to the data in one pass, and the moments of the rows it gives."""
    data_summary = summarise_source(source, backend, products=plan.pca is not None)
    with one_thread():
        transform = plan.fit(data_summary)
    return transform, transform.moments(data_summary)


def start_summary(recipe: Recipe, problem: Problem, source: Source, backend: Backend) -> Summary | None:
    """The statistics of the first model; None for one component."""
    if isinstance(recipe.initial, str):
        if recipe.initial == "one":
            return None
        if recipe.initial == "k-means++":
            return kmeans_start(problem, source, backend, recipe.initial_components)
        return sequential_start(problem, source, backend, recipe.initial_rows, recipe.initial_components)
    return responsibility_start(problem, source, backend, recipe.initial)


def begin(recipe: Recipe, source: Source, backend: Backend) -> tuple[Problem, State]:
    """The problem and the state before the first lap; warns if a lap will take much memory."""
    problem = pose(recipe, source, backend)
    start, most = start_summary(recipe, problem, source, backend), recipe.allocation.max_components
    components = 1 if start is None else len(start.entropy)
    if most is not None and components > most:
        raise InputError(f"initial should give at most as many components as there may be, {most}; got {components}.")
    warn_if_large(problem, source, components)
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

    Checkpoints are written by a thread of their own, at most one at a time: the first before the first batch, the last
    at the end, and between these as :class:`dpdist.runs.cadence.Cadence` says.

    Parameters
    ----------
    problem, source, backend, state : as :func:`begin` gives them, or a checkpoint
    limits : when to stop
    history : laps so far
    store : where to checkpoint, or None
    checkpoint_seconds : longest time between two checkpoints, whatever they cost; 0 for one after every batch
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
        """Yield after each batch; the last step is the lap that met a limit.

        A fit that has ended yields nothing. An interruption such as Ctrl-C leaves a checkpoint of the last batch.
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
        """Write a checkpoint: first the batch summaries that are not stored yet, then what names them."""
        with self._cadence.timed():
            for name, batch_summaries in packs.items():
                store.put_batch_summaries(name, batch_summaries)
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
