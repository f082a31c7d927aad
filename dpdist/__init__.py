"""Dirichlet-process mixtures of any size, with an exact bound, on Dask."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dpdist import allocations, families, likelihoods, schedules, sequential
    from dpdist.errors import CheckpointError, DpdistError, InputError, OutputExistsError, PrecisionError
    from dpdist.estimators import DPMixture, FiniteMixture, extend, load, resume
    from dpdist.moves.plan import MovePlan
    from dpdist.preparation import TransformPlan
    from dpdist.sva import SVA
    from dpdist.topic_model import HDPTopicModel
    from dpdist.topics.documents import Effort
    from dpdist.topics.online import OnlinePlan
    from dpdist.topics.problem import TopicPlan

__all__ = [
    "SVA",
    "CheckpointError",
    "DPMixture",
    "DpdistError",
    "Effort",
    "FiniteMixture",
    "HDPTopicModel",
    "InputError",
    "MovePlan",
    "OnlinePlan",
    "OutputExistsError",
    "PrecisionError",
    "TopicPlan",
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

#: Public names by the module that has them.
_HOMES = {
    "errors": ("CheckpointError", "DpdistError", "InputError", "OutputExistsError", "PrecisionError"),
    "estimators": ("DPMixture", "FiniteMixture", "extend", "load", "resume"),
    "moves.plan": ("MovePlan",),
    "preparation": ("TransformPlan",),
    "sva": ("SVA",),
    "topic_model": ("HDPTopicModel",),
    "topics.documents": ("Effort",),
    "topics.online": ("OnlinePlan",),
    "topics.problem": ("TopicPlan",),
}


def __getattr__(name: str) -> Any:
    """Import on first use: a worker needs a fraction of what an estimator needs, and starts the sooner."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"dpdist.{home}"), name)
    try:
        return importlib.import_module(f"dpdist.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"dpdist.{name}":
            raise
        raise AttributeError(f"module 'dpdist' has no attribute '{name}'") from None


def __dir__() -> list[str]:
    """Public names, for completion."""
    return [*__all__, "__version__"]
