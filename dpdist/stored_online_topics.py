"""Topic models fitted online, saved: online fits keep no checkpoints, and go on from a saved model by partial_fit."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import zarr

from dpdist import schema
from dpdist.checkpoint import Fitted, RunStore
from dpdist.schedules.stochastic import Stochastic
from dpdist.stored_problem import plain_fields
from dpdist.stored_topics import TOPICS, model_of
from dpdist.topics.documents import Effort
from dpdist.topics.online import OnlinePlan, OnlineProblem, OnlineState

#: Where a state stands: plain values beside its arrays.
_PLACE = ("step", "next_id", "lap", "visit")


class OnlineTopicStore(RunStore):
    """A model saved from an online fit."""

    method = "online topics"
    kind = TOPICS

    @staticmethod
    def write_problem(group: zarr.Group, problem: OnlineProblem) -> None:
        group.attrs.update(
            {
                "model": asdict(problem.model),
                "schedule": plain_fields(problem.schedule),
                "plan": asdict(problem.plan),
                "effort": asdict(problem.effort),
                "seed": problem.seed,
            }
        )

    @staticmethod
    def read_problem(group: zarr.Group, families: Any) -> OnlineProblem:
        attrs: dict[str, Any] = dict(group.attrs)
        return OnlineProblem(
            model=model_of(attrs["model"]),
            schedule=Stochastic(**attrs["schedule"]),
            plan=OnlinePlan(**attrs["plan"]),
            effort=Effort(**attrs["effort"]),
            seed=attrs["seed"],
        )

    @staticmethod
    def write_fitted(group: zarr.Group, problem: OnlineProblem, fitted: Fitted) -> None:
        state: OnlineState = fitted.total
        assert not state.known, "online fits keep no topics of documents"
        group.attrs.update({name: getattr(state, name) for name in _PLACE})
        group.attrs["rest_weight"] = float(state.weights[-1])
        schema.write(group, "id", state.ids)
        schema.write(group, "topic_weight", state.weights[:-1])
        schema.write(group, "word_count", state.words)

    @staticmethod
    def read_total(group: zarr.Group) -> OnlineState:
        attrs: dict[str, Any] = dict(group.attrs)
        weights = np.append(schema.read(group, "topic_weight"), attrs["rest_weight"])
        place = {name: attrs[name] for name in _PLACE}
        return OnlineState(schema.read(group, "word_count"), weights, ids=schema.read(group, "id"), **place)
