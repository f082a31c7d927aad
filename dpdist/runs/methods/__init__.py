"""All methods, by the name that stored runs and specs refer to them by."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dpdist.core.errors import InputError
from dpdist.data import source_like
from dpdist.data.columns import Names
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.sva.sequence import SVAProblem
from dpdist.inference.topics.problem import METHODS as TOPIC_METHODS
from dpdist.runs.methods.base import AnyMethod
from dpdist.runs.methods.mixture import MemoizedMixture
from dpdist.runs.methods.sva import SequentialPass
from dpdist.runs.methods.topics import MemoizedTopics, OnlineTopics

METHODS: dict[str, AnyMethod] = {
    Problem.method: MemoizedMixture(),
    TOPIC_METHODS["posterior"]: MemoizedTopics(),
    TOPIC_METHODS["point"]: OnlineTopics(),
    SVAProblem.method: SequentialPass(),
}


def method_named(
    name: str, holdout: object = None, known: Names | None = None, settings: Mapping[str, Any] = MappingProxyType({})
) -> AnyMethod:
    """A method, which also scores held-out rows if there are any.

    Parameters
    ----------
    holdout : held-out rows, or their path, or None
    known, settings : names of the model's columns and the choice of columns, as for :func:`dpdist.data.source_like`

    Raises
    ------
    InputError
        If the method scores no held-out data, or they cannot be read.
    """
    method = METHODS[name]
    if holdout is None:
        return method
    try:
        source = source_like(holdout, known, settings)
    except InputError as error:
        raise InputError(f"held-out rows: {error}") from error
    return method.following(source)
