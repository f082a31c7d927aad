"""Which moves a run makes, and how hard it tries."""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.core.checks import COUNT, FLAG, check_fields, whole


@dataclass(frozen=True)
class MovePlan:
    """Which moves a run makes, and how hard it tries.

    Parameters
    ----------
    split, merge, delete : whether to try them
    children : components that a split makes of one
    sample : rows drawn of each component to seed its children
    sample_bytes : bound on all rows drawn in a lap
    seedings : k-means++ seedings of children, of which the best on the sample is kept
    seed_iterations : steps of variational inference on the sample
    refine : laps that children may take until they pay
    rest : laps that a component rests after a refused split
    tries : refused splits after which a component is left alone until it changes
    merges : largest number of pairs measured a lap, as a multiple of K
    absorbers : components that share the rows of a deleted one
    """

    split: bool = True
    merge: bool = True
    delete: bool = True
    children: int = 2
    sample: int = 4000
    sample_bytes: int = 64 * 2**20
    seedings: int = 8
    seed_iterations: int = 4
    refine: int = 6
    rest: int = 3
    tries: int = 10
    merges: int = 4
    absorbers: int = 3

    def __post_init__(self) -> None:
        check_fields(
            self,
            " of MovePlan",
            **dict.fromkeys(("split", "merge", "delete"), FLAG),
            **dict.fromkeys(("children", "sample"), whole(2)),
            **dict.fromkeys(("sample_bytes", "seedings", "refine", "tries", "absorbers"), COUNT),
            **dict.fromkeys(("seed_iterations", "rest", "merges"), whole(0)),
        )

    @property
    def any(self) -> bool:
        """Whether any move is on."""
        return self.split or self.merge or self.delete
