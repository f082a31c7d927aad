"""What people who open a stored model see beside what it is made from, whichever method fitted it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Protocol

import numpy as np

from dpdist.inference.mixture.problem import Problem
from dpdist.inference.prediction import MixturePredictor, Predictor, predictor_of
from dpdist.inference.sva.base import SVAState
from dpdist.inference.sva.sequence import SVAProblem
from dpdist.inference.topics.prediction import predictor_of_topics
from dpdist.inference.topics.problem import TopicProblem
from dpdist.inference.transform import Description
from dpdist.models.sufficient_statistics import Summary


class Shown(Protocol):
    """Components as people see them."""

    def weights(self) -> tuple[np.ndarray, float]:
        """Weights (K,), and what is left to components not yet seen."""

    def exported(self) -> Description:
        """Arrays that describe the components, in people's coordinates."""


@dataclass(frozen=True)
class _Topics:
    """Topics, which their counts of words describe already; `shares` (K + 1,) are the weights, the rest's the last."""

    shares: np.ndarray

    def weights(self) -> tuple[np.ndarray, float]:
        """As :class:`Shown` has them."""
        return self.shares[:-1], float(self.shares[-1])

    def exported(self) -> Description:
        """Nothing more."""
        return {}


@singledispatch
def shown(problem: Any, total: Any, ids: np.ndarray) -> Shown:
    """A model of some problem, by what it is made from and its components' ids."""
    raise TypeError(f"no model of a {type(problem).__name__} is known")


@shown.register
def _(problem: Problem, total: Summary, ids: np.ndarray) -> Predictor:
    return MixturePredictor(problem.model, problem.preparation, total, ids)


@shown.register
def _(problem: SVAProblem, total: SVAState, ids: np.ndarray) -> Predictor:
    return predictor_of(problem, total)


@shown.register(TopicProblem)
def _(problem: TopicProblem[Any], total: Any, ids: np.ndarray) -> _Topics:
    return _Topics(predictor_of_topics(problem, total, ids).weights)
