"""Settings that are fixed for a whole run of a topic model: its global weights, its schedule and its moves.

Names of the combinations of these three choices:

==========  ==========  ====================  ==================================================================
weights     schedule    moves                 method
==========  ==========  ====================  ==================================================================
posterior   Memoized    births, merges,       memoized inference, Hughes, Kim & Sudderth (AISTATS 2015)
                        deletes
posterior   Batch       births, merges,       the same with the whole corpus as one batch, ``Memoized(batches=1)``
                        deletes
point       Batch       none                  bHDP, Bryant & Sudderth (NeurIPS 2012)
point       Stochastic  none                  oHDP, ibid.
point       Stochastic  splits, merges,       oHDP-SM, ibid., with deletes
                        deletes
==========  ==========  ====================  ==================================================================

Other combinations are refused: births and deletes compare numbers of topics on the bound of the whole corpus. A
stochastic schedule does not have this bound, and the density of a point estimate cannot compare numbers of topics (see
:mod:`dpdist.models.allocations.point_weights`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Generic, Literal, TypeVar

from scipy.special import ndtri

from dpdist.core.checks import COUNT, FLAG, SCALE, number, whole
from dpdist.core.errors import InputError
from dpdist.core.settings import check_settings, documented, setting
from dpdist.core.stored import Stored
from dpdist.data.columns import Names
from dpdist.inference.schedules import Schedule
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.hyperparameters import check_learnable
from dpdist.inference.topics.model import TopicModel

#: Representation of global weights: Beta posteriors of sticks, or a point estimate.
GlobalWeights = Literal["posterior", "point"]
GLOBAL_WEIGHTS: tuple[GlobalWeights, ...] = ("posterior", "point")
#: Methods by their weights, as stored runs name them.
METHODS: dict[GlobalWeights, str] = {"posterior": "memoized topics", "point": "online topics"}


@documented
@dataclass(frozen=True)
class TopicPlan:
    """Moves at the end of each lap, judged on the bound of the whole corpus, and their effort."""

    birth: bool = setting(True, FLAG, "Whether to try births.")
    merge: bool = setting(True, FLAG, "Whether to try merges.")
    delete: bool = setting(True, FLAG, "Whether to try deletes.")
    births: int = setting(
        400,
        COUNT,
        "Largest number of new topics sought at once. The number of topics in use is subtracted, but at least 50 are "
        "sought (or births, if that is less). They replace at most a quarter as many topics; if there are fewer topics "
        "than that, they replace all, and after these births were refused a quarter of the topics.",
    )
    sample: int = setting(1000, COUNT, "Number of documents in which new topics are sought.")
    iterations: int = setting(5, COUNT, "Number of iterations of batch inference on that sample.")
    tries: int = setting(
        2,
        whole(0),
        "Number of births refused in a row after which no more are tried until topics change, except for one that "
        "replaces some of few topics; the same for deletes.",
    )
    refine: int = setting(
        6,
        whole(0),
        "Largest number of laps in which changed topics without a gain are fitted further, if they may still gain.",
    )
    cooldown: int = setting(
        20, whole(0), "Number of laps in which the delete of a topic is not tried again after it was refused."
    )
    partners: int = setting(
        3, whole(0), "Number of most similar topics with which a merge of each topic is tried, one per lap in turn."
    )

    def __post_init__(self) -> None:
        check_settings(self, " of TopicPlan")


@documented
@dataclass(frozen=True)
class OnlinePlan:
    """Moves after each mini-batch, judged on its bound, and their effort.

    Without moves it is oHDP, with splits and merges oHDP-SM.
    """

    split: bool = setting(True, FLAG, "Whether to try splits.")
    merge: bool = setting(True, FLAG, "Whether to try merges.")
    delete: bool = setting(True, FLAG, "Whether to try deletes.")
    splits: int = setting(10, whole(0), "Largest number of topics for which a split is tried.")
    merges: int = setting(
        50, whole(0), "Largest number of pairs of topics with positive covariance of theta for which a merge is tried."
    )
    merge_rate: float = setting(
        0.25,
        number(above=0, most=1),
        "Merges of these pairs are tried once the rate of the global update has fallen to this value. As long as "
        "topics are close to their start, merges seem to gain even for pairs that differ later. At 1, merges are tried "
        "from the first mini-batch on, as in the paper.",
    )
    alike: int = setting(
        20,
        whole(0),
        "Number of smallest topics for which a merge with the topic of most similar words is tried, whatever their "
        "covariance: topics that no document uses have none. The paper has no such merges; 0 turns them off.",
    )
    deletes: int = setting(
        5,
        whole(0),
        "Largest number of small topics for which a delete is tried (:mod:`dpdist.inference.topics.online_deletes`); "
        "at most one is deleted.",
    )
    lasting: bool = setting(
        True,
        FLAG,
        "Whether a merge must also raise the bound with the topics' own counts in place of the words seen "
        "(:mod:`dpdist.inference.topics.merges`). If not, as in the paper, topics that few documents use are soon "
        "lost; if so, duplicates of other topics stay longer.",
    )
    iterations: int = setting(20, COUNT, "Number of restricted iterations of a split.")
    smoothing: float = setting(
        0.1,
        SCALE,
        "Number of tokens. A split divides a topic's lambda word by word in the proportions of the mini-batch's tokens "
        "of the word, plus this many tokens in the proportions of all tokens of the topic. With more, splits follow "
        "the noise of a mini-batch less, and rare words distinguish topics less.",
    )
    max_topics: int = setting(1000, COUNT, "Largest number of topics that splits may reach.")
    confidence: float | None = setting(
        None,
        number(above=0.5, below=1).or_none("any gain"),
        "Confidence that other documents gain too, below which a move is refused. It is computed from the standard "
        "error of the gain over the mini-batch's documents (:mod:`dpdist.inference.topics.confidence`). None: any gain "
        "on the mini-batch is accepted.",
    )

    def __post_init__(self) -> None:
        check_settings(self, " of OnlinePlan")

    @property
    def errors(self) -> float | None:
        """Number of standard errors that a gain must exceed."""
        return None if self.confidence is None else float(ndtri(self.confidence))


Plan = TypeVar("Plan", bound=TopicPlan | OnlinePlan, covariant=True)

#: No moves, for a point estimate.
NO_MOVES = OnlinePlan(split=False, merge=False, delete=False)
#: Default moves for each combination of weights and schedule, by their names.
MOVES: dict[tuple[str, str], TopicPlan | OnlinePlan] = {
    ("posterior", "memoized"): TopicPlan(),
    ("posterior", "batch"): TopicPlan(),
    ("point", "batch"): NO_MOVES,
    ("point", "stochastic"): OnlinePlan(),
}


@dataclass(frozen=True, eq=False)
class TopicProblem(Generic[Plan]):
    """The model and how to fit it.

    Parameters
    ----------
    model : TopicModel
    weights : "posterior" or "point", the representation of global weights
    schedule : how sums over batches are combined into those of the next posterior. That of Bryant & Sudderth is
        ``Stochastic(delay=1, forgetting=0.5)``; but with kappa <= 0.5 the sum of squared rates diverges, which violates
        the Robbins-Monro conditions, so the noise of mini-batches does not vanish
    plan : the moves
    effort : how far documents are iterated
    seed : key of every random draw
    tolerance : change of the ELBO in nats per token below which a lap counts as settled
    learn : hyperparameters of the model that are updated at every lap end or mini-batch, see
        :mod:`dpdist.inference.topics.hyperparameters`
    words : (W,) the words of the documents' columns, if known; used in reports only

    Raises
    ------
    InputError
        If these weights, schedule and moves cannot be combined, if batches of a point estimate overlap, or if `learn`
        names a hyperparameter that cannot be learned.
    """

    model: TopicModel
    weights: GlobalWeights
    schedule: Schedule
    plan: Plan
    effort: Effort = field(default_factory=Effort)
    seed: int = 0
    tolerance: float = 1e-5
    learn: tuple[str, ...] = ()
    words: Annotated[
        tuple[str, ...] | None, Stored(("byte",), "words of all columns in their order, UTF-8", name="vocabulary")
    ] = None

    @property
    def names(self) -> Names | None:
        """The words, as column names."""
        return self.words

    @property
    def method(self) -> str:
        """The name of the method."""
        return METHODS[self.weights]

    def __post_init__(self) -> None:
        check_learnable(self.learn)
        usual = moves_of(self.weights, self.schedule)
        if type(self.plan) is not type(usual):
            raise InputError(
                f"the moves of weights={self.weights!r} should be of type {type(usual).__name__}; got "
                f"{type(self.plan).__name__}. Give a dpdist.{type(usual).__name__}, or leave moves out."
            )
        if usual == NO_MOVES and self.plan != NO_MOVES:
            raise InputError(
                "weights='point' makes no moves under a Batch schedule, because its bounds cannot compare different "
                "numbers of topics; leave moves out, or choose weights='posterior'."
            )
        if self.weights == "point" and self.schedule.lookahead:
            raise InputError("online topics use one mini-batch after the other; set lookahead of Stochastic to 0.")


PosteriorProblem = TopicProblem[TopicPlan]
PointProblem = TopicProblem[OnlinePlan]
AnyTopicProblem = TopicProblem[TopicPlan | OnlinePlan]


def moves_of(weights: GlobalWeights, schedule: Schedule) -> TopicPlan | OnlinePlan:
    """The default moves of a combination; raises :class:`InputError` if the combination does not exist."""
    found = MOVES.get((weights, schedule.name))
    if found is None:
        possible = " or ".join(name.capitalize() for known, name in MOVES if known == weights)
        other = next(each for each in GLOBAL_WEIGHTS if each != weights)
        raise InputError(
            f"weights={weights!r} should have a {possible} schedule; got {schedule.name.capitalize()}. Choose one of "
            f"these, or weights={other!r}."
        )
    return found
