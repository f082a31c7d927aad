"""The registry of parts that the tests of laws run over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.data_summary import summarise_source
from dpdist.inference.moves.delete import Delete
from dpdist.inference.moves.merge import Merge
from dpdist.inference.moves.sampling import Sampling
from dpdist.inference.moves.split import Split
from dpdist.inference.schedules import Batch, Memoized, Stochastic
from dpdist.inference.sva import DistanceTest, EvidenceTest
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.kept import DocumentFiles
from dpdist.inference.topics.online import OnlineState
from dpdist.inference.topics.problem import OnlinePlan, TopicPlan
from dpdist.inference.transform import TransformPlan
from dpdist.models.allocations import Allocation, DirichletProcess, FiniteDirichlet, LearnedDirichletProcess
from dpdist.models.families import (
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
from dpdist.models.likelihoods import Dirichlet

Rows = Callable[[np.random.Generator, int, int], np.ndarray]
Prior = Callable[[np.random.Generator, int], dict[str, Any]]


def real_rows(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Correlated rows with a random mean."""
    mixing = np.eye(d) + np.triu(rng.uniform(-0.6, 0.6, size=(d, d)), 1)
    return rng.normal(size=(n, d)) @ mixing + rng.normal(size=d)


def count_rows(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Counts, including zeros."""
    return rng.poisson(rng.gamma(2.0, 1.0, size=d), size=(n, d)).astype(float)


def binary_rows(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Zeros and ones."""
    return (rng.random((n, d)) < rng.uniform(0.3, 0.7, size=d)).astype(float)


def wishart_prior(rng: np.random.Generator, d: int) -> dict[str, Any]:
    """Hyperparameters of a family that learns a full covariance."""
    factor = np.eye(d) + rng.uniform(-0.4, 0.4, size=(d, d))
    return {"degrees_of_freedom": d + rng.uniform(2.0, 8.0), "scale": factor @ factor.T}


def gaussian_prior(rng: np.random.Generator, d: int) -> dict[str, Any]:
    """Hyperparameters of a full-covariance Gaussian."""
    mean = 0.0 if rng.random() < 0.3 else rng.normal(size=d)
    return {"mean": mean, "mean_precision": rng.uniform(0.1, 3.0), **wishart_prior(rng, d)}


def diagonal_prior(rng: np.random.Generator, d: int) -> dict[str, Any]:
    """Hyperparameters of a diagonal Gaussian."""
    shape, rate = rng.uniform(1.5, 6.0), rng.uniform(0.2, 3.0, size=d)
    return {"mean": rng.normal(size=d), "mean_precision": rng.uniform(0.1, 3.0), "shape": shape, "rate": rate}


def isotropic_prior(rng: np.random.Generator, d: int) -> dict[str, Any]:
    """Hyperparameters of an isotropic Gaussian."""
    return {"mean": rng.normal(size=d), "variance": rng.uniform(0.2, 3.0), "mean_variance": rng.uniform(0.2, 3.0)}


def uneven(*names: str) -> Prior:
    """Positive hyperparameters of the given names, with a different value for each column."""
    return lambda rng, d: {name: rng.uniform(0.2, 3.0, size=d) for name in names}


@dataclass(frozen=True)
class FamilyCase:
    """A family with what the tests of laws need.

    ``make(**hyperparameters)`` returns the family before defaults are set, ``rows(rng, n, d)`` data that it accepts,
    ``prior(rng, d)`` hyperparameters that differ from the defaults. ``sparse`` says whether rows may be CSR, ``real``
    whether they are real vectors with a scale. ``refused`` are hyperparameters that must be refused for three columns.
    """

    name: str
    make: Callable[..., Family]
    rows: Rows
    prior: Prior
    sparse: bool = False
    real: bool = False
    refused: tuple[dict[str, Any], ...] = field(default=(), repr=False)


_BAD_SCALES = (
    {"scale": -1.0},
    {"scale": [1.0, 2.0]},
    {"scale": np.arange(9.0).reshape(3, 3)},
    {"scale": np.ones((3, 3))},
    {"scale": 2 * np.eye(3) + np.eye(3, k=1)},
    {"degrees_of_freedom": 2.0},
    {"degrees_of_freedom": np.nan},
    {"degrees_of_freedom": np.inf, "scale": 1.0},
    {"degrees_of_freedom": 1e10},
)

FAMILIES = [
    FamilyCase(
        "gaussian",
        Gaussian,
        real_rows,
        gaussian_prior,
        real=True,
        refused=(*_BAD_SCALES, {"mean_precision": 0.0}, {"mean": [0.0, 1.0]}, {"mean": np.nan}),
    ),
    FamilyCase("zero_mean_gaussian", ZeroMeanGaussian, real_rows, wishart_prior, real=True, refused=_BAD_SCALES),
    FamilyCase(
        "diagonal_gaussian",
        DiagonalGaussian,
        real_rows,
        diagonal_prior,
        real=True,
        refused=(
            {"mean_precision": -1.0},
            {"shape": 0.0},
            {"shape": 1e10},
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
        isotropic_prior,
        real=True,
        refused=({"variance": 0.0}, {"mean_variance": np.inf}, {"mean": np.zeros((3, 1))}, {"mean": [0, np.nan, 0]}),
    ),
    FamilyCase(
        "multinomial",
        Multinomial,
        count_rows,
        uneven("pseudocount"),
        sparse=True,
        refused=(
            {"pseudocount": 0.0},
            {"pseudocount": [1.0, 1.0]},
            {"pseudocount": np.nan},
            {"pseudocount": [1.0, 1e10, 1.0]},
        ),
    ),
    FamilyCase(
        "bernoulli",
        Bernoulli,
        binary_rows,
        uneven("ones", "zeros"),
        sparse=True,
        refused=({"ones": 0.0}, {"zeros": -1.0}, {"ones": [1.0, 1.0]}, {"ones": 1e10}, {"zeros": 1e10}),
    ),
    FamilyCase(
        "poisson",
        Poisson,
        count_rows,
        uneven("shape", "rate"),
        sparse=True,
        refused=({"shape": 0.0}, {"rate": -1.0}, {"rate": [1.0, 1.0]}, {"shape": [1.0] * 4}, {"shape": 1e10}),
    ),
]

ALLOCATIONS: list[Allocation] = [DirichletProcess(3.0), LearnedDirichletProcess(), FiniteDirichlet(50, 2.0)]


#: Parts of every kind that is stored, with fields that differ from their defaults.
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
    Split(3, 7, 8, 9, 10, 11),
    Merge(5),
    Delete(4),
    Sampling(5, 6, 7),
    TransformPlan(True, True, 3),
    TopicPlan(False, False, False, 5, 6, 7, 8, 9, 10, 11),
    OnlinePlan(False, False, False, 3, 4, 0.5, 5, 6, False, 7, 0.5, 70),
    Effort(0.25, 7, False),
]


def moments_of(rows: Any, weights: np.ndarray | None = None) -> Moments:
    """Moments of rows, as in a run."""
    return summarise_source(ArraySource(rows, weights), SerialBackend()).moments()


def filled(case: FamilyCase, rows: Any, **hyperparameters: Any) -> Family:
    """The family of a case, with all hyperparameters set from rows."""
    moments = moments_of(rows)
    family = case.make(**hyperparameters).with_defaults(moments)
    family.check_moments(moments)
    return family


def entropy_of(resp: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """-sum_n c_n r log r for each column."""
    logs = np.log(resp, out=np.zeros_like(resp), where=resp > 0)
    return -(np.ones(len(resp)) if weights is None else weights) @ (resp * logs)


def online_bits(state: OnlineState) -> dict[str, bytes]:
    """All fields of an online topic model's state, as bytes."""
    starts = [] if state.known is None else state.known.starts()
    known = {
        f"known{place}": b"".join(array.tobytes() for array in vars(start.read(DocumentFiles())[0]).values())
        for place, start in enumerate(starts)
    }
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state) if field.name != "known"}
    return known | {name: np.asarray(value, dtype=float).tobytes() for name, value in fields.items()}
