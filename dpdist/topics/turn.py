"""The turn of a lap of a topic model: judge what was tried, apply it to every leaf, choose what to try next.

In a lap documents may be fitted twice: under the topics in use, and under other ones, with new topics beside them or
with some left out. Under both, unions of pairs are measured. At the end both are given the merges that raise their
bounds, and the higher bound of the whole corpus is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dpdist.backends.base import Backend
from dpdist.families.base import Rows
from dpdist.moves.base import Reason
from dpdist.randomness import generator
from dpdist.state import Rest
from dpdist.threads import one_thread
from dpdist.topics.births import Seeds, seek_topics
from dpdist.topics.documents import PairSums
from dpdist.topics.leaf import Measured, TopicLeaf, expanded, united, without
from dpdist.topics.model import TopicModel
from dpdist.topics.moves import NO_PAIRS, ROUNDING, Judged, judge_merges, propose_pairs
from dpdist.topics.problem import TopicPlan, TopicProblem
from dpdist.topics.summary import LOG_PI, TopicSummary

_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class TopicTrials:
    """What is tried in a lap.

    Parameters
    ----------
    pairs : (P, 2) of topics whose unions are measured
    fresh : number of new topics tried beside those in use, after them
    gone : topics tried to do without
    other_pairs : (P', 2) of the topics tried, whose unions are measured
    births_refused, deletes_refused : in a row
    """

    pairs: np.ndarray = field(default_factory=lambda: NO_PAIRS)
    fresh: int = 0
    gone: np.ndarray = field(default_factory=lambda: _NONE)
    other_pairs: np.ndarray = field(default_factory=lambda: NO_PAIRS)
    births_refused: int = 0
    deletes_refused: int = 0

    def other(self, summary: TopicSummary) -> TopicSummary | None:
        """Documents under the topics tried before they are visited; None if none are."""
        if self.fresh:
            return expanded(summary, self.fresh)
        return without(summary, self.gone) if len(self.gone) else None

    def other_names(self, topics: int) -> np.ndarray:
        """The position of each topic among those tried, -1 for those gone."""
        names = np.full(topics, -1, dtype=np.int64)
        kept = np.setdiff1d(np.arange(topics), self.gone)
        names[kept] = np.arange(len(kept))
        return names


@dataclass(frozen=True, eq=False)
class TopicTurning:
    """What a lap's end makes of every leaf: small, and the same for leaves and total.

    Parameters
    ----------
    take_other : whether the topics that were tried are in use from now on
    pairs : (P, 2) pairs of these topics that were measured
    chosen : those of them that are one from now on
    order : of the topics that are left
    after : what is tried in the next lap
    """

    take_other: bool
    pairs: np.ndarray
    chosen: np.ndarray
    order: np.ndarray
    after: TopicTrials

    def leaf(self, leaf: TopicLeaf) -> TopicLeaf:
        """An old leaf in the new topics."""
        base = leaf.other if self.take_other and leaf.other is not None else leaf.own
        summary = united(base.summary, base.pairs, self.pairs, self.chosen).take(self.order)
        topics = None if base.topics is None else base.topics.renamed(self.names(len(base.summary.entropy)))
        own = Measured(summary, PairSums.zeros(len(self.after.pairs)), topics)
        tried = self.after.other(summary)
        if tried is None:
            return TopicLeaf(own)
        names = self.after.other_names(len(summary.entropy))
        others = None if topics is None else topics.renamed(names)
        return TopicLeaf(own, Measured(tried, PairSums.zeros(len(self.after.other_pairs)), others))

    def names(self, topics: int) -> np.ndarray:
        """The new position of each of the old topics, (K,)."""
        into = np.arange(topics)
        into[self.pairs[self.chosen, 1]] = self.pairs[self.chosen, 0]
        places = np.empty(topics, dtype=np.int64)
        places[self.left(topics)] = np.arange(len(self.order))
        return places[into]

    def left(self, topics: int) -> np.ndarray:
        """The old topics that are left, in their new order."""
        kept = np.setdiff1d(np.arange(topics), self.pairs[self.chosen, 1])
        return kept[self.order]


@dataclass(frozen=True, eq=False)
class TopicTurn:
    """What a lap's end decided.

    Parameters
    ----------
    turning : what becomes of the leaves
    total : the corpus in the new topics
    judged : every proposal; topics as they were, new ones after them
    start : stands in for documents that have not met new topics; None if there are none
    rests : topic id -> how long it is not tried to do without it
    ids, next_id : stable ids of the new topics, and the first unused one
    pending : whether there is something left to try
    """

    turning: TopicTurning
    total: TopicSummary
    judged: tuple[Judged, ...]
    start: TopicLeaf | None
    rests: dict[int, Rest]
    ids: np.ndarray
    next_id: int
    pending: bool


@dataclass(frozen=True, eq=False)
class _Outcome:
    """One of the two fits of a lap with the merges that raise its bound."""

    total: TopicSummary
    pairs: np.ndarray
    chosen: np.ndarray
    order: np.ndarray
    judged: tuple[Judged, ...]
    bound: float


def take_topic_turn(
    problem: TopicProblem,
    backend: Backend,
    trials: TopicTrials,
    exact: TopicLeaf,
    sample: Rows | None,
    lap: int,
    ids: np.ndarray,
    next_id: int,
    rests: Mapping[int, Rest],
) -> TopicTurn:
    """Decide the end of a lap.

    Parameters
    ----------
    trials : of the lap
    exact : sum over all waves
    sample : documents drawn during the lap, (n, W) CSR, or None
    lap : its number
    ids, next_id, rests : as :class:`TopicTurn` gives them
    """
    own = _outcome(problem.model, exact.own, trials.pairs)
    other = None if exact.other is None else _outcome(problem.model, exact.other, trials.other_pairs)
    verdict = None if other is None else _verdict(trials, ids, own.bound, other.bound)
    taken = other is not None and verdict is not None and verdict.reason is Reason.ACCEPTED
    best = other if taken and other is not None else own
    before = _ids_tried(trials, ids, next_id) if taken else ids
    turning = TopicTurning(taken, best.pairs, best.chosen, best.order, TopicTrials())
    new_ids = before[turning.left(len(before))]
    rests = _rested(rests, trials, verdict, ids, lap, problem.plan, best.total, new_ids)
    counted = _counted(trials, verdict)
    after, start = _next_trials(problem, backend, counted, best.total, sample, lap, new_ids, rests)
    turning = TopicTurning(taken, best.pairs, best.chosen, best.order, after)
    judged = (*(() if verdict is None else (verdict,)), *best.judged)
    tried = after.fresh > 0 or len(after.gone) > 0 or _may_seek(problem.plan, after)
    pending = taken or bool(len(best.chosen)) or tried
    fresh = trials.fresh if taken else 0
    return TopicTurn(turning, best.total, judged, start, rests, new_ids, next_id + fresh, pending)


def _outcome(model: TopicModel, measured: Measured, pairs: np.ndarray) -> _Outcome:
    chosen, judged = judge_merges(model, measured, pairs)
    joined = united(measured.summary, measured.pairs, pairs, chosen)
    order = np.argsort(-joined.counts, kind="stable")
    joined = joined.take(order)
    return _Outcome(joined, pairs, chosen, order, tuple(judged), model.elbo(joined))


def _verdict(trials: TopicTrials, ids: np.ndarray, own: float, other: float) -> Judged:
    """What becomes of the topics tried."""
    gain = other - own
    reason = Reason.NO_GAIN if gain <= 0 else Reason.ROUNDING if gain <= ROUNDING * abs(own) else Reason.ACCEPTED
    if trials.fresh:
        return Judged("birth", tuple(range(len(ids), len(ids) + trials.fresh)), gain, reason)
    return Judged("delete", tuple(map(int, trials.gone)), gain, reason)


def _ids_tried(trials: TopicTrials, ids: np.ndarray, next_id: int) -> np.ndarray:
    """Stable ids of the topics tried."""
    if trials.fresh:
        return np.append(ids, np.arange(next_id, next_id + trials.fresh))
    return np.delete(ids, trials.gone)


def _counted(trials: TopicTrials, verdict: Judged | None) -> TopicTrials:
    """Refusals in a row so far; an accepted change starts them anew."""
    births, deletes = trials.births_refused, trials.deletes_refused
    if verdict is not None and verdict.reason is not Reason.ACCEPTED:
        births, deletes = births + (verdict.kind == "birth"), deletes + (verdict.kind == "delete")
    if verdict is not None and verdict.reason is Reason.ACCEPTED:
        births, deletes = 0, 0 if verdict.kind == "delete" else deletes
    return TopicTrials(births_refused=births, deletes_refused=deletes)


def _rested(
    rests: Mapping[int, Rest],
    trials: TopicTrials,
    verdict: Judged | None,
    ids: np.ndarray,
    lap: int,
    plan: TopicPlan,
    total: TopicSummary,
    new_ids: np.ndarray,
) -> dict[int, Rest]:
    """Which topics rest: those refused to go alone, while they are there."""
    counts = dict(zip(new_ids.tolist(), total.counts.tolist(), strict=True))
    kept = {identity: rest for identity, rest in rests.items() if identity in counts and rest.until > lap}
    refused = verdict is not None and verdict.kind == "delete" and verdict.reason is not Reason.ACCEPTED
    if refused and len(trials.gone) == 1:
        identity = int(ids[trials.gone[0]])
        if identity in counts:
            kept[identity] = Rest(1, lap + plan.rest, counts[identity])
    return kept


def _may_seek(plan: TopicPlan, trials: TopicTrials) -> bool:
    return plan.birth and trials.births_refused < plan.tries


def _next_trials(
    problem: TopicProblem,
    backend: Backend,
    counted: TopicTrials,
    total: TopicSummary,
    sample: Rows | None,
    lap: int,
    ids: np.ndarray,
    rests: Mapping[int, Rest],
) -> tuple[TopicTrials, TopicLeaf | None]:
    """What to try in the next lap: new topics in even laps, to do without some in odd ones."""
    plan = problem.plan
    pairs = propose_pairs(total.words, plan.partners) if plan.merge else NO_PAIRS
    refused = {"births_refused": counted.births_refused, "deletes_refused": counted.deletes_refused}
    if sample is not None and _may_seek(plan, counted) and lap % 2:
        seeds = _seek(problem, backend, total, sample, lap, counted.births_refused)
        if seeds is None:
            refused["births_refused"] += 1
        else:
            words = np.concatenate([total.words, seeds.words], axis=1)
            others = propose_pairs(words, plan.partners) if plan.merge else NO_PAIRS
            trials = TopicTrials(pairs, len(seeds), _NONE, others, **refused)
            own = Measured(TopicSummary.zeros(*total.words.shape), PairSums.zeros(len(pairs)))
            return trials, TopicLeaf(own, Measured(stand_in(total, seeds), PairSums.zeros(len(others))))
    gone = _to_go(plan, total, ids, rests, counted.deletes_refused) if lap > 1 else _NONE
    left = np.delete(total.words, gone, axis=1)
    others = propose_pairs(left, plan.partners) if plan.merge and len(gone) else NO_PAIRS
    return TopicTrials(pairs, 0, gone, others, **refused), None


def _to_go(
    plan: TopicPlan, total: TopicSummary, ids: np.ndarray, rests: Mapping[int, Rest], refused: int
) -> np.ndarray:
    """The smallest topics, a tenth of all at first and fewer the more often they were refused."""
    topics = len(ids)
    if not plan.delete or topics < 2:
        return _NONE
    candidates = [k for k in np.argsort(total.counts, kind="stable").tolist() if int(ids[k]) not in rests]
    number = max(1, (topics // 10) >> refused)
    return np.array(sorted(candidates[: min(number, topics - 1)]), dtype=np.int64)


def _seek(
    problem: TopicProblem, backend: Backend, total: TopicSummary, sample: Rows, lap: int, refused: int
) -> Seeds | None:
    """New topics in the sample, fewer the more often they were refused; None if it holds none."""
    plan = problem.plan
    wanted = max(1, min(max(plan.topics, len(total.entropy)), plan.most) >> (2 * refused))
    refs = backend.map(_seek_task, [problem], [total], [sample], [wanted], [lap])
    seeds: Seeds = backend.fetch(refs)[0]
    return seeds if len(seeds) else None


def _seek_task(problem: TopicProblem, total: TopicSummary, sample: Rows, wanted: int, lap: int) -> Seeds:
    rng = generator(problem.seed, "seek topics", lap)
    with one_thread():
        return seek_topics(problem.model, total, sample, total.totals, wanted, problem.plan.iterations, rng)[0]


def stand_in(total: TopicSummary, seeds: Seeds) -> TopicSummary:
    """What new topics are taken to be for documents that have not met them."""
    fresh = len(seeds)
    empty = expanded(total, fresh)
    groups = np.zeros_like(empty.groups)
    groups[-1 - fresh : -1, LOG_PI] = seeds.log_pi - empty.groups[-1 - fresh : -1, LOG_PI]
    words = np.concatenate([np.zeros_like(total.words), seeds.words], axis=1)
    return TopicSummary(words, np.zeros(words.shape[1]), groups, np.zeros(4))


def wanted_documents(plan: TopicPlan, trials: TopicTrials, lap: int) -> int:
    """Documents to draw in a lap, so that new topics can be looked for in them when it ends."""
    return plan.sample if lap % 2 and _may_seek(plan, trials) else 0
