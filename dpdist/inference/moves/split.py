"""Split (birth): the rows of one component are divided among children found in a sample of its rows.

Children are found in the sampled rows (:mod:`dpdist.inference.moves.children`). In the following laps every worker
divides the component's responsibilities among them. Children that do not gain at once are refined further; a component
whose children never gained is skipped for some laps. Source: the targeted births of Hughes & Sudderth (2013), with
several targets per lap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpdist.core.checks import COUNT, whole
from dpdist.core.randomness import generator
from dpdist.core.settings import check_settings, documented, setting
from dpdist.core.threads import one_thread
from dpdist.inference.moves.base import LapEnd, Proposals
from dpdist.inference.moves.children import paying, seed_children
from dpdist.inference.moves.contest import contest
from dpdist.inference.moves.division import Dividing, Divisions
from dpdist.inference.moves.sampled_rows import SampledRows
from dpdist.inference.moves.sampling import share_of
from dpdist.models.families.base import Rows
from dpdist.models.mixture import Model

#: Number of seeded candidates kept and their steps, before the most promising candidate is refined alone.
STAGES = ((5, 2),)


@documented
@dataclass(frozen=True)
class Split(Dividing):
    """Make several components of one."""

    children: int = setting(2, whole(2), "Number of components that a split makes of one component.")
    seedings: int = setting(
        8,
        COUNT,
        "Number of k-means++ seedings of the children. Half as many shells and half as many balls are tried too; the "
        "best candidate on the sample is kept.",
    )
    seed_iterations: int = setting(
        4, whole(0), "Number of final steps of variational inference on the sample for the most promising children."
    )
    refine: int = setting(6, COUNT, "Number of laps within which the children must gain.")
    cooldown: int = setting(
        2, whole(0), "Number of laps in which a component is not split again after a refused split."
    )
    tries: int = setting(
        2, COUNT, "Number of refused splits after which a component is not split again until it changes."
    )

    def __post_init__(self) -> None:
        check_settings(self, " of Split")

    @property
    def least_rows(self) -> int:
        return self.children

    def wants_rows(self, proposals: Divisions, ids: np.ndarray, lap: int) -> np.ndarray:
        """Components that may be split when the lap ends."""
        return proposals.cooldowns.allow(ids, lap + 1, self.tries)

    def resting(self, end: LapEnd, before: Divisions, refused: Sequence[tuple[int, ...]]) -> Divisions:
        return replace(self.none(), cooldowns=before.cooldowns.after(end, [k for (k,) in refused], self.cooldown))

    def unfinished(self, end: LapEnd, resting: Divisions) -> bool:
        done = resting.cooldowns.exhausted(end.ids, self.tries) | ~end.reachable
        return not (end.full or bool(done.all()))

    def births(
        self, end: LapEnd, busy: np.ndarray, resting: Divisions, others: Sequence[Proposals]
    ) -> dict[tuple[int, ...], np.ndarray | None]:
        """Children of each sampled component that may be split, found in parallel tasks."""
        if end.full:
            return {}
        allowed = resting.cooldowns.allow(end.ids, end.lap + 1, self.tries) & ~busy
        candidates = [int(k) for k in np.flatnonzero(allowed) if int(k) in end.samples]
        if not candidates:
            return {}
        refs = end.backend.map(
            _seed_task,
            [end.backend.share((end.model, self))] * len(candidates),
            [end.samples[k] for k in candidates],
            [float(end.summary.counts[k]) for k in candidates],
            [(end.seed, end.lap, int(end.ids[k])) for k in candidates],
        )
        return {(k,): stats for k, stats in zip(candidates, end.backend.fetch(refs), strict=True)}


def _seed_task(
    shared: tuple[Model, Split], drawn: tuple[Rows, np.ndarray], count: float, key: tuple[int, int, int]
) -> np.ndarray | None:
    (model, split), (rows, weights), (seed, lap, identity) = shared, drawn, key
    rng = generator(seed, "seed children", lap, identity)
    with one_thread():
        sample = SampledRows.of(model, rows, weights, share_of(weights, count))
        seeded = seed_children(sample, split.children, split.seedings, rng)
        stages = (*STAGES, (1, split.seed_iterations))
        # If no candidate beats the single component on the sample, the most promising one is measured on all rows.
        found = paying(sample, seeded, stages) or contest(sample, seeded, stages, -np.inf, among_credible=False)
        if not found:
            return None
        best = found[0].stats
        largest_first = np.argsort(-best[:, -1], kind="stable")  # one order, whichever seeding found them
        return np.asarray(best[largest_first] * (count / weights.sum()))
