"""Topic models with point estimates on disk: runs without batch summaries, whose state is a running total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import zarr

from dpdist.inference.schedules import Batch, Stochastic
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.online import OnlineState
from dpdist.inference.topics.problem import OnlinePlan, PointProblem, TopicProblem
from dpdist.storage import schema
from dpdist.storage.checkpoint import Fitted, RunStore
from dpdist.storage.history import History, ProposalRow
from dpdist.storage.stored_parts import read_part, write_part
from dpdist.storage.stored_topics import (
    TOPICS,
    model_of,
    read_documents,
    read_words,
    write_documents,
    write_words,
)

#: What of a problem and of a state is stored in a form of its own; all else is plain values.
_PARTS = ("model", "schedule", "plan", "effort", "words")
_ARRAYS = ("words", "weights", "ids", "known", "records")


def _write_state(group: zarr.Group, state: OnlineState) -> None:
    group.attrs.update(_plain_fields(state, _ARRAYS))
    group.attrs["rest_weight"] = float(state.weights[-1])
    schema.write(group, "id", state.ids)
    schema.write(group, "topic_weight", state.weights[:-1])
    schema.write(group, "word_count", state.words)


def _read_state(group: zarr.Group) -> OnlineState:
    attrs: dict[str, Any] = dict(group.attrs)
    weights = np.append(schema.read(group, "topic_weight"), attrs["rest_weight"])
    plain = {field.name: attrs[field.name] for field in fields(OnlineState) if field.name not in _ARRAYS}
    return OnlineState(words=schema.read(group, "word_count"), weights=weights, ids=schema.read(group, "id"), **plain)


def _write_running(group: zarr.Group, totals: Sequence[OnlineState]) -> None:
    """A state has no batch summaries, and of totals but one."""
    (running,) = totals
    _write_state(group, running)
    if running.records:
        proposals = [ProposalRow.of(running.lap, record) for record in running.records]
        History((), proposals).write(group.create_group("history"))
    if running.known:
        write_documents(group.create_group("known"), running.known)


def _read_running(group: zarr.Group) -> list[OnlineState]:
    proposals = History.read(schema.subgroup(group, "history")).proposals if "history" in group else []
    known = tuple(read_documents(schema.subgroup(group, "known"))) if "known" in group else ()
    return [replace(_read_state(group), known=known, records=tuple(row.record for row in proposals))]


def _plain_fields(value: Any, apart: tuple[str, ...]) -> dict[str, Any]:
    """Field name -> value of a dataclass, some fields apart."""
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name not in apart}


def _plain(value: Any) -> Any:
    """A value as problems have it: JSON knows no tuples."""
    return tuple(value) if isinstance(value, list) else value


class OnlineTopicStore(RunStore):
    """A run of a topic model with point estimates of its weights, online or batch, or a model saved from one."""

    method = "online topics"
    kind = TOPICS._replace(write_batch_summaries=_write_running, read_batch_summaries=_read_running)

    @staticmethod
    def write_problem(group: zarr.Group, problem: PointProblem) -> None:
        group.attrs.update(
            {
                **_plain_fields(problem, _PARTS),
                "model": asdict(problem.model),
            }
        )
        for name in ("schedule", "plan", "effort"):
            write_part(group, name, getattr(problem, name))
        write_words(group, problem.words)

    @staticmethod
    def read_problem(group: zarr.Group) -> PointProblem:
        attrs: dict[str, Any] = dict(group.attrs)
        plain = {field.name: _plain(attrs[field.name]) for field in fields(TopicProblem) if field.name not in _PARTS}
        return TopicProblem(
            model=model_of(attrs["model"]),
            schedule=read_part(group, "schedule", (Stochastic, Batch)),
            plan=read_part(group, "plan", OnlinePlan),
            effort=read_part(group, "effort", Effort),
            words=read_words(group),
            **plain,
        )

    @staticmethod
    def write_fitted(group: zarr.Group, problem: PointProblem, fitted: Fitted) -> None:
        _write_state(group, fitted.total)

    @staticmethod
    def read_total(group: zarr.Group) -> OnlineState:
        return _read_state(group)
