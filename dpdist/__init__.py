"""Dirichlet-process mixtures of any size, with an exact bound, on Dask."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dpdist.core.errors import CheckpointError, DpdistError, InputError, OutputExistsError, PrecisionError
    from dpdist.estimators.mixture import DPMixture, FiniteMixture
    from dpdist.estimators.opening import extend, load, resume
    from dpdist.estimators.sva import SVA
    from dpdist.estimators.topic_model import HDPTopicModel
    from dpdist.inference import schedules, sva
    from dpdist.inference.mixture.candidates import Candidates
    from dpdist.inference.moves.delete import Delete
    from dpdist.inference.moves.merge import Merge
    from dpdist.inference.moves.regroup import Regroup
    from dpdist.inference.moves.sampling import Sampling
    from dpdist.inference.moves.split import Split
    from dpdist.inference.topics.documents import Effort
    from dpdist.inference.topics.problem import OnlinePlan, TopicPlan
    from dpdist.inference.transform import TransformPlan
    from dpdist.models import allocations, families, likelihoods
    from dpdist.report import plot

__all__ = [
    "SVA",
    "Candidates",
    "CheckpointError",
    "DPMixture",
    "Delete",
    "DpdistError",
    "Effort",
    "FiniteMixture",
    "HDPTopicModel",
    "InputError",
    "Merge",
    "OnlinePlan",
    "OutputExistsError",
    "PrecisionError",
    "Regroup",
    "Sampling",
    "Split",
    "TopicPlan",
    "TransformPlan",
    "allocations",
    "extend",
    "families",
    "likelihoods",
    "load",
    "plot",
    "resume",
    "schedules",
    "sva",
]

#: Public names by the module that has them.
_HOMES = {
    "core.errors": ("CheckpointError", "DpdistError", "InputError", "OutputExistsError", "PrecisionError"),
    "estimators.sva": ("SVA",),
    "estimators.topic_model": ("HDPTopicModel",),
    "estimators.opening": ("extend", "load", "resume"),
    "estimators.mixture": ("DPMixture", "FiniteMixture"),
    "inference.mixture.candidates": ("Candidates",),
    "inference.moves.delete": ("Delete",),
    "inference.moves.merge": ("Merge",),
    "inference.moves.sampling": ("Sampling",),
    "inference.moves.regroup": ("Regroup",),
    "inference.moves.split": ("Split",),
    "inference.topics.documents": ("Effort",),
    "inference.topics.problem": ("OnlinePlan", "TopicPlan"),
    "inference.transform": ("TransformPlan",),
}

#: Public modules by the room that they are in.
_ROOMS = {
    "allocations": "models",
    "families": "models",
    "likelihoods": "models",
    "plot": "report",
    "schedules": "inference",
    "sva": "inference",
}


def __getattr__(name: str) -> Any:
    """Import on first use: a worker needs a fraction of what an estimator needs, and starts the sooner."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"dpdist.{home}"), name)
    path = f"dpdist.{_ROOMS[name]}.{name}" if name in _ROOMS else f"dpdist.{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise AttributeError(f"module 'dpdist' has no attribute '{name}'") from None


def __dir__() -> list[str]:
    """Public names, for completion."""
    return [*__all__, "__version__"]
