"""The turn of a lap: judge what was tried, apply what is accepted, choose what to try next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.execution.base import Backend
from dpdist.inference.mixture.local_step import BatchSummary
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.accept import Reason
from dpdist.inference.moves.base import Change, MoveVerdict, Trial, change_from, judge_moves
from dpdist.inference.moves.delete import Deletes, propose_deletes
from dpdist.inference.moves.merge import Merges, pair_gains, propose_merges
from dpdist.inference.moves.plan import MovePlan
from dpdist.inference.moves.split import Splits, seed_children
from dpdist.inference.state import Cooldown, Record, State
from dpdist.models.families.base import Rows
from dpdist.models.mixture import Model, Posterior
from dpdist.models.sufficient_statistics import Summary, concatenate

#: A component whose count changed by this share since its splits were refused counts as a new one.
CHANGED = 0.1


@dataclass(frozen=True, eq=False)
class ComponentMap:
    """What a lap's end makes of every batch summary: small, and the same for batch summaries and total.

    Parameters
    ----------
    change : from the old components to the new ones
    before, after : trials of the lap that ends and of the next one
    child_rows : rows of the old splits' measurements that go on
    fresh : number of new children
    """

    change: Change
    before: tuple[Trial, ...]
    after: tuple[Trial, ...]
    child_rows: np.ndarray
    fresh: int

    def batch_summary(self, batch_summary: BatchSummary) -> BatchSummary:
        """an old batch summary in the new components; children go on from theirs, new ones from nothing."""
        summary = self.change.apply(batch_summary.summary, self.before, batch_summary.trials)
        columns = summary.stats.shape[1]
        going_on = batch_summary.trials[0].take(self.child_rows)
        return BatchSummary(summary, self.measurements(going_on, np.zeros((self.fresh, columns))))

    def measurements(self, going_on: Summary, seeds: np.ndarray) -> tuple[Summary, ...]:
        """Of the next lap's trials: splits that go on, then new ones; nothing yet of merges and deletes."""
        splits = concatenate([replace(going_on, base=0.0), Summary(seeds, np.zeros(len(seeds)))])
        return (splits, *(trial.blank(seeds.shape[1]) for trial in self.after[1:]))


@dataclass(frozen=True, eq=False)
class LapMoves:
    """What a lap's end decided: the new components and what is tried on them next."""

    component_map: ComponentMap
    ids: np.ndarray
    next_id: int
    seeds: np.ndarray  # (rows, F) statistics of new children
    rows: np.ndarray  # (K,) rows of the new components, each counted once whatever its weight
    cooldowns: dict[int, Cooldown]
    records: tuple[Record, ...]
    accepted: int
    pending: bool

    @property
    def start(self) -> BatchSummary | None:
        """The batch summary that stands in for rows which new children have not seen; None if there are none."""
        if not len(self.seeds):
            return None
        components, columns = len(self.ids), self.seeds.shape[1]
        going_on = Summary.zeros(len(self.component_map.child_rows), columns)
        return BatchSummary(Summary.zeros(components, columns), self.component_map.measurements(going_on, self.seeds))


def no_trials(plan: MovePlan) -> tuple[Trial, ...]:
    """Splits, merges and deletes, none of each."""
    empty = np.zeros(0, dtype=np.intp)
    return (
        Splits(empty, plan.children, empty, np.zeros(0)),
        Merges(np.zeros((0, 2), dtype=np.intp)),
        Deletes(empty, np.zeros((0, plan.absorbers), dtype=np.intp)),
    )


