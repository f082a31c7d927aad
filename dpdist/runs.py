"""Runs of any kind of model: opened, and gone on with, by what made them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dpdist.backends.base import Backend
from dpdist.checkpoint import RunStore, Store
from dpdist.engine import Step, steps
from dpdist.errors import CheckpointError
from dpdist.families.base import Family
from dpdist.fitting import Fit, Limits, resumed
from dpdist.sources.base import Source
from dpdist.storage import read_attributes
from dpdist.stored_online_topics import OnlineTopicStore
from dpdist.stored_sequence import SequentialStore
from dpdist.stored_topics import TopicStore
from dpdist.topics.engine import topic_steps


class _Kind(NamedTuple):
    """A kind of runs: where it is stored, and its steps."""

    store: type[RunStore]
    run: Callable[[Any, Source, Any, Backend], Iterator[Step]]


_KINDS = {Store.method: _Kind(Store, steps), TopicStore.method: _Kind(TopicStore, topic_steps)}
_COMMANDS = {Store.method: "fit", SequentialStore.method: "sva", TopicStore.method: "topics"}


def open_run(path: str | os.PathLike[str]) -> RunStore:
    """The store of a run, or of a model saved from one, of mixtures or topics.

    Raises
    ------
    CheckpointError
        If there is none, or it was made otherwise.
    """
    method = read_attributes(path)["method"]
    if method == OnlineTopicStore.method:
        return OnlineTopicStore.open(path)
    return _KINDS[method if method in _KINDS else Store.method].store.open(path)


def command_of(path: str | os.PathLike[str]) -> str:
    """The command that makes what is stored at `path`; :class:`CheckpointError` if nothing that one makes is there."""
    method = read_attributes(path)["method"]
    if method == OnlineTopicStore.method:
        raise _not_a_run(path)
    return _COMMANDS[method]


def continued(
    store: RunStore, source: Source, backend: Backend, limits: Limits, families: dict[str, type[Family]] | None = None
) -> Fit:
    """The run in `store`, to go on from its checkpoint; raises as :func:`dpdist.fitting.resumed` does."""
    if isinstance(store, OnlineTopicStore):
        raise _not_a_run(store.path)
    return resumed(store, source, backend, limits, families, _KINDS[store.method].run)


def _not_a_run(path: str | os.PathLike[str]) -> CheckpointError:
    return CheckpointError(
        f"{path} is a topic model fitted online, not a run; read it with dpdist.load, and go on by partial_fit."
    )
