"""The conformance suites pass on every part of the registries, and fail on parts that break a law."""

from __future__ import annotations

from dataclasses import dataclass

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dpdist.allocations import DirichletProcess, FiniteDirichlet, LearnedDirichletProcess
from dpdist.backends import SerialBackend
from dpdist.families import FAMILIES, Gaussian, Moments
from dpdist.model import Model
from dpdist.moves.delete import Deletes
from dpdist.moves.merge import Merges
from dpdist.moves.split import Splits
from dpdist.sources import as_source
from dpdist.testing import check_allocation, check_backend, check_family, check_move, check_source
from tests.test_moves import rows_for

TRIALS = [
    Splits(np.array([0, 2]), 2, np.zeros(2, int), np.full(2, -np.inf)),
    Merges(np.array([[0, 1], [2, 3]])),
    Deletes(np.array([3]), np.array([[0, 2]])),
]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_families_conform(name) -> None:
    check_family(FAMILIES[name](), rows_for(name, np.random.default_rng(0), 2.0))


@pytest.mark.parametrize(
    "allocation", [DirichletProcess(2.0), LearnedDirichletProcess(), FiniteDirichlet(6)], ids=lambda a: a.name
)
def test_allocations_conform(allocation) -> None:
    check_allocation(allocation)


@pytest.mark.parametrize("trial", TRIALS, ids=lambda t: t.kind)
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_moves_conform(trial, name) -> None:
    rng = np.random.default_rng(1)
    rows = rows_for(name, rng, 1.0)
    moments = Moments(len(rows), rows.mean(0), rows.var(0), rows.min(0), True)
    model = Model(FAMILIES[name]().with_defaults(moments), DirichletProcess(1.0))
    check_move(trial, model, rows, rng.dirichlet(np.ones(4), size=len(rows)))


def test_the_serial_backend_conforms() -> None:
    check_backend(SerialBackend())


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array, lambda x: da.from_array(x, chunks=(70, 2))])
def test_sources_conform(make) -> None:
    check_source(as_source(make(np.random.default_rng(0).poisson(1.0, size=(300, 4)))))


@dataclass(frozen=True, eq=False)
class Tilted(Gaussian):
    """A family whose coefficients are not its gradient."""

    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        return 1.01 * super().coefficients(stats)


def test_a_family_that_breaks_a_law_is_found() -> None:
    with pytest.raises(AssertionError, match="gradient"):
        check_family(Tilted(), np.random.default_rng(0).normal(size=(30, 2)))
