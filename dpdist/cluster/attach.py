"""Watching a run from afar: what its scheduler remembers of it, then what happens, drawn as a local run draws it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console

from dpdist.cluster.metrics import connection
from dpdist.runs.events import (
    TOPICS,
    Event,
    Happening,
    NoteEvent,
    from_dict,
    in_order,
)
from dpdist.runs.progress import LiveProgress

#: Seconds without news after which the scheduler is asked whether there were any: a client that had to connect
#: again has lost its subscription without being told.
SILENCE = 2.0

#: What a subscription hears: when the scheduler had it, and a message.
Heard = queue.SimpleQueue[tuple[float, object]]


class EventSource(Protocol):
    """What following asks of a Dask client."""

    def get_events(self, topic: str) -> Any:
        """What the scheduler kept: pairs of the time of arrival and a message."""

    def subscribe_topic(self, topic: str, handler: Callable[[tuple[float, object]], None]) -> None:
        """Call `handler` with each such pair to come."""

    def unsubscribe_topic(self, topic: str) -> None:
        """Call it no more."""


def follow(client: EventSource, console: Console, run: str, silence: float = SILENCE) -> NoteEvent | None:
    """Draw what has happened to a run and what happens, until it ends or Ctrl-C.

    Parameters
    ----------
    client : of the run's scheduler; its subscriptions to the topics of events are used
    console : to draw on
    run : label of the run
    silence : seconds without news after which the scheduler is asked

    Returns
    -------
    NoteEvent or None : the note that ended the run; None after Ctrl-C

    Raises
    ------
    ConnectionError
        If the scheduler is gone, which a run may survive.
    """
    with _Screen(console) as screen, closing(listen(client, run, silence)) as heard:
        try:
            for events in heard:
                for event in events:
                    screen.show(event)
                last = events[-1] if events else None
                if isinstance(last, NoteEvent) and last.about == Happening.ENDED.value:
                    return last
        except KeyboardInterrupt:
            return None
    raise AssertionError("a run is listened to until it ends")


def listen(client: EventSource, run: str, silence: float = SILENCE) -> Generator[list[Event], None, None]:
    """Events of a run in order, none doubled: first those its scheduler kept, then each as it comes.

    Yields
    ------
    events : what is new; none where the scheduler was asked and had nothing
    """
    heard: Heard = queue.SimpleQueue()
    last: dict[str, int] = {}
    with _subscribed(client, heard):
        while True:
            yield _unheard(_kept(client, run), last)
            yield from _live(heard, run, last, silence)


def _live(heard: Heard, run: str, last: dict[str, int], silence: float) -> Iterator[list[Event]]:
    """Events as they come, until one is missing or there is silence."""
    while True:
        try:
            event = from_dict(heard.get(timeout=silence)[1])
        except queue.Empty:
            return
        if event is None or event.run != run:
            continue
        if event.sequence > last.get(event.session, 0) + 1:
            return
        yield _unheard([event], last)


def _kept(client: EventSource, run: str) -> list[Event]:
    with connection(client):
        kept = [pair for topic in TOPICS for pair in client.get_events(topic)]
    return [event for event in in_order(kept) if event.run == run]


def _unheard(events: list[Event], last: dict[str, int]) -> list[Event]:
    """Those events that come after the last one of their session, which they then are."""
    new = [event for event in events if event.sequence > last.get(event.session, 0)]
    last.update((event.session, event.sequence) for event in new)
    return new


@contextmanager
def _subscribed(client: EventSource, heard: Heard) -> Iterator[None]:
    with connection(client):
        for topic in TOPICS:
            client.subscribe_topic(topic, heard.put)
    try:
        yield
    finally:
        with suppress(ConnectionError), connection(client):
            for topic in TOPICS:
                client.unsubscribe_topic(topic)


class _Screen:
    """A context that draws a run's events, each session of it as a run of its own would."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: LiveProgress | None = None
        self._session = ""

    def show(self, event: Event) -> None:
        """Draw one event."""
        if self._progress is None or event.session != self._session:
            self.close()
            self._progress, self._session = LiveProgress(self._console), event.session
            self._progress.__enter__()
        self._progress.tell(event)

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
