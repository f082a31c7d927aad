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
        "Likelihood of a cluster, with its prior: a conjugate family, or one of dpdist.likelihoods, whose clusters are "
        "point estimates, updated by stochastic gradients. Hyperparameters that are not given are derived from the "
        "data; if covariances are learned, from clusters of a sample.",
    )
    concentration: float = setting(1.0, SCALE, "alpha of the Dirichlet process.")
    threshold: float = setting(
        0.001,
        number(above=0, below=1),
        "epsilon: a row opens a new cluster if the share of that cluster in the row exceeds this value.",
    )
    merge: str | MergeTest | None = setting(
        "auto",
        MERGE,
        "Which clusters are merged: 'evidence', those whose union raises the log joint probability; 'distance', those "
        "whose responsibilities differ by less than merge_threshold, relative to their weight; 'absolute distance', "
        "relative to the weight of all rows. 'auto' is 'evidence' for conjugate families, else 'distance'.",
        {"evidence": EvidenceTest, "distance": DistanceTest},
    )
    merge_threshold: float = setting(0.5, POSITIVE, "epsilon_d: threshold of 'distance' and 'absolute distance'.")
    prune: float = setting(
        1e-5,
        number(least=0, below=1),
        "epsilon_r: a cluster that holds less than this share of the rows seen since it was opened, or less than one "
        "row, is removed together with its statistics; 0 keeps all clusters.",
    )
    max_components: int | None = setting(None, COUNT.or_none("no bound"), "Largest number of clusters.")
    parallel: bool = setting(
        True,
        FLAG,
        "Whether partitions are processed in parallel, in rounds of 1, 1, 2, 4, 8, ... partitions, and combined by "
        "evidence. If not, and always without a conjugate prior, the pass is strictly sequential, as in the paper.",
    )
    round_partitions: int = setting(64, COUNT, "Largest number of partitions in a round.")
    shuffle: bool = setting(True, FLAG, "Whether partitions, and rows within each, are taken in a seeded random order.")
    floor: float = setting(1e-6, FLOOR, "Responsibilities below this share of a row's largest are set to zero.")
    forgetting: float = setting(
        0.8,
        number(above=0.5, most=1),
        "kappa, only without a conjugate prior: step sizes decrease as a clock to the power of minus kappa.",
    )
    own_clock: bool = setting(
        True,
        FLAG,
        "Whether the clock of forgetting is the cluster's weight; if not, it is the number of rows so far (as in the "
        "paper).",
    )

    @property
    def idle(self) -> dict[str, str]:
        conjugate = isinstance(self.family, Family)
        distances = isinstance(self.merge, str) and isinstance(self.pruning.merge, DistanceTest)
        needs = {
            "merge_threshold": (distances, "merge = 'distance' or 'absolute distance'"),
            "round_partitions": (conjugate and self.parallel, "parallel = true and a conjugate family"),
            "forgetting": (not conjugate, "a likelihood without a conjugate prior"),
            "own_clock": (not conjugate, "a likelihood without a conjugate prior"),
        }
        return {name: needed for name, (met, needed) in needs.items() if not met}

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
                f"merge='evidence' needs a conjugate prior, which {type(self.family).__name__} does not have; choose "
                "merge='distance' or None."
            )
        return PruneMerge(self.prune, merge)

    @property
    def rounds(self) -> Rounds:
        """The rule that assigns partitions to rounds."""
        return Rounds(self.parallel, self.round_partitions, self.shuffle)
