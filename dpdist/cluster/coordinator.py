"""The coordinator of a submitted run, which its job starts, once or several times.

It reads the submission from the run's place, becomes the only writer of the run, starts the cluster and drives the run.
Its exit status tells the job how to continue; see :mod:`dpdist.cluster.submission.base`.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from rich.console import Console

from dpdist.cluster.kinds import parse_cluster
from dpdist.cluster.metrics import SchedulerOutlet
from dpdist.cluster.running import AGAIN, FAILED, OrderedToEnd, drive, obeying_signals
from dpdist.cluster.submitted import Address, End, Request, forget, found_since, has_begun, latest_request, record
from dpdist.core.errors import CheckpointError, DpdistError
from dpdist.core.lease import take_lease
from dpdist.core.places import Place, place_of
from dpdist.execution import Backend
from dpdist.execution.dask import DaskBackend
from dpdist.runs.config import parse_config
from dpdist.runs.events import BatchEvent, Broadcast, Event, Happening, note
from dpdist.runs.opening import gone_on, run_at, source_of
from dpdist.runs.progress import event_line, say
from dpdist.runs.run import Run
from dpdist.storage.commits import commits
from dpdist.storage.preparing import PreparationStore

#: Seconds to wait for a previous coordinator that is ending or dead, before this one gives up.
PATIENCE = 120.0


def coordinate(run: str | os.PathLike[str], console: Console) -> int:
    """Drive a submitted run to its end.

    Parameters
    ----------
    run : path or URL
    console : the log

    Returns
    -------
    status : exit status of the process
    """
    place = place_of(run)
    number, request = latest_request(place)
    before = _reached(place)
    with obeying_signals():
        try:
            sentence, status = _run(place, number, request, console), 0
        except OrderedToEnd as order:
            sentence, status = f"stopped on request; continue with: dpdist resume {run} --cluster FILE", order.status
            if status == AGAIN:
                sentence = f"stopped before its time ended; if it is not queued again, use dpdist resume {run}"
        except DpdistError as error:
            sentence, status = str(error), FAILED
        except Exception as error:
            traceback.print_exc()
            sentence, status = f"unexpected error ({type(error).__name__}: {error}); see the log.", FAILED
    if status == AGAIN and _reached(place) == before:
        status, sentence = FAILED, "the time ended before a new checkpoint; request a longer walltime."
    say(console, sentence)
    record(place, number, End(status, sentence))
    return status


def _reached(place: Place) -> tuple[list[int], Mapping[str, object]]:
    """The progress of the run at a place: its checkpoints, and the stored results of the passes before the first."""
    kept: Mapping[str, object] = {}
    with suppress(CheckpointError):  # damage is reported when the run is continued
        preparation = PreparationStore.found(place)
        kept = {} if preparation is None else preparation.told["entries"]
    return commits(place), kept


def _run(place: Place, number: int, request: Request, console: Console) -> str:
    """The outcome of the run. The lease is held from the first moment, until the run's store takes over."""
    guard = take_lease(place, PATIENCE, partial(say, console))
    forget(place, number, End)
    sink = _Outlets(request.identity, console)
    try:
        found = found_since(place, request)
        if found is not None:
            return found
        cluster = parse_cluster(request.cluster)

        def launch() -> DaskBackend:
            backend = cluster.launch()
            record(place, number, Address(backend.client.scheduler.address))
            sink.backend = backend
            return backend

        drive(lambda backend: prepared(place, request, backend), launch, sink)
        return sink.last
    finally:
        forget(place, number, Address)
        guard.release()


class _Outlets:
    """Sends events to the log and to attached viewers."""

    def __init__(self, run: str, console: Console) -> None:
        self.backend: DaskBackend | None = None
        self.last, self._console = "", console
        self._broadcast = Broadcast(run, SchedulerOutlet(lambda: self.backend and self.backend.client).send)

    def tell(self, event: Event) -> None:
        """Send one event."""
        if not isinstance(event, BatchEvent):
            say(self._console, event_line(event))
        self._broadcast.tell(event)

    def end(self, sentence: str, happening: Happening = Happening.ENDED) -> None:
        """Send the final sentence."""
        self.last = sentence
        self._broadcast.tell(note(happening, sentence))
        self._broadcast.close()


def prepared(place: Place, request: Request, backend: Backend) -> Run:
    """The run, new or resumed from its last checkpoint."""
    if has_begun(place, request):
        source = source_of(run_at(place.label), request.data)
        run = gone_on(place.label, source, backend, request.max_laps, request.max_time, request.holdout)
    else:
        told = parse_config(request.command, request.asked)
        run = told.prepare(told.source(), place.label, True, backend, request.identity)
    assert run.store is not None, "a submitted run is stored"
    run.checkpoint_seconds, run.store.keep = request.checkpoint_seconds, request.keep
    return run
