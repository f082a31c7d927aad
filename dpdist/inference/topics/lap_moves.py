"""The moves at a lap end: judge the trials, map every batch summary, choose the next trials.

Documents may be fitted twice in a lap: under the current topics, and under candidates, which are the same topics with
some added (a birth) or removed (a delete). Unions of pairs of topics are measured under both. At the end of the lap

1. in both sets of topics, the merges that raise the bound are made, and topics are reordered if that raises it too;
2. the candidates are accepted if their bound of the whole corpus is higher; otherwise they are refused or, if they may
   still overtake the current topics, fitted for another lap (:data:`Reason.REFINING`);
3. unless the candidates are fitted for another lap, new ones are chosen: births and deletes alternate until both were
   refused too often in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dpdist.execution.base import Backend
from dpdist.inference.moves.accept import Reason, may_overtake, reason_for
from dpdist.inference.moves.cooldown import Cooldown, Cooldowns
from dpdist.inference.state import Record
from dpdist.inference.topics.batch_summary import Measured, TopicBatchSummary, united
from dpdist.inference.topics.births import Seeds
from dpdist.inference.topics.documents import NO_PAIRS, PairSums
from dpdist.inference.topics.hyperparameters import learned
from dpdist.inference.topics.merges import ROUNDING, judge_merges, propose_pairs
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.problem import PosteriorProblem, TopicPlan
from dpdist.inference.topics.seeking import may_seek, seek_new
from dpdist.inference.topics.summary import LOG_PI, TopicSummary, without_topics
from dpdist.inference.topics.trials import Merging, TopicMap, TopicTrials
from dpdist.models.families.base import Rows

_NONE = np.zeros(0, dtype=np.int64)
#: If a lap changes the learned eta by more than this share, topics are still forming and no moves are tried.
_FORMING = 0.1


@dataclass(frozen=True, eq=False)
class TopicLapMoves:
    """The decisions at the end of a lap.

    Parameters
    ----------
    component_map : map for the batch summaries
    total : the corpus in the new topics
    elbo : its bound, in nats
    elbo_before : the bound of the lap's topics before any move
    records : of every proposal
    warm_start : sums in place of documents not yet fitted under added topics; None if none are added
    ids, next_id : stable ids of the new topics, and the first unused id
    pending : whether there is more to try
    """

    component_map: TopicMap
    total: TopicSummary
    elbo: float
    elbo_before: float
    records: tuple[Record, ...]
    warm_start: TopicBatchSummary | None
    ids: np.ndarray
    next_id: int
    pending: bool


@dataclass(frozen=True, eq=False)
class _Merged:
    """The corpus under one set of topics and a `model`, with the merges that raise its bound.

    Parameters
    ----------
    model, total : after the merges
    merging : the merges
    ids : of the remaining topics
    records : of every merge judged
    before, bound : without and with the merges
    """

    model: TopicModel
    total: TopicSummary
    merging: Merging
    ids: np.ndarray
    records: tuple[Record, ...]
    before: float
    bound: float


@dataclass(frozen=True, eq=False)
class _Judged:
    """A lap's current topics, its candidates, if any, and the decision on these."""

    current: _Merged
    candidate: _Merged | None
    verdict: Record | None

    @property
    def reason(self) -> Reason | None:
        """Reason of the verdict."""
        return None if self.verdict is None else self.verdict.reason

    @property
    def best(self) -> _Merged:
        """The candidates if they were accepted, else the current topics."""
        if self.candidate is not None and self.reason is Reason.ACCEPTED:
            return self.candidate
        return self.current

    @property
    def records(self) -> tuple[Record, ...]:
        """Records for the history; the gain of accepted candidates includes that of their merges."""
        if self.verdict is None or self.best is self.current:
            return (*(() if self.verdict is None else (self.verdict,)), *self.best.records)
        merges = [
            each._replace(reason=Reason.ALONG) if each.reason is Reason.ACCEPTED else each for each in self.best.records
        ]
        return self.verdict._replace(gain=self.best.bound - self.current.before), *merges

    @property
    def fitted_on(self) -> _Merged | None:
        """The candidates if they are fitted for another lap."""
        return self.candidate if self.reason is Reason.REFINING else None


