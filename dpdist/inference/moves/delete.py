"""Delete: the rows of a small component are divided among a few given absorbers.

Only the target's own responsibilities are reassigned, so a delete changes its absorbers and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from dpdist.core.checks import COUNT
from dpdist.core.settings import check_settings, documented, setting
from dpdist.core.stored import Stored
from dpdist.inference.moves.accept import Verdict
from dpdist.inference.moves.base import Following, LapEnd, Move, Proposals
from dpdist.inference.moves.divide import divide
from dpdist.models.mixture import Block, Model, Posterior
from dpdist.models.sufficient_statistics import Summary

#: One in this many components is tried in a lap.
_EACH = 10


@dataclass(frozen=True, eq=False)
class Deletes(Proposals):
    """Components that may be deleted.

    Parameters
    ----------
    targets : (J,) intp
    absorbers : (J, M) intp, the components that absorb each target's rows
    coefficients : (J * M, F), or None before a posterior exists
    """

    targets: Annotated[np.ndarray, Stored(("delete",), "component that may be deleted")]
    absorbers: Annotated[np.ndarray, Stored(("delete", "absorber"), "components that would get its rows")]
    coefficients: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def blank(self, columns: int) -> Summary:
        return Summary.zeros(self.absorbers.size, columns)

    def armed(self, model: Model, posterior: Posterior, measured: Summary) -> Deletes:
        """The same deletes with the absorbers' columns of the posterior's coefficients."""
        return replace(self, coefficients=np.ascontiguousarray(posterior.coefficients.T[self.absorbers.ravel()]))

    def measure(self, block: Block) -> Summary:
        if not len(self) or self.coefficients is None:
            return self.blank(block.features.shape[1])
        ends = np.arange(1, len(self) + 1) * self.absorbers.shape[1]
        return divide(block, self.targets[:, None], ends, self.absorbers.ravel(), self.coefficients)

    def removed(self, proposal: int) -> tuple[int, ...]:
        return (int(self.targets[proposal]), *(int(k) for k in self.absorbers[proposal]))

    def replacement(self, proposal: int, summary: Summary, measured: Summary) -> Summary:
        width = self.absorbers.shape[1]
        rows = slice(proposal * width, (proposal + 1) * width)
        index = self.absorbers[proposal]
        return Summary(summary.stats[index] + measured.stats[rows], summary.entropy[index] + measured.entropy[rows])

    def heirs(self, proposal: int, summary: Summary, measured: Summary) -> tuple[int, ...]:
        return tuple(int(k) for k in self.absorbers[proposal])


def propose_deletes(total: Summary, pair_gains: np.ndarray, busy: np.ndarray, absorbers: int, limit: int) -> Deletes:
    """At most `limit` of the smallest components, each with its best merge partners as absorbers.

    `busy` (K,) marks components excluded because another move works on them. Proposals are disjoint.
    """
    gains = np.maximum(pair_gains, pair_gains.T)
    free = ~busy
    chosen: list[tuple[int, np.ndarray]] = []
    for target in np.argsort(total.counts, kind="stable"):
        partners = np.flatnonzero(free & (np.arange(len(free)) != target))
        if len(chosen) >= limit or len(partners) < absorbers:
            break
        if not free[target]:
            continue
        best = partners[np.argsort(-gains[target, partners], kind="stable")[:absorbers]]
        chosen.append((int(target), best))
        free[target] = False
        free[best] = False
    targets = np.array([target for target, _ in chosen], dtype=np.intp)
    return Deletes(targets, np.array([best for _, best in chosen], dtype=np.intp).reshape(-1, absorbers))


@documented
@dataclass(frozen=True)
class Delete(Move[Deletes]):
    """Divide the rows of a small component among others."""

    absorbers: int = setting(3, COUNT, "Number of components among which the rows are divided.")

    def __post_init__(self) -> None:
        check_settings(self, " of Delete")

    def none(self) -> Deletes:
        return Deletes(np.zeros(0, dtype=np.intp), np.zeros((0, self.absorbers), dtype=np.intp))

    def propose(
        self, end: LapEnd, before: Deletes, verdicts: Sequence[Verdict], others: Sequence[Proposals]
    ) -> Following:
        components = len(end.ids)
        if components <= self.absorbers:
            return Following(self.none())
        busy = np.zeros(components, dtype=bool)
        for proposals in others:
            busy[proposals.reserved()] = True
        limit = max(1, components // _EACH)
        return Following(propose_deletes(end.summary, end.pair_gains, busy, self.absorbers, limit))
