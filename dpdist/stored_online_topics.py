"""Topic models fitted online as generations on disk: runs without leaves, whose state is one running total."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import numpy as np
import zarr

from dpdist import schema
from dpdist.checkpoint import Fitted, RunStore
from dpdist.history import History, ProposalRow
from dpdist.schedules import Stochastic
from dpdist.stored_problem import plain_fields, subgroup
from dpdist.stored_topics import TOPICS, model_of
from dpdist.topics.documents import Effort
from dpdist.topics.online import OnlinePlan, OnlineProblem, OnlineState
from dpdist.topics.online_passes import OnlinePass

#: What of a problem and of a state is stored in a form of its own; all else is plain values.
_PARTS = ("model", "schedule", "plan", "effort")
_ARRAYS = ("words", "weights", "ids", "known")


def _write_state(group: zarr.Group, state: OnlineState) -> None:
    assert not state.known, "online fits keep no topics of documents"
    group.attrs.update({name: value for name, value in plain_fields(state).items() if name not in _ARRAYS})
    group.attrs["rest_weight"] = float(state.weights[-1])
    schema.write(group, "id", state.ids)
    schema.write(group, "topic_weight", state.weights[:-1])
    schema.write(group, "word_count", state.words)


def _read_state(group: zarr.Group) -> OnlineState:
    attrs: dict[str, Any] = dict(group.attrs)
    weights = np.append(schema.read(group, "topic_weight"), attrs["rest_weight"])
    plain = {field.name: attrs[field.name] for field in fields(OnlineState) if field.name not in _ARRAYS}
    return OnlineState(words=schema.read(group, "word_count"), weights=weights, ids=schema.read(group, "id"), **plain)


def _write_pass(group: zarr.Group, under_way: OnlinePass) -> None:
    group.attrs["seconds"] = under_way.seconds
    _write_state(group.create_group("state"), under_way.state)
    proposals = [ProposalRow.of(under_way.state.lap, record) for record in under_way.records]
    History((), proposals).write(group.create_group("history"))


def _read_pass(group: zarr.Group) -> OnlinePass:
    seconds: Any = group.attrs["seconds"]
    records = tuple(row.record for row in History.read(subgroup(group, "history")).proposals)
    return OnlinePass(_read_state(subgroup(group, "state")), records, seconds)


def _plain(value: Any) -> Any:
    """A value as problems have it: JSON knows no tuples."""
    return tuple(value) if isinstance(value, list) else value


class OnlineTopicStore(RunStore):
    """A run of a topic model fitted online, or a model saved from one."""

    method = "online topics"
    kind = TOPICS._replace(write_leaf=_write_pass, read_leaf=_read_pass)

    @staticmethod
    def write_problem(group: zarr.Group, problem: OnlineProblem) -> None:
        group.attrs.update(
            {
                **{name: value for name, value in plain_fields(problem).items() if name not in _PARTS},
                "model": asdict(problem.model),
                "schedule": plain_fields(problem.schedule),
                "plan": asdict(problem.plan),
                "effort": asdict(problem.effort),
            }
        )

    @staticmethod
    def read_problem(group: zarr.Group, families: Any) -> OnlineProblem:
        attrs: dict[str, Any] = dict(group.attrs)
        plain = {field.name: _plain(attrs[field.name]) for field in fields(OnlineProblem) if field.name not in _PARTS}
        return OnlineProblem(
            model=model_of(attrs["model"]),
            schedule=Stochastic(**attrs["schedule"]),
            plan=OnlinePlan(**attrs["plan"]),
            effort=Effort(**attrs["effort"]),
            **plain,
        )

    @staticmethod
    def write_fitted(group: zarr.Group, problem: OnlineProblem, fitted: Fitted) -> None:
        _write_state(group, fitted.total)

    @staticmethod
    def read_total(group: zarr.Group) -> OnlineState:
        return _read_state(group)
