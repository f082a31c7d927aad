"""Sequential variational approximation: one pass over the rows that adds components as needed (Lin 2013)."""

from dpdist.inference.sva.base import Learner, OpeningRule, Pass
from dpdist.inference.sva.conjugate import PASSES, Conjugate, ConjugatePass, PlainPass
from dpdist.inference.sva.prune_merge import DistanceTest, EvidenceTest, MergeTest, PairSearch, PruneMerge

__all__ = [
    "PASSES",
    "Conjugate",
    "ConjugatePass",
    "DistanceTest",
    "EvidenceTest",
    "Learner",
    "MergeTest",
    "OpeningRule",
    "PairSearch",
    "Pass",
    "PlainPass",
    "PruneMerge",
]
