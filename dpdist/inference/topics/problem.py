"""What is fixed for a whole run of a topic model, apart from the documents and the place where it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpdist.core.checks import COUNT, FLAG, check_fields, whole
from dpdist.inference.schedules.base import Schedule
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.hyperparameters import check_learnable, learned
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.summary import TopicSummary


@dataclass(frozen=True)
class TopicPlan:
    """Which moves a run makes, and how hard it tries.

    Parameters
    ----------
    birth, merge, delete : whether to try them
    topics : new topics looked for at once, at least; where there are more in use, as many as these
    most : new topics looked for at once, at most
    sample : documents in which they are looked for
    iterations : of batch inference on that sample
    tries : refused births in a row after which no more are tried until topics change
    refine : laps that topics which do not pay yet are fitted on, while they may
    rest : laps that a topic rests after it was refused to go
    partners : topics each topic may be made one with, per lap
    """

    birth: bool = True
    merge: bool = True
    delete: bool = True
    topics: int = 10
    most: int = 200
    sample: int = 1000
    iterations: int = 15
    tries: int = 4
    refine: int = 3
    rest: int = 20
    partners: int = 3

    def __post_init__(self) -> None:
        check_fields(
            self,
            " of TopicPlan",
            **dict.fromkeys(("birth", "merge", "delete"), FLAG),
            **dict.fromkeys(("topics", "most", "sample", "iterations"), COUNT),
            **dict.fromkeys(("tries", "refine", "rest", "partners"), whole(0)),
        )


@dataclass(frozen=True, eq=False)
class TopicProblem:
    """The model and how to fit it.

    Parameters
    ----------
    model : TopicModel
    schedule : how summaries become the total
    plan : the moves
    effort : how far documents are iterated
    seed : key of every draw
    tolerance : change of the ELBO in nats a token below which a lap counts as settled
    learn : hyperparameters of the model that every lap's end sets anew, as
        :mod:`dpdist.inference.topics.hyperparameters` says
    words : (W,) the words of the documents' columns, where they are known; nothing but what is told depends on them

    Raises
    ------
    InputError
        If `learn` names none of them.
    """

    model: TopicModel
    schedule: Schedule
    plan: TopicPlan = field(default_factory=TopicPlan)
    effort: Effort = field(default_factory=Effort)
    seed: int = 0
    tolerance: float = 1e-5
    learn: tuple[str, ...] = ()
    words: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_learnable(self.learn, self.model.vocabulary)

    def model_of(self, total: TopicSummary) -> TopicModel:
        """The model with the hyperparameters that are learned as they are best for sums over the whole corpus."""
        return learned(self.model, total, self.learn) if self.learn else self.model
