"""Likelihoods with conjugate priors."""

from dpdist.families.base import Family, Moments
from dpdist.families.bernoulli import Bernoulli
from dpdist.families.diagonal_gaussian import DiagonalGaussian
from dpdist.families.gaussian import Gaussian
from dpdist.families.isotropic_gaussian import IsotropicGaussian
from dpdist.families.multinomial import Multinomial
from dpdist.families.poisson import Poisson
from dpdist.families.zero_mean_gaussian import ZeroMeanGaussian

#: Families by name, as configurations and checkpoints know them.
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