@dataclass(frozen=True, eq=False)
class _Topics:
    """The current topics of the next lap, from which candidates are made."""

    problem: PosteriorProblem
    backend: Backend
    total: TopicSummary
    sample: Rows | None
    lap: int
    ids: np.ndarray
    next_id: int
    cooldowns: Mapping[int, Cooldown]


def take_topic_moves(
    problem: PosteriorProblem,
    backend: Backend,
    trials: TopicTrials,
    exact: TopicBatchSummary,
    sample: Rows | None,
    lap: int,
    ids: np.ndarray,
    next_id: int,
) -> TopicLapMoves:
    """Judge the trials of a lap and choose the next ones.

    Parameters
    ----------
    trials : of the lap
    exact : sum over all batches
    sample : documents drawn during the lap, (n, W) CSR, or None
    lap : its number
    ids, next_id : as in :class:`TopicLapMoves`
    """
    judged = _judge(problem, trials, exact, ids)
    best, accepted = judged.best, judged.reason is Reason.ACCEPTED
    # The lap was judged under one model and the next starts under another, whose bound is the one to compare with.
    following = learned(best.model, best.total, problem.learn) if problem.learn else None
    forming = following is not None and abs(following.pseudocount / best.model.pseudocount - 1) > _FORMING
    cooldowns = _cooldowns(problem.plan, trials.cooldowns.entries, judged.verdict, lap, best.ids)
    topics = _Topics(problem, backend, best.total, sample, lap, best.ids, next_id, cooldowns)
    tried, warm_start = _tried_next(topics, trials, judged, forming)
    then = None if following is None else _candidate_model(problem, judged, following, tried)
    after = replace(tried, model=following, candidate_model=then, cooldowns=Cooldowns.of(cooldowns))
    seeking = may_seek(problem.plan, after, len(best.ids))
    pending = len(best.merging.chosen) or after.kind or seeking or forming or accepted
    fitted_on = None if judged.fitted_on is None else judged.fitted_on.merging
    return TopicLapMoves(
        component_map=TopicMap(accepted, best.merging, fitted_on, after),
        total=best.total,
        elbo=best.bound if following is None else following.elbo(best.total),
        elbo_before=judged.current.before,
        records=judged.records,
        warm_start=warm_start,
        ids=best.ids,
        # Topics just added use new ids; candidates in a further lap have theirs already.
        next_id=next_id + (after.added if after.age == 0 else 0),
        pending=bool(pending),
    )


def _judge(problem: PosteriorProblem, trials: TopicTrials, exact: TopicBatchSummary, ids: np.ndarray) -> _Judged:
    """The lap's current topics and its candidates, with the decision between them."""
    model = trials.model or problem.model
    current = _merged(model, exact.current, trials.pairs, ids)
    if exact.candidate is None:
        return _Judged(current, None, None)
    own = trials.candidate_model or model
    candidate = _merged(own, exact.candidate, trials.candidate_pairs, trials.candidate_ids)
    gain = candidate.bound - current.bound
    return _Judged(current, candidate, _verdict(problem.plan, trials, ids, gain, abs(current.bound)))


def _tried_next(
    topics: _Topics, trials: TopicTrials, judged: _Judged, forming: bool
) -> tuple[TopicTrials, TopicBatchSummary | None]:
    """Trials of the next lap: the same candidates again, or others, but none while topics are `forming`."""
    fitted_on, verdict = judged.fitted_on, judged.verdict
    if fitted_on is not None and verdict is not None:
        return _fitted_on(topics.problem.plan, trials, judged.current, fitted_on, verdict.gain, topics.lap), None
    changed = judged.reason is Reason.ACCEPTED or len(judged.best.merging.chosen) > 0
    refused = _refusals(trials, judged.reason, changed)
    return (refused, None) if forming else _next_trials(topics, refused)


def _candidate_model(
    problem: PosteriorProblem, judged: _Judged, following: TopicModel, tried: TopicTrials
) -> TopicModel:
    """The model of the next lap's candidates, given the learned model `following` of the current topics."""
    if judged.fitted_on is not None:
        return learned(judged.fitted_on.model, judged.fitted_on.total, problem.learn)
    # New topics are fitted under the run's initial model, which does not constrain them as much.
    return problem.model if tried.added else following


