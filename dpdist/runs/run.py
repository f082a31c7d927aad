"""The one driver of runs, whatever their method: limits, history, checkpoints, interruption, going on."""

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
    """A run under way: iterate over it for its steps; interrupt it at any time.

    Checkpoints are written by a thread of their own, at most one at a time: the first before the first batch, the last
    at the end, and between these as :class:`dpdist.runs.cadence.Cadence` says.

    Parameters
    ----------
    method : how it goes on
    problem, source, backend, state : as the method begins them, or a checkpoint
    limits : when to stop
    history : laps so far
    store : where to checkpoint, or None
    checkpoint_seconds : longest time between two checkpoints, whatever they cost; 0 for one after every batch
    fitted : the model of the last lap; None before the first
    manifest : stored objects of `state`, where it comes from a checkpoint
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
        if self.method.endless:  # a pass reads its rows once
            self.source.prepare_for_laps()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dpdist-checkpoint")
        self._writing: Future[None] | None = None
        self._memo, self._cadence = Memo(self.state, self.manifest), Cadence()
        self._began: float | None = None  # of the first iteration: another cluster gives no more time
        self._saved: tuple[int, int] | None = None  # lap and visit, not the state, which would be held
        self._before: tuple[Spent, float] = {}, 0.0  # what was spent when the lap began, and on checkpoints

    def __iter__(self) -> Iterator[Step]:
        """Yield after each batch; the last step is the lap that met a limit.

        A run that has ended yields nothing. An interruption such as Ctrl-C leaves a checkpoint of the last batch.
        After an error that lost the cluster the run can be iterated over again, with another backend.

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
        """As :attr:`RunStore.chosen`; nothing of a run that is kept nowhere."""
        return {} if self.store is None else self.store.chosen

    @property
    def warning(self) -> str | None:
        """As :meth:`Limits.warning` of why it ended; None before its first lap, and where nothing converges."""
        if self.fitted is None or self.method.never_converges(self.problem):
            return None
        return self.limits.warning(self.fitted.stop)

    def save(self, over: bool = False) -> None:
        """Begin to write a checkpoint of the present moment, the last if the run is `over`; raises what became of the
        one before."""
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
        """Write the first checkpoint to a store, of which this is the writer from then on."""
        self.store = store
        try:
            self.save()
            self.settle()
        except BaseException:
            self.close()
            raise

    def settle(self) -> None:
        """Wait for what is being written; raises :class:`CheckpointError` if it failed.

        What interrupts the wait is raised after it: a commit under way needs the lease to its end.
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
        """Wait as :meth:`settle` does, then let others write to the run."""
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
        """Be the one writer of the run's store while it goes on.

        Whatever ends it leaves a checkpoint, unless that is what failed. Who only lost the cluster stays the writer,
        and may go on.
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
        except GeneratorExit:  # nobody goes on with it here
            with contextlib.suppress(LeaseHeldError):  # somebody else does
                self.leave()
            raise
        except BaseException:
            self.leave()
            raise
        self.close()

    def leave(self) -> None:
        """Leave a last checkpoint, and let others write."""
        try:
            self.save()
        finally:
            self.close()

    def _save_in_time(self, stop: str | None) -> None:
        """Begin a checkpoint if one is due, or this is the end; raises what became of one that is done."""
        if self._writing is not None and self._writing.done():
            self.settle()
        if stop is not None or self._cadence.due(self.checkpoint_seconds):
            self.save(over=stop is not None)

    def _write(
        self, store: RunStore, packs: dict[str, list[object]], content: Generation, superseded: list[str]
    ) -> None:
        """Write a checkpoint: first the batch summaries that are not stored yet, then what names them."""
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
        """What the lap that ends spent; another begins."""
        (before, checkpoints), now = self._before, (spent(), self._cadence.spent)
        self._before = now
        return LapTimes.of(since(before), now[1] - checkpoints, self.backend.threads)
