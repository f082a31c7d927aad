"""Settings of topic models."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from dpdist.core.checks import COUNT, SCALE, Wanted, instance, number, one_of
from dpdist.core.settings import part, setting
from dpdist.inference.schedules import Batch, Memoized, Schedule, Stochastic
from dpdist.inference.topics.batches import MOST
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.hyperparameters import LEARNABLE
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.problem import (
    GLOBAL_WEIGHTS,
    METHODS,
    GlobalWeights,
    OnlinePlan,
    PointProblem,
    TopicPlan,
    TopicProblem,
    moves_of,
)
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess
from dpdist.runs.specs.base import LapSpec


def _are_learnable(names: Any) -> bool:
    is_sequence = isinstance(names, Collection) and not isinstance(names, str)
    return is_sequence and all(isinstance(name, str) and name in LEARNABLE for name in names)


#: Online inference with the learning rates of Bryant & Sudderth.
ONLINE = Stochastic(batches=20, forgetting=0.5)
#: Schedules by name.
SCHEDULES = {"memoized": Memoized(), "stochastic": ONLINE, "batch": Batch()}
#: Kind of moves for each kind of global weights.
PLANS: dict[str, type[TopicPlan | OnlinePlan]] = {"posterior": TopicPlan, "point": OnlinePlan}


@dataclass(frozen=True, eq=False, kw_only=True)
class TopicSpec(LapSpec):
    """The parameters of :class:`dpdist.HDPTopicModel`."""

    estimator = "dpdist:HDPTopicModel"

    concentration: float = setting(10.0, SCALE, "gamma of the global weights; larger values expect more topics.")
    document_concentration: float = setting(
        1.0, SCALE, "alpha; larger values keep documents' proportions closer to the global weights."
    )
    pseudocount: float = setting(
        0.5,
        SCALE,
        "eta of the topics' symmetric Dirichlet prior over words. If it is learned, start with a high value, so that "
        "topics form before they lose their rare words.",
    )
    learn: tuple[str, ...] = setting(
        LEARNABLE,
        Wanted(f"a sequence of names among {', '.join(LEARNABLE)}", _are_learnable, tuple),
        "Which of concentration, document_concentration and pseudocount are learned, starting from the given values. "
        "At the end of a lap they are set to the values that raise the ELBO most; online they move towards the best "
        "values for each mini-batch, at its learning rate.",
    )
    initial_topics: int = setting(
        400,
        COUNT,
        "Number of topics to start with, created from at most 1,000 documents; fewer if there are few documents.",
    )
    weights: GlobalWeights = setting(
        "posterior",
        one_of(*GLOBAL_WEIGHTS),
        "Form of the global weights of topics: 'posterior', Beta posteriors over sticks, or 'point', a point estimate.",
    )
    schedule: Schedule = part(
        SCHEDULES,
        (Memoized, Stochastic, Batch),
        "a schedule: Memoized, Stochastic or Batch",
        "How sums over batches are combined: Memoized, by default in at most 10 batches; Batch, over the whole corpus; "
        "or Stochastic, online inference in mini-batches of whole partitions, which never converges, so that "
        "max_laps or max_time ends it.",
        flat=True,
    )
    moves: TopicPlan | OnlinePlan | None = setting(
        None,
        instance("a dpdist.TopicPlan or dpdist.OnlinePlan", TopicPlan, OnlinePlan).or_none(
            "all moves that weights and schedule allow"
        ),
        "Which moves to make: with posterior weights births, merges and deletes (a TopicPlan); with a point estimate "
        "under Stochastic splits, merges and deletes (an OnlinePlan); with a point estimate under Batch none.",
        PLANS,
    )
    effort: Effort = part({"effort": Effort}, Effort, "a dpdist.Effort", "When the iterations for a document stop.")
    tolerance: float = setting(
        1e-5, number(least=0), "Change of the ELBO in a lap, in nats per token, below which the ELBO counts as settled."
    )

    @property
    def method(self) -> str:
        return METHODS[self.weights]

    def problem(self, vocabulary: int) -> TopicProblem[Any]:
        """The problem for a vocabulary of this size."""
        plan = moves_of(self.weights, self.schedule) if self.moves is None else self.moves
        return self._prepared(vocabulary, self.weights, self.schedule, plan)

    def online(self, vocabulary: int) -> PointProblem:
        """The problem of online mini-batches for a vocabulary of this size: the given schedule and moves if they are
        online, otherwise the defaults."""
        if isinstance(self.schedule, Stochastic):
            plan = OnlinePlan() if self.moves is None else self.moves
            return self._prepared(vocabulary, "point", self.schedule, plan)
        plan = self.moves if isinstance(self.moves, OnlinePlan) else OnlinePlan()
        return self._prepared(vocabulary, "point", ONLINE, plan)

    def _prepared(self, vocabulary: int, weights: GlobalWeights, schedule: Schedule, plan: Any) -> TopicProblem[Any]:
        allocation = HierarchicalDirichletProcess(self.concentration, self.document_concentration)
        model, seed = TopicModel(vocabulary, self.pseudocount, allocation), self.random_state
        schedule = schedule.in_batches(MOST)
        return TopicProblem(model, weights, schedule, plan, self.effort, seed, self.tolerance, self.learn)
