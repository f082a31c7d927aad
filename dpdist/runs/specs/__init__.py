"""Specs: the checked settings of each method, shared by estimators, TOML files and the command line."""

from dpdist.runs.specs.base import Spec
from dpdist.runs.specs.mixture import FiniteSpec, MixtureSpec
from dpdist.runs.specs.sva import SVASpec
from dpdist.runs.specs.topics import TopicSpec

#: The spec of each command that fits a model.
SPECS: dict[str, type[Spec]] = {"fit": MixtureSpec, "sva": SVASpec, "topics": TopicSpec}

__all__ = ["SPECS", "FiniteSpec", "MixtureSpec", "SVASpec", "Spec", "TopicSpec"]
