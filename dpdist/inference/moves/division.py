"""Divisions: the rows of a group of components are divided among replacements found in a sample of these rows.

A split divides one component, a regroup several. Workers measure the replacements for some laps. Replacements that do
not gain at once are refined further; a group whose replacements never gained is skipped for a while.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated

import numpy as np

from dpdist.core.stored import Stored
from dpdist.inference.moves.accept import Reason, Verdict, may_overtake
from dpdist.inference.moves.base import Following, LapEnd, Move, Proposals
from dpdist.inference.moves.cooldown import Cooldowns
from dpdist.inference.moves.divide import divide
from dpdist.inference.moves.searched import SearchedGroups
from dpdist.models.mixture import Block, Model, Posterior
from dpdist.models.sufficient_statistics import Summary

#: Reasons of a refusal that depend on the proposal alone, not on a better one.
_REFUSED = (Reason.NO_GAIN, Reason.ROUNDING, Reason.LIMIT)


@dataclass(frozen=True, eq=False)
class Divisions(Proposals):
    """Divisions in progress, and the groups that are skipped after refusals.

    Parameters
    ----------
    groups : (J, G) intp, components that are divided together, padded with -1; the first identifies the group
    ends : (J,) intp, end index of each group's replacements; the C replacements of all groups are stored consecutively
    ages : (J,) int, laps spent so far
    gains : (J,) float, exact gain at the end of the last lap; -inf before the first
    cooldowns : of groups, by their first component, for moves that use them
    searched : groups in which nothing was found, for moves that use them
    coefficients : (C, F), or None before a posterior exists
    """

    groups: Annotated[np.ndarray, Stored(("division", "member"), "components that are divided together, or -1")]
    ends: Annotated[np.ndarray, Stored(("division",), "end index of the replacements of a division")]
    ages: Annotated[np.ndarray, Stored(("division",), "number of laps in which the replacements were refined")]
    gains: Annotated[np.ndarray, Stored(("division",), "exact gain at the end of the last lap", "nat")]
    cooldowns: Cooldowns = field(default_factory=Cooldowns)
    searched: SearchedGroups = field(default_factory=SearchedGroups)
    coefficients: np.ndarray | None = None

    @classmethod
    def begun(cls, groups: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> Divisions:
        """New divisions with `sizes` replacements each, none of which was measured yet."""
        ages = np.zeros(len(groups), dtype=np.intp)
        return cls(_padded(groups), np.cumsum(sizes, dtype=np.intp), ages, np.full(len(groups), -np.inf))

    def __len__(self) -> int:
        return len(self.groups)

    def blank(self, columns: int) -> Summary:
        return Summary.zeros(int(self.ends[-1]) if len(self) else 0, columns)

    def armed(self, model: Model, posterior: Posterior, measured: Summary) -> Divisions:
        """The same divisions with the posterior of the replacements, computed from their statistics so far."""
        if not len(self):
            return self
        coefficients = model.gradients(measured.stats, self.ends)
        return replace(self, coefficients=np.ascontiguousarray(coefficients, dtype=posterior.precision.dtype))

    def measure(self, block: Block) -> Summary:
        if not len(self) or self.coefficients is None:
            return self.blank(block.features.shape[1])
        return divide(block, self.groups, self.ends, np.full(int(self.ends[-1]), -1, dtype=np.intp), self.coefficients)

    def removed(self, proposal: int) -> tuple[int, ...]:
        return tuple(int(k) for k in self.groups[proposal] if k >= 0)

    @cached_property
    def sizes(self) -> np.ndarray:
        """(J,) number of replacements of each group."""
        return np.diff(self.ends, prepend=0)

    def rows_of(self, proposal: int) -> slice:
        """Rows of a measurement that hold the replacements of a group."""
        return slice(int(self.ends[proposal] - self.sizes[proposal]), int(self.ends[proposal]))

    def replacement(self, proposal: int, summary: Summary, measured: Summary) -> Summary:
        rows = self.rows_of(proposal)
        return Summary(measured.stats[rows], measured.entropy[rows])

    def heirs(self, proposal: int, summary: Summary, measured: Summary) -> tuple[int, ...]:
        """Each removed component passes its id to the nearest replacement; the closest pairs are matched first."""
        removed, rows = np.array(self.removed(proposal)), self.rows_of(proposal)
        old = summary.stats[removed] / np.maximum(summary.counts[removed], 1e-300)[:, None]
        new = measured.stats[rows] / np.maximum(measured.counts[rows], 1e-300)[:, None]
        with np.errstate(over="ignore"):  # the order of infinite distances does not matter
            distances = ((old[:, None] - new[None]) ** 2).sum(axis=2)
        heirs: dict[int, int] = {}
        for member, place in zip(
            *np.unravel_index(distances.argsort(axis=None, kind="stable"), distances.shape), strict=True
        ):
            if int(removed[member]) not in heirs.values() and int(place) not in heirs:
                heirs[int(place)] = int(removed[member])
        return tuple(heirs.get(place, -1) for place in range(len(new)))

    def evidence_before(self, proposal: int, evidence: np.ndarray, replaced: Summary, model: Model) -> float:
        removed = self.removed(proposal)
        if len(removed) > 1:
            return float(evidence[list(removed)].sum())
        # Use the sum of the children's statistics, because the parent's were rounded separately.
        return float(model.family.log_evidence(replaced.stats.sum(axis=0, keepdims=True))[0])

    def reserved(self) -> np.ndarray:
        return self.groups[self.groups >= 0]

    def tried(self, ids: np.ndarray) -> np.ndarray:
        tried = self.cooldowns.exhausted(ids, 1)
        tried[self.groups[self.ages > 0, 0]] = True
        return tried

    def cooling(self, ids: np.ndarray, lap: int) -> np.ndarray:
        return self.cooldowns.cooling(ids, lap)


class Dividing(Move[Divisions]):
    """A move that proposes divisions.

    ``refine`` is the number of laps for which replacements are refined.
    """

    refine: int

    @abstractmethod
    def births(
        self, end: LapEnd, busy: np.ndarray, resting: Divisions, others: Sequence[Proposals]
    ) -> Mapping[tuple[int, ...], np.ndarray | None]:
        """Groups to divide, each with statistics (M, F) of its replacements, or None if none were found.

        Parameters
        ----------
        end : the state at the end of the lap
        busy : (K,) bool, components that are already being divided
        resting : holds the groups that are skipped, without divisions
        others : the next proposals of the moves before this one in the list
        """

    @abstractmethod
    def resting(self, end: LapEnd, before: Divisions, refused: Sequence[tuple[int, ...]]) -> Divisions:
        """The groups to skip after a lap, without divisions: those of `before` that stay valid, and `refused`.

        Parameters
        ----------
        end : of the lap
        before : holds the groups skipped so far
        refused : groups of untouched components for which nothing was found, or nothing that gains
        """

    @abstractmethod
    def unfinished(self, end: LapEnd, resting: Divisions) -> bool:
        """Whether some groups are still to be tried."""

    def none(self) -> Divisions:
        return Divisions.begun([], [])

    def postpones(self, proposals: Divisions, proposal: int, gain: float) -> bool:
        """Whether the gain may become positive within the remaining laps, if it keeps rising as in the last lap."""
        left = self.refine - int(proposals.ages[proposal]) - 1
        return may_overtake(gain, float(proposals.gains[proposal]), left)

    def propose(
        self, end: LapEnd, before: Divisions, verdicts: Sequence[Verdict], others: Sequence[Proposals]
    ) -> Following:
        # A division ends when an accepted move removed or changed one of its components, because its replacements
        # divide responsibilities of a component that no longer exists.
        untouched = {v.proposal: v for v in verdicts if set(before.removed(v.proposal)) <= end.places.keys()}
        going = sorted(j for j, v in untouched.items() if v.reason is Reason.REFINING)
        places = {j: tuple(end.places[k] for k in before.removed(j)) for j in untouched}
        refused = [places[j] for j, v in untouched.items() if v.reason in _REFUSED]
        # If another move ended a division, searches of parts of its group may be repeated.
        parted = [before.removed(v.proposal) for v in verdicts if v.proposal not in untouched]
        free = [{int(end.ids[end.places[k]]) for k in group if k in end.places} for group in parted]
        before = replace(before, searched=before.searched.without(free))
        resting = self.resting(end, before, refused)
        groups = [places[j] for j in going]
        busy = np.zeros(len(end.ids), dtype=bool)
        busy[[k for group in groups for k in group]] = True
        # New replacements start with statistics from a sample. They are measured in the coming lap and judged at its
        # end, together with older ones, which have been refined on all rows.
        births = self.births(end, busy, resting, others)
        resting = self.resting(end, resting, [group for group, stats in births.items() if stats is None])
        seeds = {group: stats for group, stats in births.items() if stats is not None}
        sizes = [int(before.sizes[j]) for j in going] + [len(stats) for stats in seeds.values()]
        divisions = replace(
            Divisions.begun([*groups, *seeds], sizes),
            ages=np.concatenate([before.ages[going].astype(np.intp) + 1, np.zeros(len(seeds), dtype=np.intp)]),
            gains=np.concatenate([[untouched[j].gain for j in going], np.full(len(seeds), -np.inf)]),
            cooldowns=resting.cooldowns,
            searched=resting.searched,
        )
        carried = np.concatenate([np.zeros(0, np.intp), *(np.r_[before.rows_of(j)] for j in going)]).astype(np.intp)
        pending = bool(len(divisions)) or self.unfinished(end, resting)
        return Following(divisions, carried, _start(len(carried), list(seeds.values())), pending)


def _padded(groups: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Groups as rows of one array, padded with -1."""
    padded = np.full((len(groups), max(map(len, groups), default=1)), -1, dtype=np.intp)
    for row, group in zip(padded, groups, strict=True):
        row[: len(group)] = group
    return padded


def _start(carried: int, seeds: Sequence[np.ndarray]) -> Summary | None:
    """Statistics in place of the rows that new replacements have not seen; zeros for carried ones, which saw all."""
    if not seeds:
        return None
    stats = np.concatenate([np.zeros((carried, seeds[0].shape[1])), *seeds])
    return Summary(stats, np.zeros(len(stats)))
