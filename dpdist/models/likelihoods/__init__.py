"""Likelihoods without a conjugate prior, for sequential passes."""

from dpdist.models.likelihoods.base import Likelihood, Opening
from dpdist.models.likelihoods.dirichlet import Dirichlet

#: Likelihoods by name, as in configurations and stored models.
LIKELIHOODS: dict[str, type[Likelihood]] = {likelihood.name: likelihood for likelihood in (Dirichlet,)}

__all__ = ["LIKELIHOODS", "Dirichlet", "Likelihood", "Opening"]
