"""Settings of sequential passes (SVA)."""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.core.checks import COUNT, FLAG, FLOOR, POSITIVE, SCALE, number
from dpdist.core.errors import InputError
from dpdist.core.settings import part, setting
from dpdist.inference.sva.base import OpeningRule
from dpdist.inference.sva.prune_merge import MERGE, DistanceTest, EvidenceTest, MergeTest, PruneMerge, merge_test
from dpdist.inference.sva.sequence import Rounds, SVAProblem
from dpdist.models.families import FAMILIES, Family
from dpdist.models.likelihoods import LIKELIHOODS, Likelihood
from dpdist.runs.specs.base import RowSpec


@dataclass(frozen=True, eq=False, kw_only=True)
class SVASpec(RowSpec):
    """The parameters of :class:`dpdist.SVA`."""

    estimator = "dpdist:SVA"
    method = SVAProblem.method

    family: Family | Likelihood = part(
        {**FAMILIES, **LIKELIHOODS},
        (Family, Likelihood),
        "a family of dpdist.families or a likelihood of dpdist.likelihoods",
        "Likelihood of a cluster, with its prior: conjugate, or one of dpdist.likelihoods, whose clusters are points "
        "moved by stochastic gradients. Hyperparameters left out are derived from the data: where covariances "
        "are learned, from clusters of a sample.",
    )
    concentration: float = setting(1.0, SCALE, "alpha of the Dirichlet process.")
    threshold: float = setting(
        0.001, number(above=0, below=1), "epsilon: share of a row above which a new cluster is opened for it."
    )
    merge: str | MergeTest | None = setting(
        "auto",
        MERGE,
        "Which clusters become one: by 'evidence' those whose union raises the log joint probability; by 'distance' "
        "those whose responsibilities differ by less than merge_threshold, relative to their weight, or by 'absolute "
        "distance' absolutely. 'auto' is by evidence where the family is conjugate, by distance where it is not.",
        {"evidence": EvidenceTest, "distance": DistanceTest},
    )
    merge_threshold: float = setting(0.5, POSITIVE, "epsilon_d of the tests by distance.")
    prune: float = setting(
        1e-5,
        number(least=0, below=1),
        "epsilon_r: clusters with less than this share of the rows that passed since they were opened, or less than "
        "one row, are removed, with what they had gathered; 0 keeps all.",
    )
    max_components: int | None = setting(None, COUNT.or_none("no bound"), "Largest number of clusters.")
    parallel: bool = setting(
        True,
        FLAG,
        "Whether partitions pass side by side, in rounds of 1, 1, 2, 4, 8, ... partitions, and are combined by "
        "evidence; if not, and without a conjugate prior, the pass is the strictly sequential one of the paper.",
    )
    round_partitions: int = setting(64, COUNT, "Partitions of a round at most.")
    shuffle: bool = setting(True, FLAG, "Whether partitions, and rows within each, are taken in a seeded random order.")
    floor: float = setting(1e-6, FLOOR, "Responsibilities below this share of a row's largest are set to zero.")
    forgetting: float = setting(
        0.8,
        number(above=0.5, most=1),
        "kappa, without a conjugate prior: steps shrink as a clock to the power of minus this.",
    )
    own_clock: bool = setting(
        True,
        FLAG,
        "Whether that clock is a cluster's own weight, in place of the number of rows so far (as in the paper).",
    )

    @property
    def rule(self) -> OpeningRule:
        """The rule that decides when a row opens a cluster."""
        return OpeningRule(self.concentration, self.threshold, self.floor, self.max_components)

    @property
    def pruning(self) -> PruneMerge:
        """The rule that decides when clusters are pruned and merged."""
        merge = merge_test(self.merge, self.merge_threshold, isinstance(self.family, Family))
        if isinstance(merge, EvidenceTest) and not isinstance(self.family, Family):
            raise InputError(
                f"{type(self.family).__name__} has no conjugate prior, so there is no evidence to merge by; choose "
                "merge='distance', or None."
            )
        return PruneMerge(self.prune, merge)

    @property
    def rounds(self) -> Rounds:
        """The rule that assigns partitions to rounds."""
        return Rounds(self.parallel, self.round_partitions, self.shuffle)
