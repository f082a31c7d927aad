"""Components that are skipped for some laps, because proposals for them were refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np

from dpdist.core.stored import Stored

if TYPE_CHECKING:
    from dpdist.inference.moves.base import LapEnd

#: A component whose count has changed by more than this share since its refusal counts as new.
CHANGED = 0.1


def _none() -> np.ndarray:
    return np.zeros(0, dtype=np.int64)


class Cooldown(NamedTuple):
    """Cooldown of a component: number of refusals, first lap in which it may be tried again, count when refused."""

    refusals: int
    until: int
    size: float


@dataclass(frozen=True, eq=False)
class Cooldowns:
    """Cooldowns of components, one entry per component in each array (R,)."""

    ids: Annotated[np.ndarray, Stored(("cooldown",), "id of a component that was refused")] = field(
        default_factory=_none
    )
    refusals: Annotated[np.ndarray, Stored(("cooldown",), "number of refusals")] = field(default_factory=_none)
    until: Annotated[np.ndarray, Stored(("cooldown",), "lap from which the component may be tried again")] = field(
        default_factory=_none
    )
    sizes: Annotated[np.ndarray, Stored(("cooldown",), "expected count of the component at the last refusal")] = field(
        default_factory=lambda: np.zeros(0)
    )

    @classmethod
    def of(cls, entries: Mapping[int, Cooldown]) -> Cooldowns:
        """Cooldowns from a mapping by component id."""
        values = list(entries.values())
        return cls(
            np.array(list(entries), dtype=np.int64),
            np.array([each.refusals for each in values], dtype=np.int64),
            np.array([each.until for each in values], dtype=np.int64),
            np.array([each.size for each in values], dtype=np.float64),
        )

    @cached_property
    def entries(self) -> Mapping[int, Cooldown]:
        """Component id -> cooldown."""
        columns = (self.refusals.tolist(), self.until.tolist(), self.sizes.tolist())
        return {i: Cooldown(*values) for i, *values in zip(self.ids.tolist(), *columns, strict=True)}

    def refused(self, ids: np.ndarray) -> np.ndarray:
        """(K,) int, how often each component was refused."""
        return np.array([self.entries[i].refusals if i in self.entries else 0 for i in ids.tolist()], dtype=np.intp)

    def exhausted(self, ids: np.ndarray, tries: int) -> np.ndarray:
        """(K,) bool, components refused at least `tries` times; they are skipped until they change."""
        return self.refused(ids) >= tries

    def cooling(self, ids: np.ndarray, lap: int) -> np.ndarray:
        """(K,) bool, components whose cooldown lasts beyond `lap`, regardless of their number of refusals."""
        return np.array([i in self.entries and self.entries[i].until > lap for i in ids.tolist()], dtype=bool)

    def allow(self, ids: np.ndarray, lap: int, tries: int) -> np.ndarray:
        """(K,) bool, components that may be tried in `lap`."""
        return np.asarray(~self.cooling(ids, lap) & ~self.exhausted(ids, tries))

    def after(self, end: LapEnd, refused: Iterable[int], laps: int) -> Cooldowns:
        """Cooldowns after a lap: kept for components that no move touched and whose counts hardly changed.

        Parameters
        ----------
        end : end of the lap
        refused : positions of untouched components whose cooldown starts now
        laps : length of a cooldown
        """
        untouched = set(end.ids[end.origins >= 0].tolist())
        sizes = dict(zip(end.ids.tolist(), end.summary.counts.tolist(), strict=True))
        entries = {i: each for i, each in self.entries.items() if i in untouched}
        for identity in end.ids[list(refused)].tolist():
            before = entries[identity].refusals if identity in entries else 0
            entries[identity] = Cooldown(before + 1, end.lap + 1 + laps, sizes[identity])
        entries = {i: each for i, each in entries.items() if abs(sizes[i] - each.size) <= CHANGED * each.size}
        if end.settled:  # before a run converges, it tries every component once more
            entries = {i: each._replace(until=min(each.until, end.lap + 1)) for i, each in entries.items()}
        return Cooldowns.of(entries)
