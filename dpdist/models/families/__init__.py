"""Likelihoods with conjugate priors."""

from dpdist.models.families.base import Family, Moments
from dpdist.models.families.bernoulli import Bernoulli
from dpdist.models.families.diagonal_gaussian import DiagonalGaussian
from dpdist.models.families.gaussian import Gaussian
from dpdist.models.families.isotropic_gaussian import IsotropicGaussian
from dpdist.models.families.multinomial import Multinomial
from dpdist.models.families.poisson import Poisson
from dpdist.models.families.zero_mean_gaussian import ZeroMeanGaussian

#: Families by name, as in configurations and checkpoints.
FAMILIES: dict[str, type[Family]] = {
    family.name: family
    for family in (
        Gaussian,
        ZeroMeanGaussian,
        DiagonalGaussian,
        IsotropicGaussian,
        Multinomial,
        Bernoulli,
        Poisson,
    )
}

__all__ = [
    "FAMILIES",
    "Bernoulli",
    "DiagonalGaussian",
    "Family",
    "Gaussian",
    "IsotropicGaussian",
    "Moments",
    "Multinomial",
    "Poisson",
    "ZeroMeanGaussian",
]
