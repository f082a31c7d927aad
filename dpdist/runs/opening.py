"""Runs of any kind of model: opened, and gone on with, by what made them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.inference.mixture.engine import Step, steps
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.topics.engine import topic_steps
from dpdist.inference.topics.online import OnlineProblem
from dpdist.inference.topics.online_passes import point_passes
from dpdist.inference.topics.problem import TopicProblem
from dpdist.runs.fitting import Fit, Limits, resumed
from dpdist.storage.checkpoint import RunStore, Store
from dpdist.storage.generations import read_attributes
from dpdist.storage.stored_online_topics import OnlineTopicStore
from dpdist.storage.stored_sequence import SequentialStore
from dpdist.storage.stored_topics import TopicStore


class _Kind(NamedTuple):
    """A kind of runs: where it is stored, its steps, and the command that makes it."""

    store: type[RunStore]
    run: Callable[[Any, Source, Any, Backend], Iterator[Step]]
    command: str


_KINDS = {
    Store.method: _Kind(Store, steps, "fit"),
    TopicStore.method: _Kind(TopicStore, topic_steps, "topics"),
    OnlineTopicStore.method: _Kind(OnlineTopicStore, point_passes, "topics"),
}


def open_run(path: str | os.PathLike[str]) -> RunStore:
    """The store of a run, or of a model saved from one, of mixtures or topics.

    Raises
    ------
    CheckpointError
        If there is none, or it was made otherwise.
    """
    return _KINDS.get(read_attributes(path)["method"], _KINDS[Store.method]).store.open(path)


def open_topics(path: str | os.PathLike[str]) -> TopicStore | OnlineTopicStore:
    """The store of a topic model, however it was fitted; raises as :func:`open_run` does."""
    online = read_attributes(path)["method"] == OnlineTopicStore.method
    return OnlineTopicStore.open(path) if online else TopicStore.open(path)


def store_of(problem: Problem | TopicProblem | OnlineProblem) -> type[RunStore]:
    """Where the runs of such a problem are stored."""
    if isinstance(problem, OnlineProblem):
        return OnlineTopicStore
    return TopicStore if isinstance(problem, TopicProblem) else Store


def command_of(path: str | os.PathLike[str]) -> str:
    """The command that makes what is stored at `path`; :class:`CheckpointError` if nothing readable is there."""
    method = read_attributes(path)["method"]
    return "sva" if method == SequentialStore.method else _KINDS[method].command


def continued(store: RunStore, source: Source, backend: Backend, limits: Limits) -> Fit:
    """The run in `store`, to go on from its checkpoint; raises as :func:`dpdist.runs.fitting.resumed` does."""
    return resumed(store, source, backend, limits, _KINDS[store.method].run)
