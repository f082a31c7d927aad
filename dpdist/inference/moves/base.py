"""What a move is: it proposes changes of the set of components, which workers measure for a lap.

Every lap goes like this. When the one before ends, each :class:`Move` of a run makes its :class:`Proposals` on the
coordinator; each of these removes some components and puts replacements in their place. During the lap workers measure
what cannot be derived from the components' own summary (children's statistics, pair entropies); measurements add like
summaries do. At its end all proposals of all moves are judged together (:mod:`dpdist.inference.moves.change`), those
accepted are applied to every batch summary, and the moves propose again.

A move of one's own is a file with two frozen dataclasses, one of each kind: of its parameters, and of the arrays that
say what it proposes. :func:`dpdist.testing.check_move` holds it to the laws.
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
    """What a move tries during a lap, and what it has to remember from lap to lap.

    A frozen dataclass of numbers, arrays and such dataclasses, which is sent to workers and stored with the run.
    Components are named by their positions during the lap.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Number of proposals."""

    @abstractmethod
    def blank(self, columns: int) -> Summary:
        """The measurement of no rows, for statistics of `columns` columns."""

    def armed(self, model: Model, posterior: Posterior, measured: Summary) -> Proposals:
        """The same proposals ready to measure under `posterior`, given what was measured so far."""
        return self

    @abstractmethod
    def measure(self, block: Block) -> Summary:
        """What the proposals need to know of some rows; adds over rows."""

    @abstractmethod
    def removed(self, proposal: int) -> tuple[int, ...]:
        """Components that proposal takes away."""

    @abstractmethod
    def replacement(self, proposal: int, summary: Summary, measured: Summary) -> Summary:
        """The components put in their place; linear in both arguments."""

    @abstractmethod
    def heirs(self, proposal: int, summary: Summary, measured: Summary) -> tuple[int, ...]:
        """For each replacement the component whose identity it keeps, or -1 for a new one."""

    def evidence_before(self, proposal: int, evidence: np.ndarray, replaced: Summary, model: Model) -> float:
        """Sum of A over the removed components; `evidence` (K,) holds A of every component."""
        return float(evidence[list(self.removed(proposal))].sum())

    def tried(self, ids: np.ndarray) -> np.ndarray:
        """(K,) bool, components with `ids` for which the move was tried as they are, and has not changed them yet.

        A move for which all else should be tried first asks those before it in the list.
        """
        return np.ones(len(ids), dtype=bool)

    def cooling(self, ids: np.ndarray, lap: int) -> np.ndarray:
        """(K,) bool, components with `ids` that the move leaves alone in `lap` for a while, having tried them."""
        return np.zeros(len(ids), dtype=bool)

    def reserved(self) -> np.ndarray:
        """Components that moves later in the list had better leave alone, because they are being worked on."""
        return np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, eq=False)
class LapEnd:
    """What a move may look at when it proposes: the components as the lap's accepted moves left them.

    Parameters
    ----------
    model : Model
    backend : where work can be given away
    seed, lap : keys of draws; the lap is the one that ends
    settled : whether the ELBO hardly changed in it
    ids : (K,) of the components
    summary : of the whole data
    origins : (K,) position of each component during the lap, or -1 if a move made or changed it
    samples : rows and their weights drawn during the lap, of the components for which there are any
    change : of the ELBO in it before its moves, in nats
    made : by the kind of a move, positions of the components that it made at this end
    losses : ``pair_losses`` where they are known
    asked : (K,) bool, components of which rows were to be drawn in the lap, and those that a move made; None if all
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
        """Position during the lap -> position now, of the components that no move touched."""
        return {int(old): place for place, old in enumerate(self.origins) if old >= 0}

    @cached_property
    def sampled(self) -> np.ndarray:
        """(K,) bool, components of which there are sampled rows."""
        return np.isin(np.arange(len(self.ids)), list(self.samples))

    @property
    def full(self) -> bool:
        """Whether there are as many components as may be."""
        return self.room <= 0

    @property
    def room(self) -> float:
        """How many components there may be beside these."""
        limit = self.model.allocation.max_components
        return np.inf if limit is None else limit - len(self.ids)

    @cached_property
    def pair_gains(self) -> np.ndarray:
        """As :func:`dpdist.inference.moves.pairs.screened_gains` of the components; found once for all moves."""
        return with_shared(self.model, self.summary, self.pair_losses)

    @cached_property
    def pair_losses(self) -> np.ndarray:
        """As :func:`dpdist.inference.moves.pairs.screened_losses`, likewise."""
        return screened_losses(self.model, self.summary, self.backend) if self.losses is None else self.losses

    @cached_property
    def neighbours(self) -> np.ndarray:
        """(K, K - 1) the others, those first with which a component loses least evidence a row when merged."""
        gains, counts = np.maximum(self.pair_gains, self.pair_gains.T), np.maximum(self.summary.counts, 1e-300)
        gains = gains / np.minimum.outer(counts, counts)
        np.fill_diagonal(gains, -np.inf)
        return np.argsort(-gains, axis=1, kind="stable")[:, :-1]


class Following(NamedTuple):
    """What a move does next.

    Parameters
    ----------
    proposals : of the next lap
    carried : rows of the last lap's measurement that go on; they come first in the next lap's
    start : measurement that stands in for rows which new replacements have not seen; None for nothing
    pending : whether the move has more to try, so that a run has not come to rest
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
        """What the history calls its proposals."""
        return type(self).__name__.lower()

    @property
    def least_rows(self) -> int:
        """Rows of a component in which it can find replacements, as many as these at most; 0 if it draws no rows."""
        return 0

    @property
    def most_rows(self) -> int:
        """Rows whose features it holds at a time where it looks for replacements; 0 if those of one component."""
        return 0

    @abstractmethod
    def none(self) -> P:
        """No proposals, with which a run begins."""

    @abstractmethod
    def propose(self, end: LapEnd, before: P, verdicts: Sequence[Verdict], others: Sequence[Proposals]) -> Following:
        """What to try in the next lap.

        Parameters
        ----------
        end : how things stand
        before : the lap's own proposals
        verdicts : what became of them
        others : what moves before this one in the list try in the next lap
        """

    def postpones(self, proposals: P, proposal: int, gain: float) -> bool:
        """Whether a proposal that does not gain is to go on instead of being refused."""
        return False

    def wants_rows(self, proposals: P, ids: np.ndarray, lap: int) -> np.ndarray:
        """(K,) bool, the components with `ids` of which rows have to be drawn in `lap`, to propose at its end."""
        return np.zeros(len(ids), dtype=bool)


#: A move, whatever its proposals are.
AnyMove = Move[Any]
