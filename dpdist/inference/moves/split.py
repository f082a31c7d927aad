"""Split (birth): the rows of one component are divided among children found in a sample of its rows.

Children are seeded by k-means++ among the sampled rows and refined on the sample; in the following laps every
worker divides the responsibility of the component among them. Children that do not pay at once go on
refining; a component whose children never paid is left alone for some laps. Source: the targeted births of Hughes &
Sudderth (2013), with several targets a lap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated

import numpy as np

from dpdist.core.checks import COUNT, check_fields, whole
from dpdist.core.randomness import generator
from dpdist.core.stored import Stored
from dpdist.core.threads import one_thread
from dpdist.inference.moves.accept import Reason, Verdict
from dpdist.inference.moves.base import Following, LapEnd, Move, Proposals
from dpdist.inference.moves.cooldown import Cooldowns
from dpdist.inference.moves.divide import divide
from dpdist.inference.moves.seeding import nearest_seeds
from dpdist.models.families.base import Features, Rows
from dpdist.models.mixture import Block, Model, Posterior
from dpdist.models.sufficient_statistics import Summary


@dataclass(frozen=True, eq=False)
class Splits(Proposals):
    """Splits under way, and the components that rest after refused ones.

    Parameters
    ----------
    targets : (J,) intp, components to divide
    children : int, M, children of each
    ages : (J,) int, laps spent so far
    gains : (J,) float, exact gain at the end of the last lap; -inf before the first
    cooldowns : of components
    coefficients : (J, M, F) or None before a posterior was made
    """

    targets: Annotated[np.ndarray, Stored(("split",), "component that a pending split divides")]
    children: int
    ages: Annotated[np.ndarray, Stored(("split",), "laps the split has been refined")]
    gains: Annotated[np.ndarray, Stored(("split",), "its exact gain at the end of the last lap", "nat")]
    cooldowns: Cooldowns = field(default_factory=Cooldowns)
    coefficients: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def blank(self, columns: int) -> Summary:
        return Summary.zeros(len(self) * self.children, columns)

    def armed(self, model: Model, posterior: Posterior, measured: Summary) -> Splits:
        """The same splits with the children's posterior made from their statistics so far."""
        if not len(self):
            return self
        coefficients = model.gradient(measured.stats.reshape(len(self), self.children, -1))
        return replace(self, coefficients=np.ascontiguousarray(coefficients, dtype=posterior.precision.dtype))

    def measure(self, block: Block) -> Summary:
        if not len(self) or self.coefficients is None:
            return self.blank(block.features.shape[1])
        onto = np.full((len(self), self.children), -1, dtype=np.intp)
        return divide(block, self.targets, onto, self.coefficients)

    def removed(self, proposal: int) -> tuple[int, ...]:
        return (int(self.targets[proposal]),)

    def rows_of(self, proposal: int) -> slice:
        """Where the children of a proposal stand in a measurement."""
        return slice(proposal * self.children, (proposal + 1) * self.children)

    def replacement(self, proposal: int, summary: Summary, measured: Summary) -> Summary:
        rows = self.rows_of(proposal)
        return Summary(measured.stats[rows], measured.entropy[rows])

    def heirs(self, proposal: int, summary: Summary, measured: Summary) -> tuple[int, ...]:
        largest = int(measured.counts[self.rows_of(proposal)].argmax())
        return tuple(int(self.targets[proposal]) if c == largest else -1 for c in range(self.children))

    def evidence_before(self, proposal: int, evidence: np.ndarray, replaced: Summary, model: Model) -> float:
        # The children's own sum: the parent was rounded separately.
        return float(model.family.log_evidence(replaced.stats.sum(axis=0, keepdims=True))[0])

    def reserved(self) -> np.ndarray:
        return self.targets


_REFUSED = (Reason.NO_GAIN, Reason.ROUNDING, Reason.LIMIT)


