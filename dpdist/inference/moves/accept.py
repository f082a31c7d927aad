"""The one rule by which changes of a model are accepted.

Proposals are gone through greedily, the most promising first. Each is judged by its gain against the state that those
accepted before it left, because gains do not add: two changes that pay alone may not pay together. What needs something
that an accepted proposal has changed waits for another lap.

A rule knows nothing of models. What is being changed is a :class:`Standing`: it says what a proposal gains on it as it
stands, and how it stands afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, Self

import numpy as np


class Reason(Enum):
    """Why a proposal ended as it did."""

    ACCEPTED = "accepted: the exact ELBO rises"
    NO_GAIN = "refused: the exact ELBO does not rise"
    ROUNDING = "refused: rounding or a component without rows gains as much"
    CONFLICT = "refused: a better proposal changed one of its components"
    LIMIT = "refused: the largest number of components is reached"
    REFINING = "postponed: its children are still improving"
    UNCERTAIN = "refused: other documents might not gain, as sure as was asked"
    ALONG = "accepted along with a birth or delete, whose gain holds this one"

    @property
    def taken(self) -> bool:
        """Whether the proposal was accepted."""
        return self in (Reason.ACCEPTED, Reason.ALONG)


class Standing(ABC):
    """What proposals change, as those accepted so far leave it; a value, never changed in place."""

    @abstractmethod
    def gain(self, proposal: int) -> float:
        """What accepting a proposal now would add to the objective, in nats; asked only where :meth:`holds`."""

    @abstractmethod
    def after(self, proposal: int) -> Self:
        """How things stand once a proposal is accepted."""

    def threshold(self, proposal: int) -> float:
        """Nats that a gain must exceed; below zero only for what tidies up and may cost that much."""
        return 0.0

    def holds(self, proposal: int) -> bool:
        """Whether all that a proposal would change is still as it was when the proposal was made."""
        return True

    def too_many_with(self, proposal: int) -> bool:
        """Whether there would be more components with a proposal than are allowed."""
        return False


class Verdict(NamedTuple):
    """What became of a proposal, and its gain in nats when that was decided; NaN where it was not asked for."""

    proposal: int
    gain: float
    reason: Reason


def judge(
    standing: Standing, promise: np.ndarray, exact: bool = False, doubts: np.ndarray | None = None
) -> list[Verdict]:
    """Verdicts on all proposals, the most promising first.

    Parameters
    ----------
    standing : before any is accepted
    promise : (P,) by how much each proposal seems to gain; of those alike to six digits the first is judged first, for
        two ways to the same change differ by rounding
    exact : whether `promise` holds the exact gains before anything is accepted. Then proposals that do not gain alone
        are refused for that without another look.
    doubts : (P,) nats that each gain must exceed as well, where gains are estimated from a part of the data
    """
    verdicts = []
    for proposal in np.argsort(-_to_digits(promise), kind="stable").tolist():
        gain, free = float(promise[proposal]), standing.holds(proposal)
        threshold = standing.threshold(proposal)
        if free and (gain > 0 or gain > threshold or not exact):
            gain = standing.gain(proposal)
        elif not exact:
            gain = np.nan
        doubt = -np.inf if doubts is None else float(doubts[proposal])
        reason = reason_for(gain, threshold, doubt) if free or exact else Reason.CONFLICT
        if reason is Reason.ACCEPTED and not free:
            reason = Reason.CONFLICT
        elif reason is Reason.ACCEPTED and standing.too_many_with(proposal):
            reason = Reason.LIMIT
        elif reason is Reason.ACCEPTED:
            standing = standing.after(proposal)
        verdicts.append(Verdict(proposal, gain, reason))
    return verdicts


def _to_digits(gains: np.ndarray) -> np.ndarray:
    """Gains to 20 bits."""
    mantissa, exponent = np.frexp(gains)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**20), exponent))


def accepted(verdicts: list[Verdict]) -> list[int]:
    """The proposals accepted, in the order in which they were."""
    return [verdict.proposal for verdict in verdicts if verdict.reason is Reason.ACCEPTED]


def reason_for(gain: float, threshold: float, doubt: float = -np.inf) -> Reason:
    """What becomes of a proposal that only its gain speaks for or against; a gain that is not a number is none.

    A loss as small as a gain that is refused for rounding is refused for that, too: which of them it is, is rounding.
    """
    if gain > threshold:
        return Reason.ACCEPTED if gain > doubt else Reason.UNCERTAIN
    least = -abs(threshold) if np.isfinite(threshold) else 0.0
    return Reason.ROUNDING if gain > least else Reason.NO_GAIN


def may_overtake(gain: float, before: float, laps: int) -> bool:
    """Whether what does not gain yet may within some laps, rising as in the last one, when it gained `before`; what was
    not judged then may."""
    return laps > 0 and (not np.isfinite(before) or gain + laps * (gain - before) > 0)


@dataclass(frozen=True, eq=False)
class _Untouched(Standing):
    """Pairs of components, of which those merged so far have `taken` some; what :func:`judge` asks of them."""

    pairs: np.ndarray
    gains: np.ndarray
    taken: frozenset[int] = frozenset()

    def gain(self, proposal: int) -> float:
        return float(self.gains[proposal])

    def holds(self, proposal: int) -> bool:
        return self.taken.isdisjoint(self.pairs[proposal].tolist())

    def after(self, proposal: int) -> Self:
        return replace(self, taken=self.taken.union(self.pairs[proposal].tolist()))


def disjoint(pairs: np.ndarray, gains: np.ndarray, promise: np.ndarray | None = None) -> np.ndarray:
    """Those of some pairs (P, 2) that gain and share no component, taken by `promise` (P,), or by gain, (Q, 2)."""
    verdicts = judge(_Untouched(pairs, gains), gains if promise is None else promise)
    return pairs[np.array(accepted(verdicts), dtype=np.intp)]
