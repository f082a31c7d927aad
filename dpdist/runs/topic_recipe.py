"""What a person asks of a topic model, before the documents are seen, and the problem and the fit it comes to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from dpdist.core.checks import COUNT, SCALE, Wanted, check_fields, instance, number, whole
from dpdist.core.errors import InputError
from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.inference.schedules import Batch, Memoized, Stochastic
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.hyperparameters import LEARNABLE
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.online import OnlinePlan, OnlineProblem
from dpdist.inference.topics.problem import TopicPlan, TopicProblem
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess
from dpdist.runs.fitting import Fit, Limits
from dpdist.runs.online_topic_fitting import online_fit, pose_batch, pose_online
from dpdist.runs.topic_fitting import topic_fit

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
            schedule=instance("a schedule: Memoized, Stochastic or Batch", *_SCHEDULES).or_none("the default"),
            moves=instance("a dpdist.TopicPlan or dpdist.OnlinePlan", TopicPlan, OnlinePlan).or_none("the default"),
            effort=instance("a dpdist.Effort", Effort).or_none("the default"),
            tolerance=number(least=0),
            seed=whole(0),
        )

    def begin(self, source: Source, limits: Limits) -> Callable[[Backend], Fit]:
        """What looks for the first topics and gives the fit; everything that needs no look at documents is checked.

        Raises
        ------
        InputError
            If the moves are not those of the schedule, or nothing would end the fit.
        """
        vocabulary, topics = source.shape[1], self.initial_topics
        if isinstance(self.schedule, Batch):
            return partial(online_fit, self.batch(vocabulary, self.schedule), topics, source, limits)
        if isinstance(self.schedule, Stochastic):
            if limits == Limits(None, None):
                raise InputError("an online fit ends with max_laps or max_time; both are None. Give one of them.")
            return partial(online_fit, self.online(vocabulary), topics, source, limits)
        return partial(topic_fit, self.memoized(vocabulary), topics, source, limits)

    def memoized(self, vocabulary: int) -> TopicProblem:
        """The problem of memoized inference over so many words."""
        if not isinstance(self.moves, TopicPlan | None):
            raise InputError(
                f"the moves of a Memoized schedule should be a TopicPlan; got {type(self.moves).__name__}. "
                "Give a TopicPlan, or a Stochastic schedule."
            )
        schedule = Memoized(batches=20) if self.schedule is None else self.schedule
        plan = TopicPlan() if self.moves is None else self.moves
        return TopicProblem(
            self._model(vocabulary), schedule, plan, self._effort(), self.seed, self.tolerance, self.learn
        )

    def online(self, vocabulary: int) -> OnlineProblem:
        """The problem of online inference over so many words."""
        schedule, plan = self.online_choices()
        return pose_online(self._model(vocabulary), schedule, plan, self._effort(), self.seed, self.learn)

    def batch(self, vocabulary: int, schedule: Batch) -> OnlineProblem:
        """The problem of batch inference with a point estimate (bHDP) over so many words."""
        model, effort = self._model(vocabulary), self._effort()
        return pose_batch(model, schedule, self.moves, effort, self.seed, self.tolerance, self.learn)

    def online_choices(self) -> tuple[Stochastic, Any]:
        """The schedule and moves of online inference: those asked for, or defaults where others were."""
        if isinstance(self.schedule, Stochastic):
            return self.schedule, self.moves
        return Stochastic(forgetting=0.5), None if isinstance(self.moves, TopicPlan) else self.moves

    def _model(self, vocabulary: int) -> TopicModel:
        allocation = HierarchicalDirichletProcess(self.concentration, self.document_concentration)
        return TopicModel(vocabulary, self.pseudocount, allocation)

    def _effort(self) -> Effort:
        return Effort() if self.effort is None else self.effort


def _are_learnable(names: Any) -> bool:
    is_sequence = isinstance(names, Collection) and not isinstance(names, str)
    return is_sequence and all(isinstance(name, str) and name in LEARNABLE for name in names)
