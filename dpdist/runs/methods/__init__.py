"""Every method there is, by the name under which its runs are stored and by which its spec asks for it."""

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
    """A method, which follows the score of held-out rows if there are any.

    Parameters
    ----------
    holdout : rows or where they are, or None
    known, settings : names of the columns and what chose them, as of :func:`dpdist.data.source_like`

    Raises
    ------
    InputError
        If the method follows no score, or they cannot be read.
    """
    method = METHODS[name]
    if holdout is None:
        return method
    try:
        source = source_like(holdout, known, settings)
    except InputError as error:
        raise InputError(f"of the rows held out: {error}") from error
    return method.following(source)
