"""The exact gain of proposals, and the map from old to new components that the accepted ones define.

The exact gain of a proposal is

    sum A(replacements) - sum A(removed) + A_alloc(counts after) - A_alloc(counts before) + H after - H before

with counts in descending order where the allocation is ordered. Gains add in A and H but not in A_alloc, so each
proposal is judged with the counts that the proposals accepted before it produce (:mod:`dpdist.inference.moves.accept`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, NamedTuple

import numpy as np

from dpdist.core.stored import Stored
from dpdist.inference.moves.accept import Reason, Standing, judge
from dpdist.inference.moves.base import Proposals
from dpdist.models.allocations import Allocation
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary, concatenate

#: A component with an expected count below FAINT is faint: no row belongs to it. One with a count below EMPTY is empty.
#: A component that hardly matters may raise the ELBO by about its count n. So a proposal that adds a faint component
#: must gain more than 2 n nats, and one that removes a faint component may lose up to n nats.
FAINT, EMPTY = 0.5, 1e-3
#: Evidences of replacements are computed in chunks of about this many numbers.
_CHUNK = 2_000_000


class MoveVerdict(NamedTuple):
    """A proposal's exact gain in nats and the decision on it; `move` is the position in the list of moves."""

    move: int
    proposal: int
    gain: float
    reason: Reason


@dataclass(frozen=True, eq=False)
class _Candidate:
    move: int
    proposal: int
    removed: tuple[int, ...]
    counts: np.ndarray  # of the replacements
    fixed: float  # gain in A and H
    scale: float  # magnitude of the numbers from which the gain was computed

    @property
    def growth(self) -> int:
        """How many components the proposal adds."""
        return len(self.counts) - len(self.removed)


def rounding(dtype: type, scale: float, elbo: float) -> float:
    """Nats below which a gain cannot be distinguished from rounding."""
    return 4.0 * float(np.finfo(dtype).eps) * scale + 64 * float(np.finfo(np.float64).eps) * abs(elbo)


def judge_moves(
    model: Model, total: Summary, proposals: Sequence[Proposals], measured: Sequence[Summary], dtype: type = np.float64
) -> list[MoveVerdict]:
    """Exact verdicts on all proposals, best gain first; accepted proposals do not overlap."""
    candidates, counts = _candidates(model, total, proposals, measured), total.counts
    standing = _Counts(
        candidates, model.elbo(total), dtype, model.allocation, counts, np.ones(len(counts), bool), np.zeros(0)
    )
    gains = np.array([standing.gain(j) for j in range(len(candidates))])
    found = judge(standing, gains, exact=True)
    return [MoveVerdict(candidates[j].move, candidates[j].proposal, gain, reason) for j, gain, reason in found]


@dataclass(frozen=True, eq=False)
class _Counts(Standing):
    """Counts of the components after the proposals accepted so far.

    Parameters
    ----------
    candidates : all proposals
    elbo : of the model before any proposal is accepted
    dtype : of the matrix products from which gains were computed
    allocation : of the model
    counts : (K,) of the components before any proposal is accepted
    kept : (K,) bool, components that no accepted proposal removed
    added : counts of the replacements of accepted proposals
    """

    candidates: Sequence[_Candidate]
    elbo: float
    dtype: type
    allocation: Allocation
    counts: np.ndarray
    kept: np.ndarray
    added: np.ndarray

    @cached_property
    def evidence(self) -> float:
        """A_alloc of the components in the order that they will have after the lap."""
        counts = np.concatenate([self.counts[self.kept], self.added])
        return float(self.allocation.log_evidence(self.allocation.in_order(counts)))

    def gain(self, proposal: int) -> float:
        return self.candidates[proposal].fixed + (self.after(proposal).evidence - self.evidence)

    def threshold(self, proposal: int) -> float:
        """Nats that a candidate's gain must exceed: rounding, and more if it would add a faint component.

        If it would remove a faint component, the threshold is lower, so that the component can be removed.
        """
        candidate = self.candidates[proposal]
        noise = rounding(self.dtype, candidate.scale, self.elbo)
        if candidate.growth > 0 and (least := float(candidate.counts.min())) < FAINT:
            return noise + 2 * max(EMPTY, least)
        if candidate.growth < 0 and (least := float(self.counts[list(candidate.removed)].min())) < FAINT:
            return noise - max(EMPTY, least)
        return noise

    def holds(self, proposal: int) -> bool:
        return bool(self.kept[list(self.candidates[proposal].removed)].all())

    def too_many_with(self, proposal: int) -> bool:
        growth, limit = self.candidates[proposal].growth, self.allocation.max_components
        return limit is not None and growth > 0 and int(self.kept.sum()) + len(self.added) + growth > limit

    def after(self, proposal: int) -> _Counts:
        candidate, kept = self.candidates[proposal], self.kept.copy()
        kept[list(candidate.removed)] = False
        return replace(self, kept=kept, added=np.append(self.added, candidate.counts))


