"""From data and settings to a running fit: survey, priors, start, laps, stopping, checkpoints."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np

from dpdist.allocations import Allocation
from dpdist.backends.base import Backend
from dpdist.checkpoint import Fitted, RunStore
from dpdist.checks import require_least
from dpdist.descriptions import check_description
from dpdist.engine import Step, first_state, steps
from dpdist.errors import ClusterLostError, InputError
from dpdist.families.base import Family, Moments
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
#: Leaves that may wait to be written; beyond, the run waits for the disk.
BACKLOG = 8


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
    return family, Preparation(transform, origin, source.shape[1])


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
    """The problem and the state before the first lap."""
    problem = pose(recipe, source, backend)
    return problem, first_state(problem, source, start_summary(recipe, problem, source, backend))


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

    An interruption, which is no error, leaves a checkpoint. Who only lost the cluster stays the writer, and may go on.
    """
    if work.store is not None:
        work.store.lock()
    try:
        yield
    except ClusterLostError:
        raise
    except (Exception, GeneratorExit):
        work.close()
        raise
    except BaseException:
        work.save()
        work.close()
        raise
    work.close()


@dataclass
class Fit:
    """A fit under way: iterate over it for its steps; interrupt it at any time.

    Leaves are stored by a thread of their own as their waves finish, and so is the small rest of a checkpoint; at most
    one checkpoint is under way.

    Parameters
    ----------
    problem, source, backend, state : as :func:`begin` gives them, or a checkpoint
    limits : when to stop
    history : laps so far
    store : where to checkpoint, or None
    checkpoint_seconds : longest time between two checkpoints, even within a lap
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
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dpdist-checkpoint")
        self._written: deque[Future[None]] = deque()
        self._memo: Memo | None = None
        self._saved: State | None = None

    def __iter__(self) -> Iterator[Step]:
        """Yield after each wave; the last step is the lap that met a limit.

        A fit that has ended yields nothing. An interruption such as Ctrl-C leaves a checkpoint of the last wave.
        After an error that lost the cluster the fit can be iterated over again, with another backend.

        Raises
        ------
        CheckpointError
            If a checkpoint could not be written, or another coordinator holds the run.
        """
        began = saved = time.monotonic()
        stop = None if self.fitted is None else self.fitted.stop
        if stop is not None:
            self.close()
            return
        with writing(self):
            for step in self.run(self.problem, self.source, self.state, self.backend):
                self._follow(step)
                if step.info is not None:
                    stop = self._finish_lap(step.state, step.info, began)
                self.state = step.state
                if step.info is not None or time.monotonic() - saved >= self.checkpoint_seconds:
                    self.save()
                    saved = time.monotonic()
                yield step
                if stop is not None:
                    return

    def save(self) -> None:
        """Begin to write a checkpoint of the present moment; raises what became of the one before."""
        if self.store is not None and self._saved is not self.state:
            self.settle()
            history = self.history.before(self.state.lap)
            manifest = self._kept().manifest(self.state)
            self._later(self.store.commit, self.problem, self.fitted, history, self.state, manifest)
            self._saved = self.state

    def settle(self) -> None:
        """Wait for what is being written; raises :class:`CheckpointError` if it failed."""
        try:
            while self._written:
                self._written[0].result()
                self._written.popleft()
        except Exception:
            # An interruption comes here too but is no Exception: what waits is then still to be written.
            self._written = deque(future for future in self._written if not future.cancel())
            wait(self._written)  # one may be under way, and others may write to the run soon
            self._written.clear()
            raise

    def close(self) -> None:
        """Wait as :meth:`settle` does, then let others write to the run."""
        with contextlib.ExitStack() as last:
            if self.store is not None:
                last.callback(self.store.release)
            last.callback(self.settle)  # again: an interrupted wait leaves a commit under way, which needs the lease
            self.settle()

    def _follow(self, step: Step) -> None:
        """Begin to store the leaf that a step brought."""
        if self.store is not None:
            self._kept().follow(step)
            while len(self._written) > BACKLOG or (self._written and self._written[0].done()):
                self._written.popleft().result()

    def _kept(self) -> Memo:
        if self._memo is None:
            assert self.store is not None, "leaves are stored only where there is a store"
            self._memo = Memo(partial(self._later, self.store.put_leaf), self.state, self.manifest)
        return self._memo

    def _later(self, write: Callable[..., None], *arguments: Any) -> None:
        self._written.append(self._writer.submit(write, *arguments))

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
    store.check_data(source.fingerprint())
    problem = store.problem()
    fitted, history = store.fitted(), store.history()
    if fitted is not None and limits.reached(len(history.laps)):
        fitted = fitted._replace(stop=fitted.stop or MAX_LAPS)
    elif fitted is not None:
        fitted = fitted._replace(stop=None, converged=False)
    state, manifest = store.state()
    state = replace(state, quiet=False)
    return Fit(problem, source, backend, state, limits, history, store, fitted=fitted, manifest=manifest, run=run)
