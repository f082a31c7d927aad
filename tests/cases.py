"""The one registry of parts that the laws are held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpdist.allocations import Allocation, DirichletProcess, FiniteDirichlet, LearnedDirichletProcess
from dpdist.backends import SerialBackend
from dpdist.families import (
    Bernoulli,
    DiagonalGaussian,
    Family,
    Gaussian,
    IsotropicGaussian,
    Moments,
    Multinomial,
    Poisson,
    ZeroMeanGaussian,
)
from dpdist.likelihoods import Dirichlet
from dpdist.moves.plan import MovePlan
from dpdist.preparation import TransformPlan
from dpdist.schedules import Batch, Memoized, Stochastic
from dpdist.sequential import DistanceTest, EvidenceTest
from dpdist.sources import ArraySource
from dpdist.survey import survey_source
from dpdist.topics.documents import Effort
from dpdist.topics.online import OnlinePlan
from dpdist.topics.problem import TopicPlan

Rows = Callable[[np.random.Generator, int, int], np.ndarray]


def real_rows(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Correlated rows about a mean of their own."""
    mixing = np.eye(d) + np.triu(rng.uniform(-0.6, 0.6, size=(d, d)), 1)
    return rng.normal(size=(n, d)) @ mixing + rng.normal(size=d)


def count_rows(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Counts, zeros among them."""
    return rng.poisson(rng.gamma(2.0, 1.0, size=d), size=(n, d)).astype(float)


def binary_rows(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Zeros and ones."""
    return (rng.random((n, d)) < rng.uniform(0.3, 0.7, size=d)).astype(float)


@dataclass(frozen=True)
class FamilyCase:
    """A family and what the laws need to know about it.

    ``make(**hyperparameters)`` gives the unfilled family, ``rows(rng, n, d)`` data that it takes, ``sparse`` whether
    those may be CSR, ``real`` whether its rows are real vectors that have a scale, ``refused`` hyperparameters that
    must be refused for three columns.
    """

    name: str
    make: Callable[..., Family]
    rows: Rows
    sparse: bool = False
    real: bool = False
    refused: tuple[dict[str, Any], ...] = field(default=(), repr=False)


_BAD_SCALES = (
    {"scale": -1.0},
    {"scale": [1.0, 2.0]},
    {"scale": np.arange(9.0).reshape(3, 3)},
    {"scale": np.ones((3, 3))},
    {"degrees_of_freedom": 2.0},
    {"degrees_of_freedom": np.nan},
    {"degrees_of_freedom": np.inf, "scale": 1.0},
)

FAMILIES = [
    FamilyCase(
        "gaussian",
        Gaussian,
        real_rows,
        real=True,
        refused=(*_BAD_SCALES, {"mean_precision": 0.0}, {"mean": [0.0, 1.0]}, {"mean": np.nan}),
    ),
    FamilyCase("zero_mean_gaussian", ZeroMeanGaussian, real_rows, real=True, refused=_BAD_SCALES),
    FamilyCase(
        "diagonal_gaussian",
        DiagonalGaussian,
        real_rows,
        real=True,
        refused=(
            {"mean_precision": -1.0},
            {"shape": 0.0},
            {"rate": [1.0, 0.0, 1.0]},
            {"rate": [1.0, 1.0]},
            {"mean": [0.0, 1.0]},
            {"mean": np.inf},
        ),
    ),
    FamilyCase(
        "isotropic_gaussian",
        IsotropicGaussian,
        real_rows,
        real=True,
        refused=({"variance": 0.0}, {"mean_variance": np.inf}, {"mean": np.zeros((3, 1))}, {"mean": [0, np.nan, 0]}),
    ),
    FamilyCase(
        "multinomial",
        Multinomial,
        count_rows,
        sparse=True,
        refused=({"pseudocount": 0.0}, {"pseudocount": [1.0, 1.0]}, {"pseudocount": np.nan}),
    ),
    FamilyCase(
        "bernoulli",
        Bernoulli,
        binary_rows,
        sparse=True,
        refused=({"ones": 0.0}, {"zeros": -1.0}, {"ones": [1.0, 1.0]}),
    ),
    FamilyCase(
        "poisson",
        Poisson,
        count_rows,
        sparse=True,
        refused=({"shape": 0.0}, {"rate": -1.0}, {"rate": [1.0, 1.0]}, {"shape": [1.0] * 4}),
    ),
]

ALLOCATIONS: list[Allocation] = [DirichletProcess(3.0), LearnedDirichletProcess(), FiniteDirichlet(50, 2.0)]


#: Parts of every kind that is stored, no field of them as it is by default.
PARTS: list[Any] = [
    *(case.make() for case in FAMILIES),
    Gaussian(np.array([1.0, -2.0]), 0.5, 7, [[2.0, 0.5], [0.5, 1.0]]),
    ZeroMeanGaussian(9.0, (2.0, 3.0)),
    DiagonalGaussian(0.5, np.float64(2.0), 3.0, np.array([1.0, 2.0])),
    IsotropicGaussian(np.array(2.0), 3.0, [0.0, 1.0]),
    Multinomial(np.array([0.5, 0.25])),
    Bernoulli(1.0, [2, 3]),
    Poisson((1.0, 2.0), np.float32(3.0)),
    Dirichlet(20.0, 0.5, 1e-4, 30, False),
    DirichletProcess(3.0, 8),
    LearnedDirichletProcess(2.0, 0.5, 64, 9),
    FiniteDirichlet(50, 2.0),
    Memoized(7, 1, False),
    Stochastic(5, 1, 2.5, 0.75),
    Batch(),
    EvidenceTest(7),
    DistanceTest(0.25, False),
    MovePlan(False, False, False, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13),
    TransformPlan(True, True, 3),
    TopicPlan(False, False, False, 5, 6, 7, 8, 9, 10, 11, 12),
    OnlinePlan(False, False, 3, 4, 5, False, 6, 0.5, 70, "free"),
    Effort(0.25, 7, False),
]


def moments_of(rows: Any, weights: np.ndarray | None = None) -> Moments:
    """Moments of rows, as a run derives them."""
    return survey_source(ArraySource(rows, weights), SerialBackend()).moments()


def filled(case: FamilyCase, rows: Any, **hyperparameters: Any) -> Family:
    """The case's family with every hyperparameter filled in from rows."""
    moments = moments_of(rows)
    family = case.make(**hyperparameters).with_defaults(moments)
    family.check_moments(moments)
    return family


def entropy_of(resp: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """-sum_n c_n r log r for each column."""
    logs = np.log(resp, out=np.zeros_like(resp), where=resp > 0)
    return -(np.ones(len(resp)) if weights is None else weights) @ (resp * logs)
