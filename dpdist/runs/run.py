"""The driver of runs of all methods: limits, history, checkpoints, interruption and continuation."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from dpdist.core.errors import CheckpointError, ClusterLostError
from dpdist.core.lease import LeaseHeldError
from dpdist.core.phases import Spent, since, spent
from dpdist.core.versions import versions
from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.inference.loop import Step
from dpdist.inference.state import Info, State
from dpdist.runs.cadence import CHECKPOINT_SECONDS, Cadence
from dpdist.runs.limits import Limits
from dpdist.runs.methods.base import CONVERGED, AnyMethod
from dpdist.runs.view import View, Viewable
from dpdist.storage.checkpoint import AnyFitted, Fitted, Generation, ProblemLike, RunStore, StoredState
from dpdist.storage.history import History, LapTimes
from dpdist.storage.memo import Manifest, Memo


@dataclass
class Run(Viewable):
    """A run in progress: iterate over it for its steps; it may be interrupted at any time.

    A separate thread writes checkpoints, at most one at a time: the first before the first batch, the last at the end,
    and others in between as :class:`dpdist.runs.cadence.Cadence` decides.

    Parameters
    ----------
    method : of the fit
    problem, source, backend, state : from the method's start, or from a checkpoint
    limits : when to stop
    history : laps so far
    store : where to write checkpoints, or None
    checkpoint_seconds : longest time between two checkpoints, whatever they cost; 0 for one after every batch
    fitted : the model of the last lap; None before the first
    manifest : stored objects of `state`, if it comes from a checkpoint
    """

    method: AnyMethod
    problem: ProblemLike
    source: Source
    backend: Backend
    state: State
    limits: Limits
    history: History = field(default_factory=History)
    store: RunStore | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    fitted: AnyFitted | None = None
    manifest: Manifest | None = None

    def __post_init__(self) -> None:
        if self.method.endless:  # a sequential pass reads its rows only once
            self.source.prepare_for_laps()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dpdist-checkpoint")
        self._writing: Future[None] | None = None
        self._memo, self._cadence = Memo(self.state, self.manifest), Cadence()
        self._began: float | None = None  # of the first iteration; max_time counts from here, even on a new cluster
        self._saved: tuple[int, int] | None = None  # lap and visit only; keeping the state would hold its memory
        self._before: tuple[Spent, float] = {}, 0.0  # seconds spent by phase and on checkpoints, when the lap began

    def __iter__(self) -> Iterator[Step]:
        """Yield after each batch; the last step ends the lap that converged or met a limit.

        A run that has ended yields nothing. An interruption such as Ctrl-C leaves a checkpoint of the last batch.
        After a :class:`ClusterLostError` the run can be iterated again, with another backend.

        Raises
        ------
        CheckpointError
            If a checkpoint could not be written, or another coordinator holds the run.
        """
        began = self._began = self._began or time.monotonic()
        self._before = spent(), self._cadence.spent
        stop = None if self.fitted is None else self.fitted.stop
        if stop is not None:
            self.close()
            return
        with self._writing_alone():
            path = None if self.store is None else self.store.place.where
            for step in self.method.steps(self.problem, self.source, self.state, self.backend, path):
                if self.store is not None:
                    self._memo.follow(step)
                if step.info is not None:
                    stop = self._finish_lap(step.state, step.info, began)
                self.state = step.state
                self._save_in_time(stop)
                yield step
                if stop is not None:
                    return

    @property
    def chosen(self) -> Mapping[str, object]:
        """As :attr:`RunStore.chosen`; empty for a run without a store."""
        return {} if self.store is None else self.store.chosen

    @property
    def warning(self) -> str | None:
        """:meth:`Limits.warning` for the stop reason; None before the first lap, or if the method never converges."""
        if self.fitted is None or self.method.never_converges(self.problem):
            return None
        return self.limits.warning(self.fitted.stop)

    def save(self, over: bool = False) -> None:
        """Start writing a checkpoint of the current state, the last one if the run is `over`; raises if the previous
        one failed."""
        place = self.state.lap, self.state.visited
        if self.store is not None and self._saved != place:
            self.settle()
            self._cadence.begin()
            history = self.history.before(self.state.lap)
            manifest, packs = self._memo.manifest(self.state)
            content = Generation(self.fitted, None, history, StoredState.of(self.state, manifest))
            superseded = self._memo.superseded(over)
            self._writing = self._writer.submit(self._write, self.store, packs, content, superseded)
            self._memo.stored(self.state, manifest)
            self._saved = place

    def keep_in(self, store: RunStore) -> None:
        """Write the first checkpoint to `store`; this run is its writer from then on."""
        self.store = store
        try:
            self.save()
            self.settle()
        except BaseException:
            self.close()
            raise

    def settle(self) -> None:
        """Wait for the checkpoint being written; raises :class:`CheckpointError` if it failed.

        An interruption during the wait is raised after it, because a commit needs the lease until it is done.
        """
        if self._writing is None:
            return
        interrupted: BaseException | None = None
        while not self._writing.done():
            try:
                wait([self._writing])
            except BaseException as error:
                interrupted = error
        written, self._writing = self._writing, None
        written.result()
        if interrupted is not None:
            raise interrupted

    def close(self) -> None:
        """Wait as :meth:`settle` does, then release the store to other writers."""
        try:
            self.settle()
        finally:
            if self.store is not None:
                self.store.release()

    def view(self) -> View:
        store = self.store
        return View(
            label="a run in memory" if store is None else store.path,
            problem=self.problem,
            history=self.history,
            fitted=self.fitted,
            asked={} if store is None else store.asked().parameters,
            settings={} if store is None else store.settings,
            fingerprint=self.source.identity(),
            versions=versions(),
            going_on=True,
        )

    @contextlib.contextmanager
    def _writing_alone(self) -> Iterator[None]:
        """Hold the lease of the run's store while the run is iterated.

        However the iteration ends, a checkpoint is left and the lease released, with two exceptions. If writing a
        checkpoint failed, no other is tried. If the cluster was lost, the lease is kept, so that the run can continue.
        """
        if self.store is not None:
            self.store.lock()
        try:
            yield
        except ClusterLostError:
            raise
        except CheckpointError:
            self.close()
            raise
        except GeneratorExit:  # the caller left its loop
            with contextlib.suppress(LeaseHeldError):  # another writer has taken over
                self.leave()
            raise
        except BaseException:
            self.leave()
            raise
        self.close()

    def leave(self) -> None:
        """Write a last checkpoint, and release the store."""
        try:
            self.save()
        finally:
            self.close()

    def _save_in_time(self, stop: str | None) -> None:
        """Start a checkpoint if one is due or the run ends; raises if a finished one had failed."""
        if self._writing is not None and self._writing.done():
            self.settle()
        if stop is not None or self._cadence.due(self.checkpoint_seconds):
            self.save(over=stop is not None)

    def _write(
        self, store: RunStore, packs: dict[str, list[object]], content: Generation, superseded: list[str]
    ) -> None:
        """Write a checkpoint: first the batch summaries that are not stored yet, then the generation that refers to
        them."""
        with self._cadence.timed():
            fitted = content.fitted
            predictor = fitted and self.method.predictor(self.problem, fitted.total, fitted.ids)
            for name, batch_summaries in packs.items():
                store.put_batch_summaries(name, batch_summaries)
            store.commit(content._replace(predictor=predictor), superseded)

    def _finish_lap(self, state: State, info: Info, began: float) -> str | None:
        self.history.add(info, self._times())
        stop = self.method.ended if state.quiet else self.limits.met(info.lap, began)
        sizes = info.rows, info.units
        self.fitted = Fitted(info.ids, info.total, info.elbo, *sizes, state.next_id, stop, stop == CONVERGED)
        return stop

    def _times(self) -> LapTimes:
        """The time spent in the lap that ends; the next lap's measurement starts."""
        (before, checkpoints), now = self._before, (spent(), self._cadence.spent)
        self._before = now
        return LapTimes.of(since(before), now[1] - checkpoints, self.backend.threads)
