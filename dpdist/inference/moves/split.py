"""Split (birth): the rows of one component are divided among children found in a sample of its rows.

Children are seeded by k-means++ among the sampled rows and refined on the sample; in the following laps every
worker divides the responsibility of the component among them. Children that do not pay at once go on
refining. Source: the targeted births of Hughes & Sudderth (2013), with several targets a lap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from dpdist.core.errors import PrecisionError
from dpdist.inference.moves.base import Trial
from dpdist.inference.moves.plan import MovePlan
from dpdist.inference.moves.seeding import nearest_seeds
from dpdist.kernels.divide import divide_rows
from dpdist.models.families.base import Features, Rows
from dpdist.models.mixture import Block, Model, Posterior, summarise
from dpdist.models.sufficient_statistics import Summary


@dataclass(frozen=True, eq=False)
class Splits(Trial):
    """Pending splits.

    Parameters
    ----------
    targets : (J,) intp, components to divide
    children : int, M, children of each
    ages : (J,) int, laps spent so far
    gains : (J,) float, exact gain at the end of the last lap; -inf before the first
    coefficients : (J, M, F) or None before a posterior was made
    """

    targets: np.ndarray
    children: int
    ages: np.ndarray
    gains: np.ndarray
    coefficients: np.ndarray | None = None

    kind = "split"

    def __len__(self) -> int:
        return len(self.targets)

    def blank(self, columns: int) -> Summary:
        return Summary.zeros(len(self) * self.children, columns)

    def armed(self, model: Model, posterior: Posterior, measured: Summary) -> Splits:
        """The same splits with the children's posterior made from their statistics so far."""
        if not len(self):
            return self
        coefficients = model.family.coefficients(measured.stats).T.reshape(len(self), self.children, -1).copy()
        counts = measured.counts.reshape(len(self), self.children)
        for j in range(len(self)):
            coefficients[j, :, -1] += model.allocation.log_weights(counts[j])
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


def divide(block: Block, targets: np.ndarray, onto: np.ndarray, coefficients: np.ndarray) -> Summary:
    """Measure what replacements make of the rows of `targets`: a summary of J * M rows."""
    if sparse.issparse(block.features):
        return _divide_sparse(block, targets, onto, coefficients)
    shape = coefficients.shape
    stats, counts, entropy = np.zeros(shape), np.zeros(shape[:2]), np.zeros(shape[:2])
    floor = block.posterior.precision.floor
    finite = divide_rows(
        block.resp, block.weights, block.features, targets, onto, coefficients, floor, stats, counts, entropy
    )
    if not finite:
        raise PrecisionError("the log probabilities of a proposed component are not finite; standardise the columns.")
    stats[:, :, -1] = counts
    return Summary(stats.reshape(-1, shape[2]), entropy.ravel())


def _divide_sparse(block: Block, targets: np.ndarray, onto: np.ndarray, coefficients: np.ndarray) -> Summary:
    parts = []
    for target, places, weights in zip(targets, onto, coefficients, strict=True):
        rows = np.flatnonzero(block.resp[:, target])
        mass, features = block.resp[rows, target].astype(np.float64), block.features[rows]
        logits = np.ascontiguousarray(features @ weights.T, dtype=np.float64)
        resp, part = summarise(logits, mass, features, block.weights[rows], block.posterior)
        held = np.where(places >= 0, block.resp[rows][:, places], 0.0)
        change = _entropy_terms(held + resp) - _entropy_terms(held)
        parts.append(Summary(part.stats, block.weights[rows] @ change))
    return Summary(np.concatenate([p.stats for p in parts]), np.concatenate([p.entropy for p in parts]))


def _entropy_terms(resp: np.ndarray) -> np.ndarray:
    logs = np.log(resp, out=np.zeros_like(resp), where=resp > 0)
    return -resp * logs


def seed_children(
    model: Model, rows: Rows, weights: np.ndarray, count: float, plan: MovePlan, rng: np.random.Generator
) -> np.ndarray | None:
    """Statistics (M, F) of children found in sampled `rows`, scaled to the component's `count`.

    Of several k-means++ seedings the one whose children have the highest evidence after a first step of
    variational inference is refined. Returns None when the rows hold too few distinct points.
    """
    features, points = model.family.features(rows), model.family.points(rows)
    best, highest = None, -np.inf
    for _ in range(plan.seedings):
        owners = nearest_seeds(points, weights, plan.children, rng)
        if owners is None:
            return None
        stats = _refined(model, features, weights, _hard(features, weights, owners, plan.children), 1)
        evidence = float(model.family.log_evidence(stats).sum())
        if best is None or evidence > highest:
            best, highest = stats, evidence
    assert best is not None, "at least one seeding is tried"
    return _refined(model, features, weights, best, plan.seed_iterations) * (count / weights.sum())


def _hard(features: Features, weights: np.ndarray, owners: np.ndarray, children: int) -> np.ndarray:
    """Statistics of children that own their rows whole."""
    resp = np.zeros((len(weights), children))
    resp[np.arange(len(weights)), owners] = weights
    return np.ascontiguousarray((features.T @ resp).T)


def _refined(model: Model, features: Features, weights: np.ndarray, stats: np.ndarray, steps: int) -> np.ndarray:
    """Statistics after some steps of variational inference on the sample."""
    for _ in range(steps):
        logits = features @ model.family.coefficients(stats) + model.allocation.log_weights(stats[:, -1])
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        logits *= (weights / logits.sum(axis=1))[:, None]
        stats = np.ascontiguousarray((features.T @ logits).T)
    return stats
