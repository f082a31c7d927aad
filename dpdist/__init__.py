"""Dirichlet-process mixtures of any size, with an exact bound, on Dask."""

from dpdist import allocations, families, likelihoods, schedules, sequential
from dpdist.errors import CheckpointError, DpdistError, InputError, OutputExistsError, PrecisionError
from dpdist.estimators import DPMixture, FiniteMixture, extend, load, resume
from dpdist.moves.plan import MovePlan
from dpdist.preparation import TransformPlan
from dpdist.sva import SVA

__version__ = "0.1.0"

__all__ = [
    "SVA",
    "CheckpointError",
    "DPMixture",
    "DpdistError",
    "FiniteMixture",
    "InputError",
    "MovePlan",
    "OutputExistsError",
    "PrecisionError",
    "TransformPlan",
    "allocations",
    "extend",
    "families",
    "likelihoods",
    "load",
    "resume",
    "schedules",
    "sequential",
]