def arm(model: Model, posterior: Posterior, total: BatchSummary, trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Trials ready to measure under `posterior`, with the totals so far."""
    return tuple(trial.armed(model, posterior, measured) for trial, measured in zip(trials, total.trials, strict=True))


def sampling_probabilities_of(
    plan: MovePlan, cooldowns: Mapping[int, Cooldown], ids: np.ndarray, rows: np.ndarray, lap: int, row_bytes: int
) -> np.ndarray:
    """(K,) chance with which a row of `lap` joins the sample of its component, so that enough of each are drawn.

    Components that will not be given new children when the lap ends are left out, and so are the last ones where the
    children of so many would not fit into the sample.

    Parameters
    ----------
    plan, cooldowns, lap : who may be given children
    ids : (K,)
    rows : (K,) expected rows of each component, whatever their weights
    row_bytes : size of a row
    """
    wanted = np.array([plan.split and may_split(cooldowns, int(i), lap + 1, plan) for i in ids])
    wanted &= np.cumsum(wanted) <= plan.sample_bytes // (row_bytes * plan.children)
    each = rows_of_each(plan, int(wanted.sum()), row_bytes)
    return np.where(wanted, np.minimum(1.0, 1.2 * each / np.maximum(rows, 1.0)), 0.0)


def rows_of_each(plan: MovePlan, components: int, row_bytes: int) -> int:
    """Rows that a lap's sample may hold of each of so many components."""
    return min(plan.sample, plan.sample_bytes // (row_bytes * max(1, components)))


def take_lap_moves(problem: Problem, backend: Backend, state: State, total: BatchSummary, settled: bool) -> LapMoves:
    """Decide the end of a lap.

    Parameters
    ----------
    problem, backend : the run's
    state : as it stands after the lap's last batch
    total : exact sum over all batches
    settled : whether the ELBO hardly changed this lap, so that resting components are called up
    """
    model, plan, trials = problem.model, problem.plan, state.trials
    verdicts = judge_moves(model, total.summary, trials, total.trials, problem.precision.dtype)
    verdicts = [postponed(verdict, _splits(trials), plan) for verdict in verdicts]
    change = change_from(model, total.summary, trials, total.trials, verdicts)
    ids, next_id = change.identities(state.ids, state.next_id, total.summary, trials, total.trials)
    summary = change.apply(total.summary, trials, total.trials)
    cooldowns = _rests(state, verdicts, change, dict(zip(ids.tolist(), summary.counts.tolist(), strict=True)), plan)
    if settled:
        cooldowns = {i: rest._replace(until=min(rest.until, state.lap + 1)) for i, rest in cooldowns.items()}
    going = _going_on(verdicts, change, _splits(trials))
    old = _continued(state, verdicts, going, ids)
    births = _births(problem, backend, state, summary, ids, _candidates(state, change, old, ids, cooldowns, plan))
    cooldowns |= {int(ids[k]): Cooldown(plan.tries, state.lap + 1, float(summary.counts[k])) for k in births.hopeless}
    following = (_with_births(old, births), *_merges_and_deletes(model, summary, plan, [*old.targets, *births.targets]))
    waiting = plan.split and any(i not in cooldowns or cooldowns[i].refusals < plan.tries for i in ids.tolist())
    return LapMoves(
        component_map=ComponentMap(change, trials, following, _rows_of(_splits(trials), going), len(births.stats)),
        ids=ids,
        next_id=next_id,
        seeds=births.stats,
        rows=_rows_seen(state, change, summary),
        cooldowns=cooldowns,
        records=tuple(_record(v, state) for v in verdicts),
        accepted=len(change.accepted),
        pending=bool(len(following[0]) or waiting),
    )


def _rows_seen(state: State, change: Change, summary: Summary) -> np.ndarray:
    """(K,) rows of the components after a `change`, each counted once, as `summary` does where they have no weights."""
    seen = None if state.sample is None else state.sample.seen
    return summary.counts if seen is None else change.apply(seen.summary, state.trials, seen.trials).counts


def _splits(trials: Sequence[Trial]) -> Splits:
    """The splits among the trials of a lap; they come first."""
    assert isinstance(trials[0], Splits)
    return trials[0]


def _candidates(
    state: State, change: Change, old: Splits, ids: np.ndarray, cooldowns: Mapping[int, Cooldown], plan: MovePlan
) -> dict[int, tuple[Rows, np.ndarray]]:
    """Sampled rows and weights of the components, by new position, that may be given new children."""
    if not plan.split:
        return {}
    busy = set(old.targets.tolist())
    free = [k for k in range(len(ids)) if k not in busy and may_split(cooldowns, int(ids[k]), state.lap + 1, plan)]
    samples = _samples(state, change, plan)
    return {k: samples[k] for k in free if k in samples}


def may_split(cooldowns: Mapping[int, Cooldown], identity: int, lap: int, plan: MovePlan) -> bool:
    """Whether a component may be given a new split in `lap`."""
    rest = cooldowns.get(identity)
    return rest is None or (rest.refusals < plan.tries and rest.until <= lap)


def postponed(verdict: MoveVerdict, splits: Splits, plan: MovePlan) -> MoveVerdict:
    """Let children that do not pay yet go on while their improvement may still lead to a gain."""
    if verdict.trial != 0 or verdict.reason is not Reason.NO_GAIN:
        return verdict
    age, before = int(splits.ages[verdict.proposal]), float(splits.gains[verdict.proposal])
    left = plan.refine - age - 1
    reachable = not np.isfinite(before) or verdict.gain + left * (verdict.gain - before) > 0
    return verdict._replace(reason=Reason.REFINING) if left > 0 and reachable else verdict


def _going_on(verdicts: Sequence[MoveVerdict], change: Change, splits: Splits) -> np.ndarray:
    """Positions of the splits that go on refining: postponed, and their component untouched."""
    kept = set(change.kept.tolist())
    going = [v.proposal for v in verdicts if v.trial == 0 and v.reason is Reason.REFINING]
    return np.array(sorted(j for j in going if int(splits.targets[j]) in kept), dtype=np.intp)


def _continued(state: State, verdicts: Sequence[MoveVerdict], going: np.ndarray, ids: np.ndarray) -> Splits:
    """The splits that go on, with their components' new positions and latest gains."""
    splits = _splits(state.trials)
    places = {int(identity): place for place, identity in enumerate(ids)}
    gains = {verdict.proposal: verdict.gain for verdict in verdicts if verdict.trial == 0}
    return Splits(
        targets=np.array([places[int(state.ids[splits.targets[j]])] for j in going], dtype=np.intp),
        children=splits.children,
        ages=splits.ages[going] + 1,
        gains=np.array([gains[int(j)] for j in going], dtype=np.float64),
    )


def _rows_of(splits: Splits, proposals: np.ndarray) -> np.ndarray:
    """Rows of a measurement that belong to some splits' children."""
    rows = proposals[:, None] * splits.children + np.arange(splits.children)
    return rows.ravel().astype(np.intp)


def _rests(
    state: State, verdicts: Sequence[MoveVerdict], change: Change, counts: Mapping[int, float], plan: MovePlan
) -> dict[int, Cooldown]:
    """Who rests: components whose split was refused, that no move touched and whose count hardly changed."""
    untouched = {int(state.ids[k]) for k in change.kept}
    cooldowns = {identity: rest for identity, rest in state.cooldowns.items() if identity in untouched}
    for verdict in verdicts:
        identity = int(state.ids[state.trials[verdict.trial].removed(verdict.proposal)[0]])
        refused = verdict.reason in (Reason.NO_GAIN, Reason.ROUNDING, Reason.LIMIT)
        if verdict.trial == 0 and refused and identity in untouched:
            refusals = cooldowns[identity].refusals + 1 if identity in cooldowns else 1
            cooldowns[identity] = Cooldown(refusals, state.lap + 1 + plan.rest, counts[identity])
    return {i: rest for i, rest in cooldowns.items() if abs(counts[i] - rest.size) <= CHANGED * rest.size}


class _Births(NamedTuple):
    targets: list[int]
    stats: np.ndarray  # (J * M, F)
    hopeless: list[int]  # candidates without enough distinct rows


def _births(
    problem: Problem,
    backend: Backend,
    state: State,
    summary: Summary,
    ids: np.ndarray,
    samples: Mapping[int, tuple[Rows, np.ndarray]],
) -> _Births:
    """Children for each component of `samples`, each analysed in a task of its own."""
    blank = np.zeros((0, summary.stats.shape[1]))
    limit = problem.model.allocation.max_components
    if not samples or (limit is not None and len(ids) >= limit):
        return _Births([], blank, [])
    targets = list(samples)
    refs = backend.map(
        _seed_task,
        [backend.share((problem.model, problem.plan))] * len(targets),
        [samples[k] for k in targets],
        [float(summary.counts[k]) for k in targets],
        [(problem.seed, state.lap, int(ids[k])) for k in targets],
    )
    found = dict(zip(targets, backend.fetch(refs), strict=True))
    good = [k for k in targets if found[k] is not None]
    stats = np.concatenate([found[k] for k in good]) if good else blank
    return _Births(good, stats, [k for k in targets if found[k] is None])


def _seed_task(
    shared: tuple[Model, MovePlan], sample: tuple[Rows, np.ndarray], count: float, key: tuple[int, int, int]
) -> np.ndarray | None:
    (model, plan), (rows, weights), (seed, lap, identity) = shared, sample, key
    rng = generator(seed, "seed children", lap, identity)
    with one_thread():
        return seed_children(model, rows, weights, count, plan, rng)


def _with_births(old: Splits, births: _Births) -> Splits:
    count = len(births.targets)
    return Splits(
        targets=np.concatenate([old.targets, np.array(births.targets, dtype=np.intp)]),
        children=old.children,
        ages=np.concatenate([old.ages, np.zeros(count, dtype=np.intp)]),
        gains=np.concatenate([old.gains, np.full(count, -np.inf)]),
    )


def _samples(state: State, change: Change, plan: MovePlan) -> dict[int, tuple[Rows, np.ndarray]]:
    """Sampled rows and weights of the components that no move touched, by their new position."""
    if state.sample is None:
        return {}
    places = {int(old): place for place, old in enumerate(change.order)}
    drawn = {places[i]: state.sample.of(int(k), plan.sample) for i, k in enumerate(change.kept)}
    return {place: part for place, part in drawn.items() if len(part[1])}


def _merges_and_deletes(
    model: Model, summary: Summary, plan: MovePlan, splitting: Sequence[int]
) -> tuple[Merges, Deletes]:
    components = len(summary.entropy)
    _, merges, deletes = no_trials(plan)
    assert isinstance(merges, Merges) and isinstance(deletes, Deletes)
    if components < 2 or not (plan.merge or plan.delete):
        return merges, deletes
    gains = pair_gains(model, summary)
    if plan.merge:
        merges = propose_merges(gains, plan.merges * components)
    if plan.delete and components > plan.absorbers:
        busy = np.isin(np.arange(components), splitting)
        deletes = propose_deletes(summary, gains, busy, plan.absorbers, max(1, components // 10))
    return merges, deletes


def _record(verdict: MoveVerdict, state: State) -> Record:
    trial = state.trials[verdict.trial]
    ids = tuple(int(state.ids[k]) for k in trial.removed(verdict.proposal))
    return Record(trial.kind, ids, verdict.gain, verdict.reason)
