"""What a person asks of a topic model, before the documents are seen, and the problem it comes to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from dpdist.core.checks import COUNT, SCALE, Wanted, check_fields, instance, number, one_of, whole
from dpdist.inference.schedules import Batch, Memoized, Schedule, Stochastic
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.hyperparameters import LEARNABLE
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.problem import (
    GLOBAL_WEIGHTS,
    GlobalWeights,
    OnlinePlan,
    PointProblem,
    TopicPlan,
    TopicProblem,
    moves_of,
)
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess

_SCHEDULES = (Memoized, Stochastic, Batch)


@dataclass(frozen=True, eq=False)
class TopicRecipe:
    """The parameters of :class:`dpdist.HDPTopicModel`, limits apart, checked.

    Raises
    ------
    InputError
        If one is not what was asked for.
    """

    concentration: float
    document_concentration: float
    pseudocount: float
    learn: Any
    initial_topics: int
    weights: Any
    schedule: Any
    moves: Any
    effort: Any
    tolerance: float
    seed: int

    def __post_init__(self) -> None:
        check_fields(
            self,
            **dict.fromkeys(LEARNABLE, SCALE),
            learn=Wanted(f"a sequence of names among {', '.join(LEARNABLE)}", _are_learnable, tuple),
            initial_topics=COUNT,
            weights=one_of(*GLOBAL_WEIGHTS),
            schedule=instance("a schedule: Memoized, Stochastic or Batch", *_SCHEDULES).or_none("the default"),
            moves=instance("a dpdist.TopicPlan or dpdist.OnlinePlan", TopicPlan, OnlinePlan).or_none("the default"),
            effort=instance("a dpdist.Effort", Effort).or_none("the default"),
            tolerance=number(least=0),
            seed=whole(0),
        )

    def problem(self, vocabulary: int) -> TopicProblem[Any]:
        """What is asked for, over so many words."""
        schedule = Memoized(batches=20) if self.schedule is None else self.schedule
        plan = moves_of(self.weights, schedule) if self.moves is None else self.moves
        return self._posed(vocabulary, self.weights, schedule, plan)

    def online(self, vocabulary: int) -> PointProblem:
        """What mini-batches over so many words are taken in by: the schedule and moves asked for where they are those
        of online inference, else its usual ones."""
        if isinstance(self.schedule, Stochastic):
            return self._posed(vocabulary, "point", self.schedule, OnlinePlan() if self.moves is None else self.moves)
        plan = self.moves if isinstance(self.moves, OnlinePlan) else OnlinePlan()
        return self._posed(vocabulary, "point", Stochastic(forgetting=0.5), plan)

    def _posed(self, vocabulary: int, weights: GlobalWeights, schedule: Schedule, plan: Any) -> TopicProblem[Any]:
        model, effort = self._model(vocabulary), Effort() if self.effort is None else self.effort
        return TopicProblem(model, weights, schedule, plan, effort, self.seed, self.tolerance, self.learn)

    def _model(self, vocabulary: int) -> TopicModel:
        allocation = HierarchicalDirichletProcess(self.concentration, self.document_concentration)
        return TopicModel(vocabulary, self.pseudocount, allocation)


def _are_learnable(names: Any) -> bool:
    is_sequence = isinstance(names, Collection) and not isinstance(names, str)
    return is_sequence and all(isinstance(name, str) and name in LEARNABLE for name in names)
