"""Priors over the assignment of rows to components."""

from dpdist.models.allocations.base import Allocation
from dpdist.models.allocations.dirichlet_process import DirichletProcess, LearnedDirichletProcess
from dpdist.models.allocations.finite import FiniteDirichlet

#: Allocations by name, as in configurations and checkpoints.
ALLOCATIONS: dict[str, type[Allocation]] = {
    allocation.name: allocation for allocation in (DirichletProcess, LearnedDirichletProcess, FiniteDirichlet)
}

__all__ = ["ALLOCATIONS", "Allocation", "DirichletProcess", "FiniteDirichlet", "LearnedDirichletProcess"]
