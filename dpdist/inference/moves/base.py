"""The interface of a move: it proposes changes to the set of components, and workers measure them during a lap.

At the end of each lap, each :class:`Move` of a run makes its :class:`Proposals` on the coordinator. A proposal removes
some components and puts replacements in their place. During the next lap workers measure what cannot be computed from
the components' own summary (statistics of children, entropies of pairs); measurements add up over rows, as summaries
do. At the end of that lap all proposals of all moves are judged together (:mod:`dpdist.inference.moves.change`), the
accepted ones are applied to every batch summary, and the moves propose again.

A user-defined move is a file with two frozen dataclasses: one holds the move's parameters, the other the arrays that
describe its proposals. :func:`dpdist.testing.check_move` checks it against the laws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from dpdist.execution.base import Backend
from dpdist.inference.moves.accept import Verdict
from dpdist.inference.moves.pairs import screened_losses, with_shared
from dpdist.models.families.base import Rows
from dpdist.models.mixture import Block, Model, Posterior
from dpdist.models.sufficient_statistics import Summary


class Proposals(ABC):
    """What a move tries during a lap, and what it remembers from lap to lap.

    A frozen dataclass of numbers, arrays and further dataclasses of that kind; it is sent to workers and stored with
    the run. Components are identified by their positions during the lap.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Number of proposals."""

    @abstractmethod
    def blank(self, columns: int) -> Summary:
        """The measurement of zero rows, for statistics with `columns` columns."""

    def armed(self, model: Model, posterior: Posterior, measured: Summary) -> Proposals:
        """The same proposals, ready to measure under `posterior`, given what has been measured so far."""
        return self

    @abstractmethod
    def measure(self, block: Block) -> Summary:
        """What the proposals need to know about the rows of a block; additive over rows."""

    @abstractmethod
    def removed(self, proposal: int) -> tuple[int, ...]:
        """Positions of the components that the proposal removes."""

    @abstractmethod
    def replacement(self, proposal: int, summary: Summary, measured: Summary) -> Summary:
        """Summary of the components that replace the removed ones; linear in both arguments."""

    @abstractmethod
    def heirs(self, proposal: int, summary: Summary, measured: Summary) -> tuple[int, ...]:
        """For each replacement, the position of the component whose id it keeps, or -1 for a new id."""

    def evidence_before(self, proposal: int, evidence: np.ndarray, replaced: Summary, model: Model) -> float:
        """Sum of A over the removed components; `evidence` (K,) holds A of every component."""
        return float(evidence[list(self.removed(proposal))].sum())

    def tried(self, ids: np.ndarray) -> np.ndarray:
        """(K,) bool, the components `ids` that the move has tried in their present state without changing them so far.

        A move that should act only after all else was tried calls this on the moves before it in the list.
        """
        return np.ones(len(ids), dtype=bool)

    def cooling(self, ids: np.ndarray, lap: int) -> np.ndarray:
        """(K,) bool, the components `ids` that the move skips in `lap`, because it tried them recently."""
        return np.zeros(len(ids), dtype=bool)

    def reserved(self) -> np.ndarray:
        """Positions of components that this move is working on, so that later moves in the list should skip them."""
        return np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, eq=False)
class LapEnd:
    """What a move may use to make proposals: the components after the accepted moves of the lap were applied.

    Parameters
    ----------
    model : Model
    backend : executes tasks of the move
    seed, lap : keys of random draws; `lap` is the lap that ends
    settled : whether the ELBO hardly changed in this lap
    ids : (K,) component ids
    summary : of the whole data
    origins : (K,) position of each component during the lap, or -1 if a move made or changed it
    samples : by component, rows drawn during the lap and their weights, for components that have any
    change : size of the ELBO's change in this lap before its moves, in nats
    made : by kind of move, positions of the components that it made at this lap end
    losses : ``pair_losses`` if already computed, else None
    asked : (K,) bool, components from which rows were to be drawn in the lap, and components that a move made; None for
        all
    """

    model: Model
    backend: Backend
    seed: int
    lap: int
    settled: bool
    ids: np.ndarray
    summary: Summary
    origins: np.ndarray
    samples: Mapping[int, tuple[Rows, np.ndarray]]
    change: float = np.inf
    made: Mapping[str, np.ndarray] = field(default_factory=dict)
    losses: np.ndarray | None = None
    asked: np.ndarray | None = None

    @cached_property
    def places(self) -> dict[int, int]:
        """Position during the lap -> position now, for the components that no move touched."""
        return {int(old): place for place, old in enumerate(self.origins) if old >= 0}

    @cached_property
    def sampled(self) -> np.ndarray:
        """(K,) bool, components that have sampled rows."""
        return np.isin(np.arange(len(self.ids)), list(self.samples))

    @cached_property
    def reachable(self) -> np.ndarray:
        """(K,) bool, components that have sampled rows, or from which none were to be drawn in this lap.

        The others own no row, because each row belongs more to another component: no move can search them.
        """
        return self.sampled if self.asked is None else self.sampled | ~self.asked

    @property
    def full(self) -> bool:
        """Whether the allowed number of components is reached."""
        return self.room <= 0

    @property
    def room(self) -> float:
        """How many more components are allowed."""
        limit = self.model.allocation.max_components
        return np.inf if limit is None else limit - len(self.ids)

    @cached_property
    def pair_gains(self) -> np.ndarray:
        """Change of A + A_alloc for each pair, (K, K), as screened as :attr:`pair_losses`; computed once."""
        return with_shared(self.model, self.summary, self.pair_losses)

    @cached_property
    def pair_losses(self) -> np.ndarray:
        """:func:`dpdist.inference.moves.pairs.screened_losses` of the components, computed once for all moves."""
        return screened_losses(self.model, self.summary, self.backend) if self.losses is None else self.losses

    @cached_property
    def neighbours(self) -> np.ndarray:
        """(K, K - 1) the other components, ordered by how little evidence per row a merge with each would lose."""
        gains, counts = np.maximum(self.pair_gains, self.pair_gains.T), np.maximum(self.summary.counts, 1e-300)
        gains = gains / np.minimum.outer(counts, counts)
        np.fill_diagonal(gains, -np.inf)
        return np.argsort(-gains, axis=1, kind="stable")[:, :-1]


class Following(NamedTuple):
    """What a move does in the next lap.

    Parameters
    ----------
    proposals : of the next lap
    carried : rows of the last lap's measurement that are kept; they come first in the next lap's measurement
    start : measurement used in place of the rows that new replacements have not seen; None for zeros
    pending : whether the move has more to try, so that the run has not converged
    """

    proposals: Proposals
    carried: np.ndarray = np.zeros(0, dtype=np.intp)
    start: Summary | None = None
    pending: bool = False


P = TypeVar("P", bound=Proposals)


class Move(ABC, Generic[P]):
    """A way to change the set of components: a frozen dataclass of its parameters."""

    @property
    def kind(self) -> str:
        """Name of the move in the history."""
        return type(self).__name__.lower()

    @property
    def least_rows(self) -> int:
        """Smallest number of rows of a component in which the move can find replacements; 0 if it draws no rows."""
        return 0

    @property
    def most_rows(self) -> int:
        """Largest number of rows whose features a search holds at a time; 0 for the rows of one component."""
        return 0

    @abstractmethod
    def none(self) -> P:
        """No proposals; a run starts with them."""

    @abstractmethod
    def propose(self, end: LapEnd, before: P, verdicts: Sequence[Verdict], others: Sequence[Proposals]) -> Following:
        """What to try in the next lap.

        Parameters
        ----------
        end : the state at the end of the lap
        before : the proposals of the lap that ends
        verdicts : the decisions on them
        others : the next proposals of the moves before this one in the list
        """

    def postpones(self, proposals: P, proposal: int, gain: float) -> bool:
        """Whether a proposal without a gain is measured for another lap instead of being refused."""
        return False

    def wants_rows(self, proposals: P, ids: np.ndarray, lap: int) -> np.ndarray:
        """(K,) bool, the components `ids` from which rows must be drawn in `lap`, for proposals at its end."""
        return np.zeros(len(ids), dtype=bool)


#: A move with any type of proposals.
AnyMove = Move[Any]
