"""What a person asks of a topic model, before the documents are seen, and the problem it comes to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from dpdist.core.checks import COUNT, SCALE, Wanted, check_fields, instance, number, whole
from dpdist.core.errors import InputError
from dpdist.inference.schedules import Batch, Memoized, Stochastic
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.hyperparameters import LEARNABLE
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.online import OnlinePlan, OnlineProblem
from dpdist.inference.topics.problem import TopicPlan, TopicProblem
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

    def online_problem(self, vocabulary: int) -> OnlineProblem:
        """The problem of inference with point estimates, online or batch as the schedule is, over so many words."""
        return self.batch(vocabulary, self.schedule) if isinstance(self.schedule, Batch) else self.online(vocabulary)

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


def pose_online(
    model: TopicModel, schedule: Stochastic, moves: Any, effort: Effort, seed: int, learn: tuple[str, ...] = ()
) -> OnlineProblem:
    """The problem of an online fit.

    Parameters
    ----------
    moves : OnlinePlan, or None for that of oHDP-SM

    Raises
    ------
    InputError
        If the moves are others, batches are to overlap, or hyperparameters to be learned that cannot be.
    """
    if not isinstance(moves, OnlinePlan | None):
        raise InputError(
            f"the moves of a Stochastic schedule should be an OnlinePlan; got {type(moves).__name__}. "
            "Give dpdist.OnlinePlan, or a Memoized schedule."
        )
    if schedule.lookahead:
        raise InputError("online topics take one mini-batch after the other; leave lookahead of Stochastic at 0.")
    return OnlineProblem(model, schedule, OnlinePlan() if moves is None else moves, effort, seed, learn)


def pose_batch(
    model: TopicModel,
    schedule: Batch,
    moves: Any,
    effort: Effort,
    seed: int,
    tolerance: float,
    learn: tuple[str, ...] = (),
) -> OnlineProblem:
    """The problem of batch inference with a point estimate of the global weights (bHDP).

    Parameters
    ----------
    moves : None, for there are none
    tolerance : change of the bound in nats a token below which an update counts as settled

    Raises
    ------
    InputError
        If there are moves, or hyperparameters to be learned that cannot be.
    """
    if moves is not None:
        raise InputError(
            f"topics make no moves under a Batch schedule; got {type(moves).__name__}. Leave moves out, or choose a "
            "Memoized schedule."
        )
    plan = OnlinePlan(split=False, merge=False)
    return OnlineProblem(model, schedule, plan, effort, seed, learn, tolerance)
