"""Divisions: what groups of components hold is divided among replacements that were found in a sample of their rows.

Splits divide one component, regroups several. Workers measure the replacements for some laps; replacements that do not
pay at once go on being refined, and a group whose replacements never paid is left alone for a while.
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

#: Refused for what they are, not because something else gained more.
_REFUSED = (Reason.NO_GAIN, Reason.ROUNDING, Reason.LIMIT)


@dataclass(frozen=True, eq=False)
class Divisions(Proposals):
    """Divisions under way, and the groups that rest after refused ones.

    Parameters
    ----------
    groups : (J, G) intp, components whose rows are divided, -1 where a group has fewer; the first names the group
    ends : (J,) intp, behind the last replacement of each; those of all groups stand one after the other, C in all
    ages : (J,) int, laps spent so far
    gains : (J,) float, exact gain at the end of the last lap; -inf before the first
    cooldowns : of groups, by the component that names them, where a move goes by it
    searched : groups in which nothing was found, where a move goes by them
    coefficients : (C, F) or None before a posterior was made
    """

    groups: Annotated[np.ndarray, Stored(("division", "member"), "components that are divided together, or -1")]
    ends: Annotated[np.ndarray, Stored(("division",), "place behind the last of its replacements")]
    ages: Annotated[np.ndarray, Stored(("division",), "laps the replacements have been refined")]
    gains: Annotated[np.ndarray, Stored(("division",), "exact gain at the end of the last lap", "nat")]
    cooldowns: Cooldowns = field(default_factory=Cooldowns)
    searched: SearchedGroups = field(default_factory=SearchedGroups)
    coefficients: np.ndarray | None = None

    @classmethod
    def begun(cls, groups: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> Divisions:
        """Of so many replacements each, none of which was measured yet."""
        ages = np.zeros(len(groups), dtype=np.intp)
        return cls(_padded(groups), np.cumsum(sizes, dtype=np.intp), ages, np.full(len(groups), -np.inf))

    def __len__(self) -> int:
        return len(self.groups)

    def blank(self, columns: int) -> Summary:
        return Summary.zeros(int(self.ends[-1]) if len(self) else 0, columns)

    def armed(self, model: Model, posterior: Posterior, measured: Summary) -> Divisions:
        """The same divisions with the replacements' posterior made from their statistics so far."""
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
        """(J,) replacements of each group."""
        return np.diff(self.ends, prepend=0)

    def rows_of(self, proposal: int) -> slice:
        """Where the replacements of a group stand in a measurement."""
        return slice(int(self.ends[proposal] - self.sizes[proposal]), int(self.ends[proposal]))

    def replacement(self, proposal: int, summary: Summary, measured: Summary) -> Summary:
        rows = self.rows_of(proposal)
        return Summary(measured.stats[rows], measured.entropy[rows])

    def heirs(self, proposal: int, summary: Summary, measured: Summary) -> tuple[int, ...]:
        """A component's identity goes to the replacement nearest to it, the closest pairs first."""
        removed, rows = np.array(self.removed(proposal)), self.rows_of(proposal)
        old = summary.stats[removed] / np.maximum(summary.counts[removed], 1e-300)[:, None]
        new = measured.stats[rows] / np.maximum(measured.counts[rows], 1e-300)[:, None]
        with np.errstate(over="ignore"):  # of what is infinitely far apart the order is of no consequence
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
        # The children's own sum: the parent was rounded separately.
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

    Its parameters say for how many laps replacements are refined, ``refine``.
    """

    refine: int

    @abstractmethod
    def births(
        self, end: LapEnd, busy: np.ndarray, resting: Divisions, others: Sequence[Proposals]
    ) -> Mapping[tuple[int, ...], np.ndarray | None]:
        """Groups to divide, each with statistics (M, F) of its replacements, or None where none can be found.

        Parameters
        ----------
        end : how things stand
        busy : (K,) bool, components that are being divided already
        resting : no divisions, but which groups rest
        others : what moves before this one in the list try in the next lap
        """

    @abstractmethod
    def resting(self, end: LapEnd, before: Divisions, refused: Sequence[tuple[int, ...]]) -> Divisions:
        """No divisions, but which groups rest after a lap: those of `before`, as far as they stay, and `refused`.

        Parameters
        ----------
        end : of the lap
        before : what was known of groups
        refused : groups of untouched components for which nothing was found, or nothing that gains
        """

    @abstractmethod
    def unfinished(self, end: LapEnd, resting: Divisions) -> bool:
        """Whether there are groups left to try."""

    def none(self) -> Divisions:
        return Divisions.begun([], [])

    def postpones(self, proposals: Divisions, proposal: int, gain: float) -> bool:
        """Whether the replacements' improvement, if it goes on as in the last lap, may still lead to a gain."""
        left = self.refine - int(proposals.ages[proposal]) - 1
        return may_overtake(gain, float(proposals.gains[proposal]), left)

    def propose(
        self, end: LapEnd, before: Divisions, verdicts: Sequence[Verdict], others: Sequence[Proposals]
    ) -> Following:
        # Where an accepted move took a component away or changed it, its division ends with it: the replacements
        # divided the responsibilities of a component that is there no more.
        untouched = {v.proposal: v for v in verdicts if set(before.removed(v.proposal)) <= end.places.keys()}
        going = sorted(j for j, v in untouched.items() if v.reason is Reason.REFINING)
        places = {j: tuple(end.places[k] for k in before.removed(j)) for j in untouched}
        refused = [places[j] for j, v in untouched.items() if v.reason in _REFUSED]
        # What was found in a part of a division that came to nothing by another move may be found again.
        parted = [before.removed(v.proposal) for v in verdicts if v.proposal not in untouched]
        free = [{int(end.ids[end.places[k]]) for k in group if k in end.places} for group in parted]
        before = replace(before, searched=before.searched.without(free))
        resting = self.resting(end, before, refused)
        groups = [places[j] for j in going]
        busy = np.zeros(len(end.ids), dtype=bool)
        busy[[k for group in groups for k in group]] = True
        # New replacements begin with what a sample says of them. They are measured in the coming lap and judged at its
        # end, together with the older ones, which have been refined on all rows since.
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
    """Groups as rows of one array, -1 where they have fewer members."""
    padded = np.full((len(groups), max(map(len, groups), default=1)), -1, dtype=np.intp)
    for row, group in zip(padded, groups, strict=True):
        row[: len(group)] = group
    return padded


def _start(carried: int, seeds: Sequence[np.ndarray]) -> Summary | None:
    """What stands in for rows that new replacements have not seen; those that go on have seen them all."""
    if not seeds:
        return None
    stats = np.concatenate([np.zeros((carried, seeds[0].shape[1])), *seeds])
    return Summary(stats, np.zeros(len(stats)))
