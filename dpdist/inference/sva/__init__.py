"""Sequential variational approximation: one pass that grows the model (Lin 2013)."""

from dpdist.inference.sva.base import Learner, Pass, Rule
from dpdist.inference.sva.conjugate import Conjugate
from dpdist.inference.sva.passes import PASSES, ConjugatePass
from dpdist.inference.sva.plain import PlainPass
from dpdist.inference.sva.prune_merge import DistanceTest, EvidenceTest, MergeTest, Tidy

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
