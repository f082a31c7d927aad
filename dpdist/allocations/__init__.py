"""Priors over how rows are shared among components."""

from dpdist.allocations.base import Allocation
from dpdist.allocations.dirichlet_process import DirichletProcess, LearnedDirichletProcess
from dpdist.allocations.finite import FiniteDirichlet

#: Allocations by name, as configurations and checkpoints know them.
ALLOCATIONS: dict[str, type[Allocation]] = {
    allocation.name: allocation for allocation in (DirichletProcess, LearnedDirichletProcess, FiniteDirichlet)
}

__all__ = ["ALLOCATIONS", "Allocation", "DirichletProcess", "FiniteDirichlet", "LearnedDirichletProcess"]