def _candidates(
    model: Model, total: Summary, proposals: Sequence[Proposals], measured: Sequence[Summary]
) -> list[_Candidate]:
    """Every proposal with its gain in A and H; the evidences of many replacements are computed together."""
    evidence, candidates = model.family.log_evidence(total.stats), []
    for some in _in_chunks(proposals, total, measured):
        after = model.family.log_evidence(np.concatenate([part.stats for _, _, part in some]))
        ends = np.cumsum([len(part.entropy) for _, _, part in some])
        for (m, j, part), end in zip(some, ends, strict=True):
            own, removed = after[end - len(part.entropy) : end], proposals[m].removed(j)
            before = proposals[m].evidence_before(j, evidence, part, model)
            entropy = float(part.entropy.sum() - total.entropy[list(removed)].sum())
            fixed = float(own.sum()) - before + entropy
            candidates.append(_Candidate(m, j, removed, part.counts.copy(), fixed, float(np.abs(own).sum())))
    return candidates


def _in_chunks(
    proposals: Sequence[Proposals], total: Summary, measured: Sequence[Summary]
) -> Iterator[list[tuple[int, int, Summary]]]:
    """Move index, proposal index and replacements of all proposals, in chunks of about :data:`_CHUNK` numbers."""
    some, numbers = list[tuple[int, int, Summary]](), 0
    for m, tried in enumerate(proposals):
        for j in range(len(tried)):
            part = tried.replacement(j, total, measured[m])
            some.append((m, j, part))
            numbers += part.stats.size
            if numbers >= _CHUNK:
                yield some
                some, numbers = [], 0
    if some:
        yield some


@dataclass(frozen=True, eq=False)
class Change:
    """Accepted proposals as one map from old summaries to new ones.

    ``kept`` holds the untouched components, ``accepted`` the pairs (move, proposal), and ``order`` sorts the kept
    components followed by all replacements.
    """

    kept: Annotated[np.ndarray, Stored(("kept",), "components that the last lap end did not change")]
    accepted: tuple[tuple[int, int], ...]
    order: Annotated[np.ndarray, Stored(("component",), "order of the kept components followed by all replacements")]

    @property
    def origins(self) -> np.ndarray:
        """(K,) position of each new component before the change if it is untouched, else -1."""
        new = len(self.order) - len(self.kept)
        return np.append(self.kept, np.full(new, -1, dtype=np.intp))[self.order]

    def apply(self, summary: Summary, proposals: Sequence[Proposals], measured: Sequence[Summary]) -> Summary:
        """The summary of the same rows after the change; linear, so it applies to batch summaries and to the total."""
        parts = [summary.take(self.kept)]
        parts += [proposals[m].replacement(j, summary, measured[m]) for m, j in self.accepted]
        return concatenate(parts).take(self.order)

    def identities(
        self, ids: np.ndarray, fresh: int, total: Summary, proposals: Sequence[Proposals], measured: Sequence[Summary]
    ) -> tuple[np.ndarray, int]:
        """Component ids after the change, and the next unused id."""
        after = list(ids[self.kept])
        for m, j in self.accepted:
            for heir in proposals[m].heirs(j, total, measured[m]):
                after.append(ids[heir] if heir >= 0 else fresh)
                fresh += heir < 0
        return np.array(after, dtype=np.int64)[self.order], fresh


def change_from(
    model: Model,
    total: Summary,
    proposals: Sequence[Proposals],
    measured: Sequence[Summary],
    verdicts: Sequence[MoveVerdict],
) -> Change:
    """The accepted proposals and the order of components after them."""
    accepted = tuple((v.move, v.proposal) for v in verdicts if v.reason is Reason.ACCEPTED)
    removed = {k for m, j in accepted for k in proposals[m].removed(j)}
    kept = np.array([k for k in range(len(total.entropy)) if k not in removed], dtype=np.intp)
    parts = [total.counts[kept]]
    parts += [proposals[m].replacement(j, total, measured[m]).counts for m, j in accepted]
    counts = np.concatenate(parts)
    ordered = model.allocation.ordered
    order = np.argsort(-counts, kind="stable") if ordered else np.arange(len(counts))
    return Change(kept, accepted, order)