def _merged(model: TopicModel, measured: Measured, pairs: np.ndarray, ids: np.ndarray) -> _Merged:
    chosen, judged = judge_merges(model, measured, pairs)
    joined = united(measured.summary, measured.pairs, pairs, chosen)
    order = _better_order(model, joined)
    joined, merging = joined.take(order), Merging(pairs, chosen, order)
    records = tuple(
        Record("merge", tuple(int(ids[k]) for k in pairs[one.proposal]), one.gain, one.reason) for one in judged
    )
    bounds = model.elbo(measured.summary), model.elbo(joined)
    return _Merged(model, joined, merging, ids[merging.left(len(ids))], records, *bounds)


def _better_order(model: TopicModel, total: TopicSummary) -> np.ndarray:
    """Topics in descending order of size, which sticks favour, or in their present order if that bound is higher."""
    order, same = np.argsort(-total.counts, kind="stable"), np.arange(len(total.entropy))
    values = [model.allocation_value(total.groups_of(each), total.totals, total.documents) for each in (same, order)]
    return order if values[1] > values[0] else same


def _verdict(plan: TopicPlan, trials: TopicTrials, ids: np.ndarray, gain: float, bound: float) -> Record:
    """The decision on candidates whose bound is higher by `gain`."""
    names = set(trials.candidate_ids.tolist()) ^ set(ids.tolist())
    subjects = tuple(sorted(names if trials.kind == "birth" else names & set(ids.tolist())))
    reason = reason_for(gain, ROUNDING * bound)
    if reason is Reason.NO_GAIN:
        # Another lap if laps are left and the candidates may overtake, assuming each lap gains two thirds of the one
        # before.
        hopeful = may_overtake(gain, trials.gain, min(plan.refine - trials.age, 2))
        reason = Reason.REFINING if hopeful else reason
    return Record(trials.kind, subjects or (-1,), gain, reason)


def _cooldowns(
    plan: TopicPlan, before: Mapping[int, Cooldown], verdict: Record | None, lap: int, ids: np.ndarray
) -> dict[int, Cooldown]:
    """Cooldowns of present topics that are not over, and one for a topic whose deletion alone was refused."""
    there, found = set(ids.tolist()), dict(before)
    refused = verdict is not None and verdict.kind == "delete" and verdict.reason is Reason.NO_GAIN
    if verdict is not None and refused and len(verdict.components) == 1:
        found[verdict.components[0]] = Cooldown(1, lap + plan.cooldown, 0.0)
    return {identity: rest for identity, rest in found.items() if rest.until > lap and identity in there}


def _fitted_on(
    plan: TopicPlan, trials: TopicTrials, current: _Merged, candidate: _Merged, gain: float, lap: int
) -> TopicTrials:
    """The same candidates for another lap."""
    return replace(
        trials,
        pairs=_pairs(plan, current.total.words, lap),
        candidate_pairs=_pairs(plan, candidate.total.words, lap),
        candidate_ids=candidate.ids,
        age=trials.age + 1,
        gain=gain,
    )


def _refusals(trials: TopicTrials, reason: Reason | None, changed: bool) -> TopicTrials:
    """Births and deletes refused in a row; after an accepted birth or a quick accepted delete, a delete is next."""
    if changed:
        pays = reason is Reason.ACCEPTED and (trials.kind == "birth" or not trials.age)
        return TopicTrials(deletes_refused=-1 if pays else 0)
    births, deletes = trials.births_refused, trials.deletes_refused
    if reason is not None:
        births, deletes = births + (trials.kind == "birth"), deletes + (trials.kind == "delete")
    return TopicTrials(births_refused=births, deletes_refused=deletes)


def _pairs(plan: TopicPlan, words: np.ndarray, lap: int) -> np.ndarray:
    """Each topic paired with one of its partners, a different one in each lap."""
    return propose_pairs(words, lap % plan.partners) if plan.merge and plan.partners else NO_PAIRS


