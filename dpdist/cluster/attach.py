"""Watching a run from afar: what its scheduler remembers of it, then what happens, drawn as a local run draws it.

The scheduler is asked again and again: Dask's subscriptions are lost, without a word, by a client that had to connect
again, while what a scheduler keeps (the last thousand events of a topic) has all that happens between two questions.
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

#: Seconds between two questions.
EVERY = 1.0


class EventSource(Protocol):
    """What following asks of a Dask client."""

    status: str

    def get_events(self, topic: str) -> Iterable[tuple[float, object]]:
        """What the scheduler kept: pairs of the time of arrival and a message."""


def follow(client: EventSource, console: Console, run: str, every: float = EVERY) -> NoteEvent | None:
    """Draw what has happened to a run and what happens, until it ends or Ctrl-C; the last word is for the caller.

    Parameters
    ----------
    client : of the run's scheduler
    console : to draw on
    run : label of the run
    every : seconds between two questions

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
                    # One that a later session follows has not ended the run.
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
    """Events of a run, none doubled: first those its scheduler kept, then what is new at each question."""
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
