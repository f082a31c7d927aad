"""Settings of mixtures."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdist.core.checks import COUNT, FLOOR, SCALE, Wanted, number, one_of, real_array, shown
from dpdist.core.errors import CheckpointError, InputError
from dpdist.core.places import absolute
from dpdist.core.settings import part, parts, setting
from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.base import AnyMove, Move
from dpdist.inference.moves.registry import MOVES
from dpdist.inference.moves.sampling import Sampling
from dpdist.inference.prediction import Predictor
from dpdist.inference.schedules import SCHEDULES, Schedule
from dpdist.inference.sva.sequence import SVAProblem
from dpdist.models.allocations import Allocation, DirichletProcess, FiniteDirichlet, LearnedDirichletProcess
from dpdist.models.families import FAMILIES, Family
from dpdist.models.mixture import Precision, dtype_of
from dpdist.runs.specs.base import LapSpec, RowSpec
from dpdist.storage.commits import read_attributes

#: What hyperparameters can be derived from.
PRIORS = ("data", "clusters")
#: Names of initialisations.
STARTS = ("one", "k-means++", "sva")


def plain_start(value: Any) -> Any:
    """An initialisation as specs store it: a name, the absolute path of a run, a predictor, or an array."""
    if isinstance(value, Predictor) or (isinstance(value, str) and value in STARTS):
        return value
    return absolute(value) if isinstance(value, str | os.PathLike) else np.asarray(value)


def _is_start(value: Any) -> bool:
    if isinstance(value, Predictor) or (isinstance(value, str) and value in STARTS):
        return True
    if isinstance(value, str | os.PathLike):
        return _holds_rows_model(value)
    array = real_array(value)
    return array is not None and array.ndim in (1, 2) and array.size > 0


def _holds_rows_model(path: str | os.PathLike[str]) -> bool:
    try:
        return read_attributes(path)["method"] in (Problem.method, SVAProblem.method)
    except CheckpointError:
        return False


_START = Wanted(
    "'one', 'k-means++', 'sva', the path of an existing run or model of rows, a fitted estimator, labels or "
    "responsibilities",
    _is_start,
    plain_start,
)
_CONCENTRATION = Wanted(
    f"{SCALE.told}, or an allocation",
    lambda value: isinstance(value, Allocation) or SCALE.holds(value),
    lambda value: value if isinstance(value, Allocation) else float(value),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class FitSpec(RowSpec, LapSpec, ABC):
    """Settings of all mixtures."""

    method = Problem.method

    family: Family = part(
        FAMILIES,
        Family,
        "a family of dpdist.families (only dpdist.SVA accepts other likelihoods)",
        "Likelihood of a cluster, with its prior; hyperparameters that are not given are derived from the data.",
    )
    initial: Any = setting(
        "one",
        _START,
        "The initial model: 'one' cluster; 'k-means++' with initial_components clusters; 'sva', a sequential pass; or "
        "the path of a run with the same columns, whose model assigns all rows. From Python also a fitted estimator, "
        "(N,) labels or (N, K) responsibilities; a saved model includes these.",
    )
    initial_rows: int | None = setting(
        20_000, COUNT.or_none("all rows"), "Approximate number of rows of the pass of initial='sva'."
    )
    schedule: Schedule = part(
        SCHEDULES,
        Schedule,
        "a schedule, such as dpdist.schedules.Memoized()",
        "How the summaries of batches are combined into the total.",
        flat=True,
    )
    moves: tuple[AnyMove, ...] = parts(
        MOVES,
        {move.kind: move for move in MOVES},
        Move,
        "a list of moves, such as [dpdist.Split(), dpdist.Merge()]",
        "Changes of the set of clusters to try; by default splits, regroups, merges and deletes.",
    )
    sampling: Sampling = part(
        {"sampling": Sampling}, Sampling, "a dpdist.Sampling", "How many rows are sampled for moves in a lap."
    )
    candidates: Candidates = part(
        {"candidates": Candidates},
        Candidates,
        "a dpdist.Candidates",
        "When only a few candidate clusters are evaluated for a row, so that its cost does not grow with their number.",
    )
    prior: str = setting(
        "data",
        one_of(*PRIORS),
        "What hyperparameters that are not given are derived from: 'data', the moments of all rows; or 'clusters', the "
        "k-means++ clusters of a sample, whose evidence they maximise, for families whose covariance is learned.",
    )
    background: float | None = setting(
        None,
        number(above=0, below=1).or_none("no background"),
        "Expected share of rows that belong to no cluster. A component as broad as all data holds these rows; it is "
        "never split, merged or deleted.",
    )
    floor: float = setting(1e-8, FLOOR, "Responsibilities below this value are set to zero.")
    tolerance: float = setting(
        1e-5, number(least=0), "Change of the ELBO in a lap, in nats per row, below which the ELBO counts as settled."
    )

    @property
    def idle(self) -> dict[str, str]:
        starts = {"initial_components": "k-means++", "initial_rows": "sva"}
        return {name: f"initial = '{start}'" for name, start in starts.items() if not self.starts_by(start)}

    def starts_by(self, name: str) -> bool:
        """Whether the initial model is made by this method."""
        return isinstance(self.initial, str) and self.initial == name

    @property
    @abstractmethod
    def starting_components(self) -> int:
        """Number of clusters of a k-means++ start."""

    @property
    @abstractmethod
    def allocation(self) -> Allocation:
        """The allocation, which is the prior over component weights."""

    @property
    def precision(self) -> Precision:
        """Precision of the local step."""
        return Precision(dtype_of(self.compute_dtype), self.floor)


@dataclass(frozen=True, eq=False, kw_only=True)
class MixtureSpec(FitSpec):
    """The parameters of :class:`dpdist.DPMixture`."""

    estimator = "dpdist:DPMixture"

    concentration: float | Allocation = setting(
        10.0,
        _CONCENTRATION,
        "Concentration of the Dirichlet process, or a LearnedDirichletProcess, which learns it under a Gamma prior; in "
        "TOML {name = 'learned_dirichlet_process', shape = 1, rate = 0.1}.",
        {"learned_dirichlet_process": LearnedDirichletProcess, "dirichlet_process": DirichletProcess},
    )
    initial_components: int = setting(20, COUNT, "Number of clusters of initial='k-means++'.")
    max_components: int | None = setting(
        None, COUNT.or_none("no bound"), "Largest number of clusters that moves may reach."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.concentration, Allocation) and self.max_components not in (
            None,
            self.concentration.max_components,
        ):
            raise InputError(
                "max_components should be set on the allocation that is given as concentration; "
                f"got max_components={shown(self.max_components)} as well. Leave it out."
            )

    @property
    def starting_components(self) -> int:
        return self.initial_components

    @property
    def allocation(self) -> Allocation:
        if isinstance(self.concentration, Allocation):
            return self.concentration
        return DirichletProcess(self.concentration, self.max_components)


@dataclass(frozen=True, eq=False, kw_only=True)
class FiniteSpec(FitSpec):
    """The parameters of :class:`dpdist.FiniteMixture`."""

    estimator = "dpdist:FiniteMixture"

    n_components: int = setting(
        10,
        COUNT,
        "Number of components of the prior; moves never exceed it, and a fit may leave some components unused.",
    )
    concentration: float = setting(1.0, SCALE, "Sum of the parameters of the symmetric Dirichlet prior.")
    initial: Any = setting("k-means++", _START, "The initial model, as for DPMixture.")

    @property
    def starting_components(self) -> int:
        """`n_components`: a k-means++ start has all components of the prior."""
        return self.n_components

    @property
    def allocation(self) -> Allocation:
        return FiniteDirichlet(self.n_components, self.concentration)
