"""Events of runs on a Dask scheduler's topics, and Prometheus metrics made from them."""

from __future__ import annotations

import warnings
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

from distributed import Client, Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from prometheus_client import Counter, Gauge

from dpdist.runs.events import (
    BATCH_TOPIC,
    TOPIC,
    TOPICS,
    BatchEvent,
    Event,
    Happening,
    NoteEvent,
    from_dict,
    in_order,
    to_dict,
)

#: Descriptions of gauges, by name; each has the label ``run``.
GAUGES = {
    "dpdist_rows_per_second": "Rows visited per second in the current lap or round",
    "dpdist_lap": "Finished laps, or rounds of a sequential pass",
    "dpdist_lap_share": "Finished share of the batches of the current lap, or of the rounds of a pass, from 0 to 1",
    "dpdist_elbo_nats": "Evidence lower bound of the whole data after the last lap, in nats",
    "dpdist_elbo_nats_per_row": "The same per row, for mixtures",
    "dpdist_elbo_nats_per_token": "The same per token of the documents, for topic models",
    "dpdist_holdout_nats_per_row": "Last mean log predictive density of held-out rows, in nats",
    "dpdist_components": "Number of clusters",
    "dpdist_last_checkpoint_timestamp_seconds": "Time of the last checkpoint, in seconds since 1970",
}
#: Descriptions of counters, by name; they count from the start of a session of the run.
COUNTERS = {
    "dpdist_resubmissions_total": "Tasks started again because the cluster lost them",
    "dpdist_stuck_restarts_total": "Workers restarted because they made no progress",
}
#: The counter of each kind of note.
_COUNTED = {
    Happening.RESUBMITTED.value: "dpdist_resubmissions_total",
    Happening.STUCK.value: "dpdist_stuck_restarts_total",
}
_OPEN = {"newly-created", "connecting", "running"}


@contextmanager
def connection(client: Client) -> Iterator[None]:
    """Convert all errors of a call that mean a lost scheduler or client to :class:`ConnectionError`.

    A closed client raises various errors, so its status decides.
    """
    try:
        yield
    except OSError as error:
        raise ConnectionError(f"the Dask scheduler does not answer ({error}).") from error
    except (Exception, CancelledError) as error:
        if client.status in _OPEN:
            raise
        raise ConnectionError("the connection to the Dask scheduler is closed.") from error


def publish(client: Client, event: Event) -> None:
    """Log an event under its topic; raises :class:`ConnectionError` if the scheduler cannot be reached."""
    with connection(client):
        client.log_event(BATCH_TOPIC if isinstance(event, BatchEvent) else TOPIC, to_dict(event))


def serve_metrics(client: Client) -> None:
    """Make the client's scheduler serve the metrics; warns if the scheduler has no dpdist, and continues without."""
    try:
        with connection(client):
            client.register_plugin(MetricsPlugin())
    except ImportError as error:
        warnings.warn(
            f"the Dask scheduler needs this version of dpdist to show metrics ({error}); install it there. "
            "The run continues without metrics.",
            stacklevel=2,
        )


class SchedulerOutlet:
    """Sends events to the current scheduler, and makes it serve the metrics first.

    Parameters
    ----------
    client : returns the current client, which changes when the cluster is restarted; None while there is none
    """

    def __init__(self, client: Callable[[], Client | None]) -> None:
        self._client = client
        self._served: Client | None = None

    def send(self, event: Event) -> bool:
        """Send one event; returns whether it was sent."""
        client = self._client()
        if client is None:
            return False
        try:
            if self._served is not client or _about(event, Happening.RESTARTED):
                serve_metrics(client)
            publish(client, event)
        except ConnectionError:
            client = None  # the scheduler may be a new one when it answers, so the plugin is registered again
        self._served = client
        return client is not None


class MetricsPlugin(SchedulerPlugin):
    """Updates metrics from the events logged on a scheduler; those of a run are removed when it ends."""

    name = "dpdist-metrics"
    idempotent = True

    def __init__(self) -> None:
        self._sessions: dict[str, str] = {}

    def start(self, scheduler: Scheduler) -> None:
        """Process the events logged earlier."""
        for event in in_order(pair for topic in TOPICS for pair in scheduler.get_events(topic)):
            self.take(event)

    def log_event(self, topic: str, msg: object) -> None:
        """Called by the scheduler for every logged event."""
        if topic in TOPICS and (event := from_dict(msg)) is not None:
            self.take(event)

    async def close(self) -> None:
        """Called when the scheduler closes."""
        for run in list(self._sessions):
            self._forget(run)

    def take(self, event: Event) -> None:
        """Update the metrics from an event."""
        if self._sessions.get(event.run) != event.session:
            self._forget(event.run)
            self._sessions[event.run] = event.session
        if _about(event, Happening.ENDED):
            self._forget(event.run)
        elif isinstance(event, NoteEvent) and event.about in _COUNTED:
            _metric(_COUNTED[event.about]).labels(event.run).inc(event.count)
        else:
            for name, value in _gauges(event).items():
                _metric(name).labels(event.run).set(value)

    def _forget(self, run: str) -> None:
        self._sessions.pop(run, None)
        for name in (*GAUGES, *COUNTERS):
            with suppress(KeyError):
                _metric(name).remove(run)


def _gauges(event: Event) -> dict[str, float]:
    """The values of gauges that an event contains."""
    known: dict[str, float | None] = {}
    if isinstance(event, NoteEvent):
        known["dpdist_last_checkpoint_timestamp_seconds"] = event.time if _about(event, Happening.CHECKPOINT) else None
    elif isinstance(event, BatchEvent):
        known = {"dpdist_rows_per_second": event.rows_per_second, "dpdist_lap_share": event.done / event.of}
    else:
        known = {
            "dpdist_rows_per_second": event.rows_per_second,
            "dpdist_lap": event.lap,
            "dpdist_lap_share": 0.0 if event.of is None else event.lap / event.of,
            "dpdist_elbo_nats": event.elbo,
            f"dpdist_elbo_nats_per_{event.unit}": event.per_unit,
            "dpdist_components": event.n_components,
            "dpdist_holdout_nats_per_row": event.holdout,
        }
    return {name: value for name, value in known.items() if value is not None}


def _about(event: Event, happening: Happening) -> bool:
    return isinstance(event, NoteEvent) and event.about == happening.value


@cache
def _metric(name: str) -> Gauge | Counter:
    """The metric of this name, one per process: Dask serves all metrics of its process, which may have had other
    schedulers."""
    return Gauge(name, GAUGES[name], ["run"]) if name in GAUGES else Counter(name, COUNTERS[name], ["run"])