def _next_trials(topics: _Topics, refused: TopicTrials) -> tuple[TopicTrials, TopicBatchSummary | None]:
    """Trials of the next lap, and the warm start of topics that they add.

    Births and deletes alternate until each was refused as often as the plan allows. Births leave more topics than
    needed, and further births gain little while these exist; so deletes continue as long as they gain at once.
    """
    plan, total = topics.problem.plan, topics.total
    trials = replace(refused, pairs=_pairs(plan, total.words, topics.lap))
    removed = _to_remove(plan, total, topics.ids, topics.cooldowns, max(refused.deletes_refused, 0))
    seeking = topics.sample is not None and may_seek(plan, refused, len(topics.ids))
    if seeking and (refused.births_refused <= refused.deletes_refused or not len(removed)):
        seeds = _seek(topics, refused.births_refused)
        if seeds is not None:
            return _with_births(topics, trials, seeds)
        trials = replace(trials, births_refused=trials.births_refused + 1)
    if not len(removed):
        return trials, None
    left, ids = without_topics(total.words, removed), np.delete(topics.ids, removed)
    pairs = _pairs(plan, left, topics.lap)
    return replace(trials, kind="delete", removed=removed, candidate_ids=ids, candidate_pairs=pairs), None


def _with_births(topics: _Topics, trials: TopicTrials, seeds: Seeds) -> tuple[TopicTrials, TopicBatchSummary]:
    total, added, removed = topics.total, len(seeds), seeds.replaced
    kept, ids = without_topics(total.words, removed), np.delete(topics.ids, removed)
    ids = np.append(ids, np.arange(topics.next_id, topics.next_id + added))
    trials = replace(trials, kind="birth", added=added, removed=removed, candidate_ids=ids)
    return trials, _warm_start(total, trials, warm_start_of(kept, seeds))


def _to_remove(
    plan: TopicPlan, total: TopicSummary, ids: np.ndarray, cooldowns: Mapping[int, Cooldown], refused: int
) -> np.ndarray:
    """The topics to delete: the smallest tenth at first, fewer after each refusal, and all with less than one token."""
    topics, counts = len(ids), total.counts
    if not plan.delete or topics < 2 or refused >= plan.tries:
        return _NONE
    small = [k for k in np.argsort(counts, kind="stable").tolist() if counts[k] < 0.75 * counts.mean()]
    able = [k for k in small if int(ids[k]) not in cooldowns]
    number = max((topics // 10 + 1) >> 2 * refused, int((counts[able] < 1).sum()))
    return np.array(sorted(able[: max(1, min(number, topics - 1))]), dtype=np.int64)


def _seek(topics: _Topics, refused: int) -> Seeds | None:
    """New topics from the sample, fewer after each refusal; None if none are found."""
    columns = ([topics.problem], [topics.total], [topics.sample], [refused], [topics.lap])
    seeds: Seeds = topics.backend.fetch(topics.backend.map(seek_new, *columns))[0]
    return seeds if len(seeds) else None


def warm_start_of(kept: np.ndarray, seeds: Seeds) -> TopicSummary:
    """Initial sums of topics added to those `kept` (W, K), in place of documents not yet fitted under them."""
    words = np.concatenate([np.zeros_like(kept), seeds.words], axis=1)
    groups = np.zeros((words.shape[1] + 1, 4))
    groups[-1 - len(seeds) : -1, LOG_PI] = seeds.log_pi
    return TopicSummary(words, np.zeros(words.shape[1]), groups, np.zeros(4))


def warm_start_of_removal(total: TopicSummary, after: TopicTrials, beside: np.ndarray) -> TopicBatchSummary:
    """Initial sums of candidates with topics removed, in place of documents not yet fitted without these.

    A removed topic's words are divided among the topics used along with it; `beside` (R, K) holds the tokens of these.
    """
    beside[:, after.removed] = 0.0
    beside /= np.maximum(beside.sum(axis=1, keepdims=True), 1e-300)
    words = without_topics(total.words[:, after.removed] @ beside, after.removed)
    left = words.shape[1]
    return _warm_start(total, after, TopicSummary(words, np.zeros(left), np.zeros((left + 1, 4)), np.zeros(4)))


def _warm_start(total: TopicSummary, trials: TopicTrials, candidate: TopicSummary) -> TopicBatchSummary:
    """Sums of candidates, and zeros for the current topics, which need no warm start."""
    current = Measured(TopicSummary.zeros(*total.words.shape), PairSums.zeros(len(trials.pairs)))
    return TopicBatchSummary(current, Measured(candidate, PairSums.zeros(len(trials.candidate_pairs))))
