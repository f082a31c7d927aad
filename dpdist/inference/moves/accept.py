"""The one rule that accepts or refuses changes of a model.

Proposals are judged greedily, the most promising first. Each is judged by its gain in the state that the proposals
accepted before it have produced. Gains do not add: two changes that each gain alone may not gain together. A proposal
whose components were changed by an accepted proposal is refused and may be made again in a later lap.

The rule knows nothing of models. The state being changed is a :class:`Standing`, which computes the gain of a proposal
in this state and the state after a proposal is accepted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, Self

import numpy as np


class Reason(Enum):
    """Why a proposal was accepted, refused or postponed."""

    ACCEPTED = "accepted: the exact ELBO rises"
    NO_GAIN = "refused: the exact ELBO does not rise"
    ROUNDING = "refused: rounding or an empty component would gain as much"
    CONFLICT = "refused: a better proposal changed one of its components"
    LIMIT = "refused: the largest number of components is reached"
    REFINING = "postponed: its children are still improving"
    UNCERTAIN = "refused: below the chosen confidence that other documents gain"
    ALONG = "accepted with a birth or delete, whose gain includes this gain"

    @property
    def taken(self) -> bool:
        """Whether the proposal was accepted."""
        return self in (Reason.ACCEPTED, Reason.ALONG)


class Standing(ABC):
    """The state that proposals change, after those accepted so far; an immutable value."""

    @abstractmethod
    def gain(self, proposal: int) -> float:
        """Increase of the objective in nats if the proposal were accepted now; called only where `holds` is true."""

    @abstractmethod
    def after(self, proposal: int) -> Self:
        """The state after the proposal is accepted."""

    def threshold(self, proposal: int) -> float:
        """Nats that a gain must exceed; negative only for a clean-up that is allowed to lose that much."""
        return 0.0

    def holds(self, proposal: int) -> bool:
        """Whether everything that the proposal would change is unchanged since it was made."""
        return True

    def too_many_with(self, proposal: int) -> bool:
        """Whether accepting the proposal would exceed the allowed number of components."""
        return False


class Verdict(NamedTuple):
    """The decision on a proposal, and its gain in nats at that time; NaN if the gain was not computed."""

    proposal: int
    gain: float
    reason: Reason


def judge(
    standing: Standing, promise: np.ndarray, exact: bool = False, doubts: np.ndarray | None = None
) -> list[Verdict]:
    """Verdicts on all proposals, the most promising first.

    Parameters
    ----------
    standing : the state before any proposal is accepted
    promise : (P,) estimated gain of each proposal; among those with the same six digits the first proposal is judged
        first, because two ways to make the same change differ by rounding
    exact : whether `promise` holds the exact gains before anything is accepted. Then proposals that do not gain alone
        are refused without computing their gain again.
    doubts : (P,) further nats that each gain must exceed, where gains are estimated from a part of the data
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
    """Gains rounded to 20 bits."""
    mantissa, exponent = np.frexp(gains)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**20), exponent))


def accepted(verdicts: list[Verdict]) -> list[int]:
    """Indices of the accepted proposals, in order of acceptance."""
    return [verdict.proposal for verdict in verdicts if verdict.reason is Reason.ACCEPTED]


def reason_for(gain: float, threshold: float, doubt: float = -np.inf) -> Reason:
    """The decision on a single proposal by its gain alone; NaN counts as no gain.

    A loss of at most the threshold's size is also refused with the reason "rounding", because rounding decides its
    sign.
    """
    if gain > threshold:
        return Reason.ACCEPTED if gain > doubt else Reason.UNCERTAIN
    least = -abs(threshold) if np.isfinite(threshold) else 0.0
    return Reason.ROUNDING if gain > least else Reason.NO_GAIN


def may_overtake(gain: float, before: float, laps: int) -> bool:
    """Whether a proposal without a gain may gain within `laps` laps, if its gain keeps rising as it did from `before`.

    True if `before` is not finite, which means that the proposal was not judged before.
    """
    return laps > 0 and (not np.isfinite(before) or gain + laps * (gain - before) > 0)


@dataclass(frozen=True, eq=False)
class _Untouched(Standing):
    """Pairs of components; `taken` holds the components of the pairs accepted so far."""

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
    """Pairs of `pairs` (P, 2) that gain and share no component, (Q, 2), chosen greedily by `promise` (P,) or gain."""
    gaining = np.flatnonzero(gains > 0)
    tried = _Untouched(pairs[gaining], gains[gaining])
    verdicts = judge(tried, (gains if promise is None else promise)[gaining])
    return pairs[gaining[np.array(accepted(verdicts), dtype=np.intp)]]
