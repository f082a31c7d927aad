"""Following a run from elsewhere: its stored events, then new ones, drawn as for a local run.

The scheduler is polled. A client that had to reconnect silently loses its subscriptions to events, but the events that
a scheduler stores (the last thousand of a topic) include all that happened between two polls.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Protocol

from rich.console import Console

from dpdist.cluster.metrics import connection
from dpdist.runs.events import TOPICS, Event, Happening, NoteEvent, in_order
from dpdist.runs.progress import LiveProgress

#: Seconds between two polls.
EVERY = 1.0


class EventSource(Protocol):
    """The part of a Dask client that is used here."""

    status: str

    def get_events(self, topic: str) -> Iterable[tuple[float, object]]:
        """The stored events of a topic: pairs of the time of arrival and a message."""


def follow(client: EventSource, console: Console, run: str, every: float = EVERY) -> NoteEvent | None:
    """Draw the past and new events of a run until it ends or Ctrl-C; the caller prints the final sentence.

    Parameters
    ----------
    client : of the run's scheduler
    console : to draw on
    run : label of the run
    every : seconds between two polls

    Returns
    -------
    NoteEvent or None : the note that ended the run; None after Ctrl-C

    Raises
    ------
    ConnectionError
        If the scheduler is gone, which a run may survive.
    """
    session = ""
    with ExitStack() as screen:
        try:
            for events in listen(client, run, every):
                for event in events:
                    # An end followed by a later session did not end the run.
                    last = event is events[-1]
                    if last and isinstance(event, NoteEvent) and event.about == Happening.ENDED.value:
                        return event
                    if event.session != session:
                        screen.close()
                        session, progress = event.session, screen.enter_context(LiveProgress(console))
                    progress.tell(event)
        except KeyboardInterrupt:
            return None
    raise AssertionError("a run is listened to until it ends")


def listen(client: EventSource, run: str, every: float = EVERY) -> Iterator[list[Event]]:
    """Events of a run without duplicates: first the stored ones, then the new ones of each poll."""
    last: dict[tuple[str, str], int] = {}
    while True:
        with connection(client):
            kept = [pair for topic in TOPICS for pair in client.get_events(topic)]
        new = [
            event
            for event in in_order(kept)
            if event.run == run and event.sequence > last.get((event.kind, event.session), 0)
        ]
        last.update(((event.kind, event.session), event.sequence) for event in new)
        yield new
        time.sleep(every)
