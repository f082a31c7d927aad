"""One spec a method: what a person asks for, checked; estimators, TOML files and the command line are made of it."""

from dpdist.runs.specs.base import Spec
from dpdist.runs.specs.mixture import FiniteSpec, MixtureSpec
from dpdist.runs.specs.sva import SVASpec
from dpdist.runs.specs.topics import TopicSpec

#: The spec of each command that makes a model.
SPECS: dict[str, type[Spec]] = {"fit": MixtureSpec, "sva": SVASpec, "topics": TopicSpec}

__all__ = ["SPECS", "FiniteSpec", "MixtureSpec", "SVASpec", "Spec", "TopicSpec"]