@dataclass(frozen=True)
class Split(Move[Splits]):
    """Make several components of one.

    Parameters
    ----------
    children : components that a split makes of one
    seedings : k-means++ seedings of children, of which the best on the sample is kept
    seed_iterations : steps of variational inference on the sample
    refine : laps that children may take until they pay
    cooldown : laps that a component is left alone after a refused split
    tries : refused splits after which a component is left alone until it changes
    """

    children: int = 2
    seedings: int = 8
    seed_iterations: int = 4
    refine: int = 6
    cooldown: int = 3
    tries: int = 10

    def __post_init__(self) -> None:
        check_fields(
            self,
            " of Split",
            children=whole(2),
            **dict.fromkeys(("seedings", "refine", "tries"), COUNT),
            **dict.fromkeys(("seed_iterations", "cooldown"), whole(0)),
        )

    @property
    def least_rows(self) -> int:
        return self.children

    def none(self) -> Splits:
        empty = np.zeros(0, dtype=np.intp)
        return Splits(empty, self.children, empty, np.zeros(0))

    def wants_rows(self, proposals: Splits, ids: np.ndarray, lap: int) -> np.ndarray:
        """Those that may be given new children when the lap ends."""
        return proposals.cooldowns.allow(ids, lap + 1, self.tries)

    def postpones(self, proposals: Splits, proposal: int, gain: float) -> bool:
        """Whether the children's improvement, if it goes on as in the last lap, may still lead to a gain."""
        age, before = int(proposals.ages[proposal]), float(proposals.gains[proposal])
        left = self.refine - age - 1
        return left > 0 and (not np.isfinite(before) or gain + left * (gain - before) > 0)

    def propose(
        self, end: LapEnd, before: Splits, verdicts: Sequence[Verdict], others: Sequence[Proposals]
    ) -> Following:
        # Where an accepted move took a component away or changed it, its split ends with it: the children divided the
        # responsibilities of a component that is there no more.
        untouched = {v.proposal: v for v in verdicts if int(before.targets[v.proposal]) in end.places}
        going = np.array(sorted(j for j, v in untouched.items() if v.reason is Reason.REFINING), dtype=np.intp)
        targets = [end.places[int(before.targets[j])] for j in going]
        refused = [end.places[int(before.targets[j])] for j, v in untouched.items() if v.reason in _REFUSED]
        cooldowns = before.cooldowns.after(end, refused, self.cooldown)
        # New children begin with what a sample says of them. They are measured in the coming lap and judged at its end,
        # together with the older ones, which have been refined on all rows since.
        births = self._births(end, self._candidates(end, targets, cooldowns))
        hopeless = [k for k, stats in births.items() if stats is None]
        cooldowns = cooldowns.ended(end, hopeless, self.tries)
        seeds = [stats for stats in births.values() if stats is not None]
        splits = Splits(
            targets=np.array(targets + [k for k in births if k not in hopeless], dtype=np.intp),
            children=self.children,
            ages=np.concatenate([before.ages[going] + 1, np.zeros(len(seeds), dtype=np.intp)]),
            gains=np.concatenate([[untouched[int(j)].gain for j in going], np.full(len(seeds), -np.inf)]),
            cooldowns=cooldowns,
        )
        carried = (going[:, None] * self.children + np.arange(self.children)).ravel().astype(np.intp)
        pending = bool(len(splits)) or not cooldowns.exhausted(end.ids, self.tries).all()
        return Following(splits, carried, _start(len(carried), seeds), pending)

    def _candidates(self, end: LapEnd, busy: Sequence[int], cooldowns: Cooldowns) -> list[int]:
        """Components that may be given new children and of which there are rows."""
        limit = end.model.allocation.max_components
        if limit is not None and len(end.ids) >= limit:
            return []
        allowed = cooldowns.allow(end.ids, end.lap + 1, self.tries)
        allowed[list(busy)] = False
        return [int(k) for k in np.flatnonzero(allowed) if int(k) in end.samples]

    def _births(self, end: LapEnd, candidates: Sequence[int]) -> dict[int, np.ndarray | None]:
        """Statistics (M, F) of children of each candidate, found in a task of its own; None where there are none."""
        if not candidates:
            return {}
        refs = end.backend.map(
            _seed_task,
            [end.backend.share((end.model, self))] * len(candidates),
            [end.samples[k] for k in candidates],
            [float(end.summary.counts[k]) for k in candidates],
            [(end.seed, end.lap, int(end.ids[k])) for k in candidates],
        )
        return dict(zip(candidates, end.backend.fetch(refs), strict=True))


