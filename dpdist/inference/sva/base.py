"""The interface of a likelihood in a sequential pass, the pass itself, and its state between two rows.

The components of a pass are a table with one row per component. Its last column is the weight w_k, the sum of the
component's responsibilities. For conjugate families the other columns are sufficient statistics, so tables add.

Source: Lin (2013), "Online learning of nonparametric mixture models via sequential variational approximation".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dpdist.core.checks import COUNT, FLOOR, SCALE, check_fields, number
from dpdist.core.errors import InputError
from dpdist.core.stored import Stored
from dpdist.kernels.sequential import Law
from dpdist.models.allocations import Allocation, DirichletProcess, FiniteDirichlet
from dpdist.models.families.base import Moments, Rows

#: Error message for a row with no finite score under any component, old or new.
FAR_OUT = (
    "the log probabilities of a row are not finite: the row lies too far from all components. Standardise the "
    "columns (row_transform=TransformPlan(scale=True)), or give the family a prior that allows for such rows."
)


@dataclass(frozen=True)
class OpeningRule:
    """When a row opens a component, and which responsibilities are kept (algorithm 1).

    Parameters
    ----------
    concentration : alpha > 0
    threshold : epsilon in (0, 1); a row opens a new component if its responsibility for it exceeds this
    floor : responsibilities below this share of a row's largest are set to zero, the rest renormalised
    max_components : largest number of components, or None
    """

    concentration: float = 1.0
    threshold: float = 0.001
    floor: float = 1e-6
    max_components: int | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            concentration=SCALE,
            threshold=number(above=0, below=1),
            floor=FLOOR,
            max_components=COUNT.or_none("no bound"),
        )

    @property
    def law(self) -> Law:
        """The rule in the form that kernels take."""
        return Law(
            np.log(self.concentration),
            self.threshold,
            np.log(self.floor) if self.floor > 0 else -745.0,
            np.iinfo(np.int64).max if self.max_components is None else self.max_components,
        )


def rule_of(allocation: Allocation, counts: np.ndarray) -> OpeningRule:
    """The rule of a pass in place of a fit: what the allocation learns is fixed at its mean given `counts` (K,); raises
    :class:`InputError` if the allocation has no concentration."""
    near = allocation.plug_in(counts)
    if not isinstance(near, DirichletProcess | FiniteDirichlet):
        raise InputError(
            f"a sequential pass needs a concentration; {type(near).__name__} has none. Let its plug_in return a "
            "DirichletProcess that approximates it at the given counts, or do without the pass."
        )
    return OpeningRule(near.concentration, max_components=allocation.max_components)


@dataclass(frozen=True, eq=False)
class SVAState:
    """The components and the rows from which they were made.

    Parameters
    ----------
    table : (K, F) float64, as :class:`Learner` defines it
    ids : (K,) int64 stable ids; -1 for components without an id
    rows : number of rows processed
    seen : sum of their weights
    next_check : number of rows at which components are examined next
    pruned : weight of the components removed
    exposed : (K,) weight of the rows that each could have received; pruning divides by it. It counts rows since the
        last check before the component was opened; for merged components it is the sum, at most `seen`
    looked : `seen` when components were last examined, or when parallel passes were combined
    overlap : (K, K) sums of min(rho_a, rho_b), lower bounds for merged components; (0, 0) if not tracked
    next_id : first unused id
    """

    table: Annotated[
        np.ndarray,
        Stored(("component", "feature"), "components in the form that the pass uses; the last column is their weights"),
    ]
    ids: Annotated[np.ndarray, Stored(("component",), "stable id of a component")]
    rows: int
    seen: float
    next_check: int
    pruned: float
    exposed: Annotated[np.ndarray, Stored(("component",), "weight of the rows that it could have received")]
    looked: float
    overlap: Annotated[
        np.ndarray, Stored(("component", "component_2"), "sum over rows of the smaller of two responsibilities")
    ]
    next_id: int = 0

    @property
    def files(self) -> dict[str, dict[str, str]]:
        """Folder -> file name -> digest, of the files that belong to it: none."""
        return {}

    @property
    def weights(self) -> np.ndarray:
        """w_k, (K,)."""
        return self.table[:, -1]


class Pass(ABC):
    """The components during a pass; mutable, created and dropped within a task."""

    @property
    @abstractmethod
    def table(self) -> np.ndarray:
        """The components, (K, F) float64; the last column holds their weights. A copy."""

    @property
    @abstractmethod
    def overlap(self) -> np.ndarray:
        """(K, K) sums of min(rho_a, rho_b) over rows, if tracked; else (0, 0). A copy."""

    @abstractmethod
    def advance(self, rows: Rows, weights: np.ndarray) -> None:
        """Process prepared rows (n, D) with weights (n,), one after the other."""


class Learner(ABC):
    """A likelihood in the form that a pass uses; frozen and picklable."""

    #: Whether tables add, so that passes over partitions may run in parallel.
    additive: bool
    #: Whether rows may be SciPy CSR.
    accepts_sparse: bool

    @property
    @abstractmethod
    def width(self) -> int:
        """F, the number of columns of a table."""

    @abstractmethod
    def check_moments(self, moments: Moments) -> None:
        """Raise :class:`InputError` if rows with these moments cannot come from this likelihood."""

    @abstractmethod
    def check(self, table: np.ndarray) -> None:
        """Raise :class:`PrecisionError` if a component of a table (K, F) lost its precision."""

    @abstractmethod
    def begin(self, table: np.ndarray, rule: OpeningRule, dtype: type, overlap: np.ndarray | None, seen: float) -> Pass:
        """A pass that continues from a table.

        Parameters
        ----------
        table : (K, F), K >= 0
        rule : when to open components
        dtype : of matrix products, float64 or float32
        overlap : (K, K) sums so far if they are tracked, or None
        seen : weight of the rows processed before
        """

    @abstractmethod
    def log_predictive(self, rows: Rows, table: np.ndarray) -> np.ndarray:
        """log p(x_n | component k), (n, K + 1), base measure included; the last column is for a new component."""

    @abstractmethod
    def join(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Merged components, (P, F), from pairs (P, F) and (P, F)."""

    @abstractmethod
    def gains(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Change of the log evidence if pairs are merged, (P,), nats, without the allocation."""

    @abstractmethod
    def affinity(self, table: np.ndarray) -> np.ndarray:
        """(K, K): entry [b, a] says how well the rows of component b fit component a; only the order matters."""

    @abstractmethod
    def describe(self, table: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        """Point estimates for users: name -> (dimension names, array); the first dimension is ``component``."""

    @abstractmethod
    def sample(self, table: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Predictive draws (n, D), one for each of `components` (n,), rows of a table.

        A row of weight zero stands for a new component, a different one in each draw.
        """
