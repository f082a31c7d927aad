"""The end of a lap: judge the proposals, apply the accepted ones, and collect each move's next proposals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.execution.base import Backend
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.candidates import Heirs
from dpdist.inference.mixture.kept import AnyBatchSummary, KeptBatchSummary
from dpdist.inference.mixture.owners import owners_after
from dpdist.inference.mixture.passing_on import samples_after
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.accept import Reason, Verdict
from dpdist.inference.moves.base import AnyMove, Following, LapEnd, Proposals
from dpdist.inference.moves.change import Change, MoveVerdict, change_from, judge_moves
from dpdist.inference.state import Record, State
from dpdist.models.mixture import Model, Posterior
from dpdist.models.sufficient_statistics import Summary


@dataclass(frozen=True, eq=False)
class ComponentMap:
    """The map that a lap end applies to every batch summary: small, and the same for batch summaries and the total.

    Parameters
    ----------
    change : from the old components to the new ones
    before, after : proposals of the lap that ends and of the next one, by move
    carried : by move, the rows of the old proposals' measurement that come first in the new one
    heirs : map from the old components to those that may hold their rows
    """

    change: Change
    before: tuple[Proposals, ...]
    after: tuple[Proposals, ...]
    carried: tuple[np.ndarray, ...]
    heirs: Heirs

    def batch_summary(self, old: AnyBatchSummary) -> AnyBatchSummary:
        """An old batch summary for the new components; the measurements of new proposals start at zero."""
        if isinstance(old, KeptBatchSummary):
            return old.after(self)
        summary = self.change.apply(old.summary, self.before, old.measured)
        blank = [proposals.blank(summary.stats.shape[1]) for proposals in self.after]
        measured = tuple(map(_carried_on, old.measured, self.carried, blank))
        return BatchSummary(summary, measured, owners_after(old.owners, self.heirs))


def _carried_on(measured: Summary, rows: np.ndarray, blank: Summary) -> Summary:
    """A measurement that starts with some rows of an old one and is zero otherwise."""
    if not len(rows):
        return blank
    stats = np.concatenate([measured.stats[rows], blank.stats[len(rows) :]])
    return Summary(stats, np.concatenate([measured.entropy[rows], blank.entropy[len(rows) :]]))


@dataclass(frozen=True, eq=False)
class LapMoves:
    """The result of a lap end: the new components and the next proposals.

    Parameters
    ----------
    component_map : for every batch summary
    ids, next_id : of the new components
    start : batch summary in place of the rows that new replacements have not seen; None if there are none
    rows : (K,) rows of the new components, each counted once regardless of its weight
    records : of all proposals judged
    accepted : number of accepted proposals
    pending : whether any move has more to try
    """

    component_map: ComponentMap
    ids: np.ndarray
    next_id: int
    start: BatchSummary | None
    rows: np.ndarray
    records: tuple[Record, ...]
    accepted: int
    pending: bool


def arm(model: Model, posterior: Posterior, total: BatchSummary, tried: Sequence[Proposals]) -> tuple[Proposals, ...]:
    """Proposals ready to measure under `posterior`, given the totals so far."""
    return tuple(each.armed(model, posterior, measured) for each, measured in zip(tried, total.measured, strict=True))


def take_lap_moves(
    problem: Problem, backend: Backend, state: State, total: BatchSummary, settled: bool, change: float
) -> LapMoves:
    """Judge and apply the proposals of a lap.

    Parameters
    ----------
    problem, backend : of the run
    state : after the last batch of the lap
    total : exact sum over all batches
    settled : whether the ELBO hardly changed in this lap
    change : size of the ELBO's change in this lap, before its moves
    """
    model, moves, tried, measured = problem.model, problem.moves, state.proposals, total.measured
    verdicts = judge_moves(model, total.summary, tried, measured, problem.precision.dtype)
    verdicts = [_or_postponed(verdict, moves[verdict.move], tried[verdict.move]) for verdict in verdicts]
    # From here on, components are those after the accepted moves. `turned` maps the components of the lap to them: the
    # total now, and every batch summary later.
    turned = change_from(model, total.summary, tried, measured, verdicts)
    ids, next_id = turned.identities(state.ids, state.next_id, total.summary, tried, measured)
    summary = turned.apply(total.summary, tried, measured)
    heirs = _heirs(turned, total, tried)
    samples = samples_after(problem, backend, state, total, turned, heirs, summary)
    end = LapEnd(
        model=model,
        backend=backend,
        seed=problem.seed,
        lap=state.lap,
        settled=settled,
        ids=ids,
        summary=summary,
        origins=turned.origins,
        samples=samples,
        change=change,
        made=_made(moves, tried, turned, heirs),
        asked=np.where(turned.origins >= 0, state.sampling_probabilities[turned.origins] > 0, True),
    )
    following = _propose(moves, tried, verdicts, end)
    after = tuple(each.proposals for each in following)
    return LapMoves(
        component_map=ComponentMap(turned, tried, after, tuple(each.carried for each in following), heirs),
        ids=ids,
        next_id=next_id,
        start=_start(following, summary),
        rows=_rows_seen(state, turned, summary),
        records=tuple(_record(verdict, moves[verdict.move], state) for verdict in verdicts),
        accepted=len(turned.accepted),
        pending=any(each.pending for each in following),
    )


def _heirs(change: Change, total: BatchSummary, tried: Sequence[Proposals]) -> Heirs:
    """Map of owners after a change: a removed component passes its rows to all its replacements."""
    pairs = [(int(old), place) for place, old in enumerate(change.kept)]
    place = len(pairs)
    for m, j in change.accepted:
        count = len(tried[m].heirs(j, total.summary, total.measured[m]))
        pairs += [(old, new) for old in tried[m].removed(j) for new in range(place, place + count)]
        place += count
    old, new = np.array(sorted(pairs), dtype=np.intp).T
    return Heirs(old, np.argsort(change.order)[new])


def _made(moves: Sequence[AnyMove], tried: Sequence[Proposals], turned: Change, heirs: Heirs) -> dict[str, np.ndarray]:
    """Kind of move -> positions of the components that it made."""
    made: dict[str, list[int]] = {}
    for m, j in turned.accepted:
        made.setdefault(moves[m].kind, []).extend(heirs.new[heirs.old == tried[m].removed(j)[0]].tolist())
    return {kind: np.array(places, dtype=np.intp) for kind, places in made.items()}


def _or_postponed(verdict: MoveVerdict, move: AnyMove, tried: Proposals) -> MoveVerdict:
    """The verdict on a proposal, or a postponement if its move asks to wait for a gain."""
    waits = verdict.reason is Reason.NO_GAIN and move.postpones(tried, verdict.proposal, verdict.gain)
    return verdict._replace(reason=Reason.REFINING) if waits else verdict


def _propose(
    moves: Sequence[AnyMove], tried: Sequence[Proposals], verdicts: Sequence[MoveVerdict], end: LapEnd
) -> list[Following]:
    """The next proposals of each move, which receives those of the moves before it in the list."""
    found: list[Following] = []
    for place, (move, before) in enumerate(zip(moves, tried, strict=True)):
        own = [Verdict(*verdict[1:]) for verdict in verdicts if verdict.move == place]
        found.append(move.propose(end, before, own, [each.proposals for each in found]))
    return found


def _start(following: Sequence[Following], summary: Summary) -> BatchSummary | None:
    """Statistics in place of rows that new replacements have not seen; zero for components, which have seen all."""
    if all(each.start is None for each in following):
        return None
    components, columns = summary.stats.shape
    measured = [each.proposals.blank(columns) if each.start is None else each.start for each in following]
    return BatchSummary(Summary.zeros(components, columns), tuple(measured))


def _rows_seen(state: State, change: Change, summary: Summary) -> np.ndarray:
    """(K,) rows of the components after a `change`, each counted once; the counts of `summary` without weights."""
    seen = None if state.sample is None else state.sample.seen
    if seen is None:
        return summary.counts
    return change.apply(seen.summary, state.proposals, seen.measured).counts


def _record(verdict: MoveVerdict, move: AnyMove, state: State) -> Record:
    removed = state.proposals[verdict.move].removed(verdict.proposal)
    return Record(move.kind, tuple(int(state.ids[k]) for k in removed), verdict.gain, verdict.reason)
