"""Dirichlet-process mixtures of any size, with an exact bound, on Dask."""

from dpdist import allocations, families, schedules
from dpdist.errors import CheckpointError, DpdistError, InputError, OutputExistsError, PrecisionError
from dpdist.estimators import DPMixture, FiniteMixture, load, resume
from dpdist.moves.plan import MovePlan
from dpdist.preparation import TransformPlan

__version__ = "0.1.0"

__all__ = [
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
    "families",
    "load",
    "resume",
    "schedules",
]
