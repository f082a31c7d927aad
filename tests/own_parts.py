"""Parts that a person may write: a likelihood, one without a conjugate prior, an allocation, a merge test, a move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import gammaln, psi

from dpdist.inference.moves.accept import Reason, Verdict
from dpdist.inference.moves.base import Following, LapEnd, Move, Proposals
from dpdist.inference.sva import MergeTest, PairSearch
from dpdist.models.allocations import Allocation, DirichletProcess
from dpdist.models.families import Family, Moments
from dpdist.models.likelihoods import Likelihood
from dpdist.models.mixture import Block
from dpdist.models.sufficient_statistics import Summary


@dataclass(frozen=True, eq=False)
class Exponential(Family):
    """Waiting times, independent columns, a Gamma prior on each rate."""

    shape: float = 2.0
    rate: Any = None
    columns: tuple[str, ...] = ()

    name = "exponential"

    def with_defaults(self, moments: Moments) -> Exponential:
        return self if self.rate is not None else replace(self, rate=self.shape * moments.mean)

    def features(self, rows: np.ndarray, dtype: type = np.float64) -> np.ndarray:
        return np.concatenate([rows, np.ones((len(rows), 1))], axis=1).astype(dtype)

    def posterior(self, stats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.shape + stats[:, -1:], self.rate + stats[:, :-1]

    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        shape, rate = self.posterior(stats)
        columns = gammaln(shape) - gammaln(self.shape) + self.shape * np.log(self.rate) - shape * np.log(rate)
        return columns.sum(axis=1)

    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        shape, rate = self.posterior(stats)
        constant = (psi(shape) - np.log(rate)).sum(axis=1, keepdims=True)
        return np.ascontiguousarray(np.concatenate([-shape / rate, constant], axis=1).T)

    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        shape, rate = self.posterior(stats)
        return {"waiting_time": (("component", "column"), rate / (shape - 1))}

    def sample(self, stats: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        shape, rate = (parameter[components] for parameter in self.posterior(stats))
        return rng.exponential(rate / rng.gamma(shape, size=rate.shape))


@dataclass(frozen=True, eq=False)
class GeometricSticks(Allocation):
    """Each component takes the same share of what those before it left."""

    share: float = 0.5

    name = "geometric_sticks"
    ordered = True

    def logs(self, components: int) -> np.ndarray:
        return np.log(self.share) + np.arange(components) * np.log1p(-self.share)

    def log_evidence(self, counts: np.ndarray) -> np.ndarray:
        return counts @ self.logs(counts.shape[-1])

    def log_weights(self, counts: np.ndarray) -> np.ndarray:
        return np.broadcast_to(self.logs(counts.shape[-1]), counts.shape)

    def weights(self, counts: np.ndarray) -> tuple[np.ndarray, float]:
        weights = np.exp(self.logs(len(counts)))
        return weights, float(1 - weights.sum())

    def plug_in(self, counts: np.ndarray) -> DirichletProcess:
        return DirichletProcess(1 / self.share - 1)


@dataclass(frozen=True, eq=False)
class KnownSpread(Likelihood):
    """Normal columns of one known spread about a mean with a wide normal prior."""

    spread: float = 1.0
    width: float = 10.0
    draws: int = 200

    name = "known_spread"

    def with_defaults(self, moments: Moments) -> KnownSpread:
        return self

    def log_likelihood(self, observed: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        gaps = (observed[:, None] - parameters) / self.spread
        return -0.5 * (gaps**2).sum(axis=2) - observed.shape[1] * np.log(self.spread * np.sqrt(2 * np.pi))

    def gradient(self, observed: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        return (observed - parameters) / self.spread**2

    def log_prior_gradient(self, parameters: np.ndarray) -> np.ndarray:
        return -parameters / self.width**2

    def prior_draws(self, rng: np.random.Generator, count: int, columns: int) -> np.ndarray:
        return rng.normal(0.0, self.width, (count, columns))

    def describe(self, parameters: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        return {"place": (("component", "column"), parameters)}

    def sample(self, parameters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.normal(parameters, self.spread)


@dataclass(frozen=True)
class Never(MergeTest):
    """No pair should become one."""

    reason: str = "because"

    def pairs(self, search: PairSearch) -> np.ndarray:
        return np.zeros((0, 2), dtype=np.intp)


@dataclass(frozen=True, eq=False)
class Cuts(Proposals):
    """Components cut in two where the first column passes a threshold; nobody is cut twice at the same place."""

    targets: np.ndarray
    thresholds: np.ndarray
    refused: np.ndarray  # ids

    def __len__(self) -> int:
        return len(self.targets)

    def blank(self, columns: int) -> Summary:
        return Summary.zeros(2 * len(self), columns)

    def measure(self, block: Block) -> Summary:
        found = self.blank(block.features.shape[1])
        for j, (target, threshold) in enumerate(zip(self.targets, self.thresholds, strict=True)):
            sides = np.stack([block.rows[:, 0] < threshold, block.rows[:, 0] >= threshold], axis=1)
            resp = sides * block.resp[:, [target]].astype(np.float64)
            found.stats[2 * j : 2 * j + 2] = (resp * block.weights[:, None]).T @ block.features
            logs = np.log(resp, out=np.zeros_like(resp), where=resp > 0)
            found.entropy[2 * j : 2 * j + 2] = -block.weights @ (resp * logs)
        return found

    def removed(self, proposal: int) -> tuple[int, ...]:
        return (int(self.targets[proposal]),)

    def replacement(self, proposal: int, summary: Summary, measured: Summary) -> Summary:
        return replace(measured.take([2 * proposal, 2 * proposal + 1]), base=0.0)

    def heirs(self, proposal: int, summary: Summary, measured: Summary) -> tuple[int, ...]:
        return int(self.targets[proposal]), -1


@dataclass(frozen=True)
class Cut(Move[Cuts]):
    """Cut components in two at a quantile of the first column."""

    quantile: float = 0.5

    @property
    def least_rows(self) -> int:
        return 2

    def none(self) -> Cuts:
        return Cuts(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=np.int64))

    def wants_rows(self, proposals: Cuts, ids: np.ndarray, lap: int) -> np.ndarray:
        return ~np.isin(ids, proposals.refused)

    def propose(self, end: LapEnd, before: Cuts, verdicts: Sequence[Verdict], others: Sequence[Proposals]) -> Following:
        gone = [v.proposal for v in verdicts if v.reason is Reason.NO_GAIN]
        gone = [end.ids[end.places[k]] for k in before.targets[gone].tolist() if k in end.places]
        refused = np.append(before.refused, np.array(gone, dtype=np.int64))
        targets = [k for k, (rows, _) in end.samples.items() if end.ids[k] not in refused and len(rows) > 1]
        thresholds = [float(np.quantile(end.samples[k][0][:, 0], self.quantile)) for k in targets]
        cuts = Cuts(np.array(targets, dtype=np.int64), np.array(thresholds), refused)
        return Following(cuts, pending=len(cuts) > 0)
