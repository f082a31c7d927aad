"""The turn of a lap of a topic model: judge what was tried, apply it to every batch summary, choose what to try next.

Documents may be fitted twice in a lap: under the topics in use, and under others, with new topics beside them or with
some left out. Under both, unions of pairs are measured; at the end both are given the merges that raise their bounds,
and the higher bound of the whole corpus is kept. Topics that do not pay yet are fitted on for a few laps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.execution.base import Backend
from dpdist.inference.moves.accept import Reason, reason_for
from dpdist.inference.moves.cooldown import Cooldown, Cooldowns
from dpdist.inference.state import Record
from dpdist.inference.topics.batch_summary import Measured, TopicBatchSummary, awaiting, united, without
from dpdist.inference.topics.births import Seeds, seek_topics
from dpdist.inference.topics.documents import NO_PAIRS, PairSums
from dpdist.inference.topics.hyperparameters import learned
from dpdist.inference.topics.merges import ROUNDING, judge_merges, propose_pairs
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.problem import PosteriorProblem, TopicPlan
from dpdist.inference.topics.summary import LOG_PI, TopicSummary
from dpdist.models.families.base import Rows

_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class TopicTrials:
    """What is tried in a lap.

    Parameters
    ----------
    pairs : (P, 2) of topics in use whose unions are measured
    kind : "birth", "delete", or "" where no other topics are tried
    fresh : number of new topics, tried beside those in use and after them
    gone : positions of the topics tried to do without
    other_ids : stable ids of the topics tried
    other_pairs : (P', 2) of the topics tried, whose unions are measured
    age : laps the others were fitted before
    gain : by which their bound was higher at the end of the last of these
    births_refused, deletes_refused : in a row
    cooldowns : of topics, during which it is not tried to do without them
    model : with the hyperparameters in force, where they are learned; None: the problem's own
    """

    pairs: np.ndarray = field(default_factory=lambda: NO_PAIRS)
    kind: str = ""
    fresh: int = 0
    gone: np.ndarray = field(default_factory=lambda: _NONE)
    other_ids: np.ndarray = field(default_factory=lambda: _NONE)
    other_pairs: np.ndarray = field(default_factory=lambda: NO_PAIRS)
    age: int = 0
    gain: float = -np.inf
    births_refused: int = 0
    deletes_refused: int = 0
    cooldowns: Cooldowns = field(default_factory=Cooldowns)
    model: TopicModel | None = None

    def begun(self, own: Measured) -> Measured | None:
        """Documents under topics newly tried, before they are visited; None if none are."""
        if not self.kind:
            return None
        topics = len(own.summary.entropy)
        summary = awaiting(own.summary, self.fresh) if self.fresh else without(own.summary, self.gone)
        names = np.full(topics, -1, dtype=np.int64)
        kept = np.setdiff1d(np.arange(topics), self.gone)
        names[kept] = np.arange(len(kept))
        known = None if own.topics is None else own.topics.renamed(names)
        return Measured(summary, PairSums.zeros(len(self.other_pairs)), known)


@dataclass(frozen=True, eq=False)
class Merging:
    """Topics made one, and all of them put in order.

    Parameters
    ----------
    pairs : (P, 2) pairs that were measured
    chosen : those of them that are one from now on
    order : of the topics that are left
    """

    pairs: np.ndarray
    chosen: np.ndarray
    order: np.ndarray

    def apply(self, measured: Measured, pairs: int) -> Measured:
        """The same documents under the topics left, of which `pairs` pairs are measured next."""
        topics = len(measured.summary.entropy)
        summary = united(measured.summary, measured.pairs, self.pairs, self.chosen).take(self.order)
        known = None if measured.topics is None else measured.topics.renamed(self._names(topics))
        return Measured(summary, PairSums.zeros(pairs), known)

    def left(self, topics: int) -> np.ndarray:
        """The old topics that are left, in their new order."""
        return np.setdiff1d(np.arange(topics), self.pairs[self.chosen, 1])[self.order]

    def _names(self, topics: int) -> np.ndarray:
        """The new position of each of the old topics, (K,)."""
        into = np.arange(topics)
        into[self.pairs[self.chosen, 1]] = self.pairs[self.chosen, 0]
        places = np.empty(topics, dtype=np.int64)
        places[self.left(topics)] = np.arange(len(self.order))
        return places[into]


@dataclass(frozen=True, eq=False)
class TopicMap:
    """What a lap's end makes of every batch summary: small, and the same for batch summaries and total.

    Parameters
    ----------
    take_other : whether the topics that were tried are in use from now on
    own : what becomes of the topics in use from now on
    other : what becomes of topics that are tried on; None where they are not
    after : what is tried in the next lap
    """

    take_other: bool
    own: Merging
    other: Merging | None
    after: TopicTrials

    def batch_summary(self, batch_summary: TopicBatchSummary) -> TopicBatchSummary:
        """an old batch summary in the new topics."""
        base = batch_summary.other if self.take_other and batch_summary.other is not None else batch_summary.own
        own = self.own.apply(base, len(self.after.pairs))
        if self.other is not None and batch_summary.other is not None:
            return TopicBatchSummary(own, self.other.apply(batch_summary.other, len(self.after.other_pairs)))
        return TopicBatchSummary(own, self.after.begun(own))


@dataclass(frozen=True, eq=False)
class TopicLapMoves:
    """What a lap's end decided.

    Parameters
    ----------
    component_map : what becomes of the batch summaries
    total : the corpus in the new topics
    elbo : its bound, in nats
    records : every proposal
    start : stands in for documents that have not met new topics; None if there are none
    ids, next_id : stable ids of the new topics, and the first unused one
    pending : whether there is something left to try
    """

    component_map: TopicMap
    total: TopicSummary
    elbo: float
    records: tuple[Record, ...]
    start: TopicBatchSummary | None
    ids: np.ndarray
    next_id: int
    pending: bool


@dataclass(frozen=True, eq=False)
class _Side:
    """One of the two fits of a lap with the merges that raise its bound."""

    total: TopicSummary
    merging: Merging
    ids: np.ndarray
    records: tuple[Record, ...]
    bound: float


@dataclass(frozen=True, eq=False)
class _Ground:
    """What the next trials are chosen from."""

    problem: PosteriorProblem
    backend: Backend
    total: TopicSummary
    sample: Rows | None
    lap: int
    ids: np.ndarray
    next_id: int
    cooldowns: Mapping[int, Cooldown]


def take_topic_turn(
    problem: PosteriorProblem,
    backend: Backend,
    trials: TopicTrials,
    exact: TopicBatchSummary,
    sample: Rows | None,
    lap: int,
    ids: np.ndarray,
    next_id: int,
) -> TopicLapMoves:
    """Decide the end of a lap.

    Parameters
    ----------
    trials : of the lap
    exact : sum over all batches
    sample : documents drawn during the lap, (n, W) CSR, or None
    lap : its number
    ids, next_id : as :class:`TopicLapMoves` gives them
    """
    model = trials.model or problem.model
    own = _side(model, exact.own, trials.pairs, ids)
    other = None if exact.other is None else _side(model, exact.other, trials.other_pairs, trials.other_ids)
    verdict = None if other is None else _verdict(problem.plan, trials, ids, other.bound - own.bound, abs(own.bound))
    reason = None if verdict is None else verdict.reason
    best = other if other is not None and reason is Reason.ACCEPTED else own
    there = set(best.ids.tolist())
    kept = {
        identity: rest for identity, rest in trials.cooldowns.entries.items() if rest.until > lap and identity in there
    }
    if verdict is not None and reason is Reason.NO_GAIN and trials.kind == "delete" and len(verdict.components) == 1:
        kept[verdict.components[0]] = Cooldown(1, lap + problem.plan.cooldown, 0.0)
    if other is not None and verdict is not None and reason is Reason.REFINING:
        after, start, going_on = _fitted_on(problem.plan, trials, own, other, verdict.gain), None, other.merging
    else:
        ground = _Ground(replace(problem, model=model), backend, best.total, sample, lap, best.ids, next_id, kept)
        refusals = _refusals(trials, reason, len(best.ids) > len(own.ids))
        (after, start), going_on = _next_trials(ground, refusals), None
    elbo = best.bound
    if problem.learn:
        following = learned(problem.model, best.total, problem.learn)
        after, elbo = replace(after, model=following), following.elbo(best.total)
    after = replace(after, cooldowns=Cooldowns.of(kept))
    component_map = TopicMap(reason is Reason.ACCEPTED, best.merging, going_on, after)
    records = (*(() if verdict is None else (verdict,)), *best.records)
    tried = bool(len(best.merging.chosen) or after.kind or _may_seek(problem.plan, after))
    pending = tried or reason is Reason.ACCEPTED
    last = next_id + (after.fresh if after.age == 0 else 0)
    return TopicLapMoves(component_map, best.total, elbo, records, start, best.ids, last, pending)


def _side(model: TopicModel, measured: Measured, pairs: np.ndarray, ids: np.ndarray) -> _Side:
    chosen, judged = judge_merges(model, measured, pairs)
    joined = united(measured.summary, measured.pairs, pairs, chosen)
    order = _better_order(model, joined)
    joined, merging = joined.take(order), Merging(pairs, chosen, order)
    records = tuple(
        Record("merge", tuple(int(ids[k]) for k in pairs[one.proposal]), one.gain, one.reason) for one in judged
    )
    return _Side(joined, merging, ids[merging.left(len(ids))], records, model.elbo(joined))


def _better_order(model: TopicModel, total: TopicSummary) -> np.ndarray:
    """The larger topics first, as sticks prefer; the order they have where that is better still."""
    order = np.argsort(-total.counts, kind="stable")
    values = [model.allocation_value(each.groups, each.totals, each.documents) for each in (total, total.take(order))]
    return order if values[1] > values[0] else np.arange(len(order))


def _verdict(plan: TopicPlan, trials: TopicTrials, ids: np.ndarray, gain: float, bound: float) -> Record:
    """What becomes of the topics tried."""
    names = set(trials.other_ids.tolist()) ^ set(ids.tolist())
    subjects = tuple(sorted(names if trials.kind == "birth" else names & set(ids.tolist())))
    reason = reason_for(gain, ROUNDING * bound)
    if reason is Reason.NO_GAIN:
        left = plan.refine - trials.age
        hopeful = not np.isfinite(trials.gain) or gain + left * (gain - trials.gain) > 0
        reason = Reason.REFINING if left > 0 and hopeful else reason
    return Record(trials.kind, subjects or (-1,), gain, reason)


def _fitted_on(plan: TopicPlan, trials: TopicTrials, own: _Side, other: _Side, gain: float) -> TopicTrials:
    """The same topics tried for another lap."""
    return replace(
        trials,
        pairs=_pairs(plan, own.total.words),
        other_pairs=_pairs(plan, other.total.words),
        other_ids=other.ids,
        age=trials.age + 1,
        gain=gain,
    )


def _refusals(trials: TopicTrials, reason: Reason | None, more: bool) -> TopicTrials:
    """Refusals in a row so far; a birth that leaves more topics than there were starts all of them anew, and one that
    leaves no more has only moved them, as if it were refused."""
    births, deletes = trials.births_refused, trials.deletes_refused
    if reason is Reason.ACCEPTED and (more or trials.kind == "delete"):
        births, deletes = 0 if trials.kind == "birth" else births, 0
    elif reason is not None:
        births, deletes = births + (trials.kind == "birth"), deletes + (trials.kind == "delete")
    return TopicTrials(births_refused=births, deletes_refused=deletes)


def _may_seek(plan: TopicPlan, trials: TopicTrials) -> bool:
    return plan.birth and trials.births_refused < plan.tries


def _pairs(plan: TopicPlan, words: np.ndarray) -> np.ndarray:
    return propose_pairs(words, plan.partners) if plan.merge else NO_PAIRS


def _next_trials(ground: _Ground, refused: TopicTrials) -> tuple[TopicTrials, TopicBatchSummary | None]:
    """What to try in the next lap: new topics until they are refused, then to do without some until that is."""
    plan, total = ground.problem.plan, ground.total
    trials = replace(refused, pairs=_pairs(plan, total.words))
    gone = _to_go(plan, total, ground.ids, ground.cooldowns, refused.deletes_refused)
    seeking = ground.sample is not None and _may_seek(plan, refused)
    if seeking and (refused.births_refused == 0 or not len(gone)):
        seeds = _seek(ground, refused.births_refused)
        if seeds is not None:
            return _with_births(ground, replace(trials, deletes_refused=0), seeds)
        trials = replace(trials, births_refused=trials.births_refused + 1)
    if not len(gone):
        return trials, None
    left = _pairs(plan, np.delete(total.words, gone, axis=1))
    return replace(trials, kind="delete", gone=gone, other_ids=np.delete(ground.ids, gone), other_pairs=left), None


def _with_births(ground: _Ground, trials: TopicTrials, seeds: Seeds) -> tuple[TopicTrials, TopicBatchSummary]:
    total, fresh = ground.total, len(seeds)
    others = _pairs(ground.problem.plan, np.concatenate([total.words, seeds.words], axis=1))
    ids = np.append(ground.ids, np.arange(ground.next_id, ground.next_id + fresh))
    trials = replace(trials, kind="birth", fresh=fresh, other_ids=ids, other_pairs=others)
    own = Measured(TopicSummary.zeros(*total.words.shape), PairSums.zeros(len(trials.pairs)))
    return trials, TopicBatchSummary(own, Measured(stand_in(total, seeds), PairSums.zeros(len(others))))


def _to_go(
    plan: TopicPlan, total: TopicSummary, ids: np.ndarray, cooldowns: Mapping[int, Cooldown], refused: int
) -> np.ndarray:
    """The smallest topics, a tenth of all at first and fewer the more often they were refused, then none."""
    topics, counts = len(ids), total.counts
    number = (topics // 10 + 1) >> refused
    if not plan.delete or topics < 2 or refused > plan.tries + np.log2(topics):
        return _NONE
    small = [k for k in np.argsort(counts, kind="stable").tolist() if counts[k] < 0.75 * counts.mean()]
    candidates = [k for k in small if int(ids[k]) not in cooldowns]
    return np.array(sorted(candidates[: max(1, min(number, topics - 1))]), dtype=np.int64)


def _seek(ground: _Ground, refused: int) -> Seeds | None:
    """New topics in the sample, fewer the more often they were refused; None if it holds none."""
    columns = ([ground.problem], [ground.total], [ground.sample], [refused], [ground.lap])
    seeds: Seeds = ground.backend.fetch(ground.backend.map(_seek_task, *columns))[0]
    return seeds if len(seeds) else None


def _seek_task(problem: PosteriorProblem, total: TopicSummary, sample: Rows, refused: int, lap: int) -> Seeds:
    plan, topics = problem.plan, len(total.entropy)
    rng = generator(problem.seed, "seek topics", lap)
    targets, wanted = 0, max(1, min(max(plan.births, topics), plan.max_births) >> refused)
    if refused % 2:  # what all topics leave unexplained held nothing: look into topics that may be several
        targets = min(topics, max(1, plan.max_births >> (2 * refused)))
        wanted = 2 * targets
    with one_thread():
        found = seek_topics(problem.model, total, sample, total.totals, wanted, plan.iterations, rng, targets)
    return found[0]


def stand_in(total: TopicSummary, seeds: Seeds) -> TopicSummary:
    """What new topics are taken to be for documents that have not met them."""
    groups = np.zeros((len(total.groups) + len(seeds), 4))
    groups[-1 - len(seeds) : -1, LOG_PI] = seeds.log_pi
    words = np.concatenate([np.zeros_like(total.words), seeds.words], axis=1)
    return TopicSummary(words, np.zeros(words.shape[1]), groups, np.zeros(4))


def heirs(total: TopicSummary, after: TopicTrials, batch_summaries: Sequence[TopicBatchSummary]) -> TopicBatchSummary:
    """What topics are taken to be without those gone, for documents that have not been fitted so.

    The words of each topic gone are shared out among the topics that its documents use beside it.
    """
    topics = len(total.entropy)
    beside = np.zeros((len(after.gone), topics))
    for batch_summary in batch_summaries:
        known = batch_summary.own.topics
        if known is not None:
            used = known.matrix(topics)
            tokens = np.maximum(np.asarray(used.sum(axis=1)).ravel(), 1e-300)
            beside += ((used[:, after.gone].T / tokens) @ used).toarray()
    beside[:, after.gone] = 0.0
    beside /= np.maximum(beside.sum(axis=1, keepdims=True), 1e-300)
    words = np.delete(total.words[:, after.gone] @ beside, after.gone, axis=1)
    left = words.shape[1]
    empty = TopicSummary(words, np.zeros(left), np.zeros((left + 1, 4)), np.zeros(4))
    own = Measured(TopicSummary.zeros(*total.words.shape), PairSums.zeros(len(after.pairs)))
    return TopicBatchSummary(own, Measured(empty, PairSums.zeros(len(after.other_pairs))))


def wanted_documents(plan: TopicPlan, trials: TopicTrials) -> int:
    """Documents to draw in a lap, so that new topics can be looked for in them when it ends."""
    return plan.sample if _may_seek(plan, trials) else 0
