"""Sequential variational approximation: one pass that grows the model (Lin 2013)."""

from dpdist.sequential.base import Learner, Pass, Rule
from dpdist.sequential.conjugate import Conjugate
from dpdist.sequential.passes import PASSES, ConjugatePass
from dpdist.sequential.plain import PlainPass
from dpdist.sequential.tidy import DistanceTest, EvidenceTest, MergeTest, Tidy

__all__ = [
    "PASSES",
    "Conjugate",
    "ConjugatePass",
    "DistanceTest",
    "EvidenceTest",
    "Learner",
    "MergeTest",
    "Pass",
    "PlainPass",
    "Rule",
    "Tidy",
]