def _start(carried: int, seeds: Sequence[np.ndarray]) -> Summary | None:
    """What stands in for rows that new children have not seen; children that go on have seen them all."""
    if not seeds:
        return None
    stats = np.concatenate([np.zeros((carried, seeds[0].shape[1])), *seeds])
    return Summary(stats, np.zeros(len(stats)))


def _seed_task(
    shared: tuple[Model, Split], sample: tuple[Rows, np.ndarray], count: float, key: tuple[int, int, int]
) -> np.ndarray | None:
    (model, split), (rows, weights), (seed, lap, identity) = shared, sample, key
    rng = generator(seed, "seed children", lap, identity)
    with one_thread():
        return seed_children(model, rows, weights, count, split, rng)


def seed_children(
    model: Model, rows: Rows, weights: np.ndarray, count: float, split: Split, rng: np.random.Generator
) -> np.ndarray | None:
    """Statistics (M, F) of children found in sampled `rows`, scaled to the component's `count`.

    Of several k-means++ seedings the one whose children have the highest evidence after a first step of
    variational inference is refined. Returns None when the rows hold too few distinct points.
    """
    points, seedings = model.family.points(rows), []
    for _ in range(split.seedings):
        owners = nearest_seeds(points, weights, split.children, rng)
        if owners is None:
            return None
        seedings.append(owners)
    sample = _Seeding(model, model.family.features(rows), weights)
    owned = np.stack(seedings, axis=1)[:, None] == np.arange(split.children - 1)[:, None]
    tried = sample.refined(sample.children(owned * weights[:, None, None]), 1)
    evidence = model.family.log_evidence(tried.reshape(-1, tried.shape[2])).reshape(tried.shape[:2]).sum(axis=0)
    best = tried[:, [evidence.argmax()]]
    return sample.refined(best, split.seed_iterations)[:, 0] * (count / weights.sum())


@dataclass(frozen=True, eq=False)
class _Seeding:
    """Sampled rows by which several seedings of children are refined side by side.

    A product with a few columns costs hardly more than with one, so all seedings share theirs. What the last child of a
    seeding has is what the others leave.
    """

    model: Model
    features: Features
    weights: np.ndarray

    @cached_property
    def total(self) -> np.ndarray:
        """Statistics (F,) of all rows."""
        return np.asarray(self.features.T @ self.weights)

    def children(self, resp: np.ndarray) -> np.ndarray:
        """Statistics (M, S, F) of children, `resp` (n, M - 1, S) being the weights that all but the last have."""
        own = np.asarray(self.features.T @ resp.reshape(len(resp), -1)).T.reshape(*resp.shape[1:], -1)
        return np.concatenate([own, self.total - own.sum(axis=0, keepdims=True)])

    def refined(self, stats: np.ndarray, steps: int) -> np.ndarray:
        """Statistics (M, S, F) after some steps of variational inference, each seeding by itself."""
        for _ in range(steps):
            gradient = np.swapaxes(self.model.gradient(np.swapaxes(stats, 0, 1)), 0, 1)
            gaps = (gradient[:-1] - gradient[-1]).reshape(-1, stats.shape[2])
            logits = (self.features @ gaps.T).reshape(-1, len(stats) - 1, stats.shape[1])
            top = np.maximum(logits.max(axis=1, keepdims=True), 0.0)
            shares = np.exp(logits - top)
            all_shares = shares.sum(axis=1, keepdims=True) + np.exp(-top)
            stats = self.children(shares * (self.weights[:, None, None] / all_shares))
        return stats
