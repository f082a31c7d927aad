"""Sampled rows of a few components: arrangements of them, and the estimated bound on all rows under each one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dpdist.core.errors import PrecisionError
from dpdist.inference.moves.change import EMPTY
from dpdist.inference.moves.divide import NOT_FINITE
from dpdist.kernels.arrangements import share_arrangements
from dpdist.models.families.base import Family, Features, Rows, dense_rows, is_sparse
from dpdist.models.mixture import Model, side_by_side

#: Nats per row that an arrangement must gain in a step to be refined further, and the largest number of steps.
STEP_GAIN, MOST_STEPS = 1e-4, 30
#: If a component's excess breadth costs more than TRUSTED nats per sampled row, it no longer measures how much the fit
#: is too good, and the component is tested with rows left out, LEFT_OUT at most.
TRUSTED, LEFT_OUT = 2.0, 64
#: Size of a block of dense features in numbers, and the fewest rows of a block.
BLOCK_NUMBERS, FEWEST_ROWS = 2**17, 64


class Arrangement(NamedTuple):
    """Components of a sample.

    Parameters
    ----------
    stats : (M, F) of the responsibilities
    elbo : of all rows that the sample represents, under these components, without the base measure
    resp : (n, M) responsibilities times the rows' weights
    broader : (M,) cost of estimating q from the sample only, see :meth:`SampledRows.broader`
    """

    stats: np.ndarray
    elbo: float
    resp: np.ndarray
    broader: np.ndarray

    @property
    def occupied(self) -> Arrangement:
        """The arrangement without empty components, which do not affect the bound."""
        held = self.stats[:, -1] >= EMPTY
        return self._replace(stats=self.stats[held], resp=self.resp[:, held], broader=self.broader[held])


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Rows drawn from the whole data, with what inference on them needs.

    Components are fitted to the sample and judged by an estimate of the bound on all rows that it represents. Let q be
    the posterior from the sample's statistics S, and T = S / share the statistics of all rows. ``<grad A(S), S> + H``
    is the expected log likelihood of the sampled rows. It is too high because q was fitted to them, by about as much as
    q is too broad, so ``1 / share`` times this value is the expectation for all rows. The divergence from the prior is
    that of the posterior from T:

        H / share + <grad A(S), T> - [<grad A(T), T> - A(T)],

    which equals A(S) + H if the sample is the whole data. The bound of the sample alone would favour fewer components.

    Parameters
    ----------
    features : (n, F)
    points : (n, D) for k-means++
    weights : (n,) float64
    share : fraction of all rows that the sample holds
    """

    model: Model
    features: Features
    points: Rows
    weights: np.ndarray
    share: float = 1.0

    @classmethod
    def of(cls, model: Model, rows: Rows, weights: np.ndarray, share: float = 1.0) -> SampledRows:
        """From prepared rows."""
        return cls(model, model.family.features(rows), model.family.points(rows), weights, share)

    @property
    def rows(self) -> float:
        """Number of rows that the sample represents."""
        return float(self.weights.sum()) / self.share

    @cached_property
    def total(self) -> np.ndarray:
        """Statistics (F,) of the whole sample as one component."""
        return self.sums(self.weights)

    @property
    def undivided(self) -> float:
        """The bound if one component holds all rows."""
        stats = self.total[None]
        return float(self._evidence(stats, self.broader(stats), np.ones(1, dtype=np.intp))[0])

    # BLAS is faster with the many rows as the right operand of a product with few components.

    def sums(self, resp: np.ndarray) -> np.ndarray:
        """Statistics (C, F) of components with weighted responsibilities `resp` (n, C)."""
        return np.asarray(resp.T @ self.features)

    def logits(self, gradients: np.ndarray) -> np.ndarray:
        """Logits (n, C) of the rows: products with the components' `gradients` (C, F)."""
        return np.ascontiguousarray((gradients @ self.features.T).T)

    @cached_property
    def _blocks(self) -> list[tuple[slice, Features]]:
        """Blocks of rows with their features; sparse rows are one block, because a slice would copy them."""
        rows, columns = self.features.shape
        if is_sparse(self.features):
            return [(slice(rows), self.features)]
        step = max(FEWEST_ROWS, BLOCK_NUMBERS // columns)
        parts = [slice(start, start + step) for start in range(0, rows, step)]
        return [(part, self.features[part]) for part in parts]

    def owned(self, owners: np.ndarray, members: int) -> np.ndarray:
        """Statistics (M, F) of `members` components; row i belongs wholly to component `owners[i]`."""
        return self.sums((owners[:, None] == np.arange(members)) * self.weights[:, None])

    def stepped(self, candidates: Sequence[np.ndarray]) -> list[Arrangement]:
        """Each candidate, statistics (M, F), after one step of variational inference; all share matrix products."""
        ends = np.cumsum([len(stats) for stats in candidates])
        gradients = self.model.gradients(np.concatenate(candidates), ends)
        stats, bounds = np.zeros(gradients.shape), np.zeros(len(ends))
        resp = np.empty((len(self.weights), len(gradients)))
        for part, features in self._blocks:  # features stay in the cache between both products
            own = resp[part]
            own[...] = (gradients @ features.T).T
            if not share_arrangements(own, self.weights[part], ends, bounds):
                raise PrecisionError(NOT_FINITE)
            stats += own.T @ features
        # H is the sum over rows of log Z minus the expected logit, which is linear in the statistics.
        entropies = bounds - _sums((stats * gradients).sum(axis=1), ends)
        broader = self.broader(stats)
        elbos = (self._evidence(stats, broader, ends) + entropies / self.share).tolist()
        parts = [slice(*each) for each in pairwise([0, *ends.tolist()])]
        return [Arrangement(stats[k], elbo, resp[:, k], broader[k]) for k, elbo in zip(parts, elbos, strict=True)]

    def broader(self, stats: np.ndarray) -> np.ndarray:
        """(C,) <grad A(S) - grad A(T), T>, zero or less: the cost of q being estimated from the sample only."""
        if self.share == 1.0:
            return np.zeros(len(stats))
        family, every = self.model.family, stats / self.share
        return np.asarray(((family.coefficients(stats) - family.coefficients(every)).T * every).sum(axis=1))

    def settled(self, stats: np.ndarray) -> Arrangement:
        """Components with statistics (M, F), refined by steps until the bound hardly rises."""
        (now,) = self.stepped([stats])
        for _ in range(MOST_STEPS):
            (after,) = self.stepped([now.stats])
            if after.elbo - now.elbo < STEP_GAIN * self.rows:
                return after
            now = after
        return now

    def credible(self, now: Arrangement) -> np.ndarray:
        """Statistics (M, F) of the components that do not merely fit their own sampled rows.

        If few rows determine a component, its good fit to them says nothing about unseen rows. Such a component must
        still attract its rows when each is left out of it; otherwise it would not attract unseen ones.
        """
        stats = now.stats
        few = -now.broader * self.share > TRUSTED * stats[:, -1]
        if len(stats) == 1 or not few.any():
            return stats
        kept = [not few[k] or self._takes_rows_left_out(now, k) for k in range(len(stats))]
        return stats[kept] if any(kept) else stats

    def _takes_rows_left_out(self, now: Arrangement, k: int) -> bool:
        """Whether most of what the component holds has its highest predictive density there, with each row left out.

        A row of weight w counts as w equal rows, of which one is left out.
        """
        family, stats = self.model.family, now.stats
        own = np.flatnonzero(now.resp[:, k] > self.weights / 2)
        held = np.cumsum(now.resp[own, k])
        if not len(own) or held[-1] <= stats[k, -1] / 2:
            return False
        evenly = (np.arange(LEFT_OUT) + 0.5) / LEFT_OUT * held[-1]
        asked, times = np.unique(own[np.searchsorted(held, evenly)], return_counts=True)
        features, share = dense_rows(self.features[asked]), now.resp[asked, k] / np.maximum(self.weights[asked], 1.0)
        alone = left_out(family, features, stats[k], family.log_evidence(stats[[k]]), share)
        takes = alone > drawn_to(family, features, np.delete(stats, k, axis=0)).max(axis=1)
        return bool(held[-1] * times[takes].sum() > LEFT_OUT * stats[k, -1] / 2)

    def _evidence(self, stats: np.ndarray, broader: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """(J,) the estimated bound without the entropies, for arrangements with `stats` (C, F)."""
        allocation, every = self.model.allocation, stats / self.share
        counts = allocation.in_order(side_by_side(every[:, -1], ends)[0])
        found = _sums(self.model.family.log_evidence(every) + broader, ends)
        found += allocation.log_evidence(counts)
        if self.share != 1.0:
            gap = allocation.log_weights(counts * self.share) - allocation.log_weights(counts)
            found += (gap * counts).sum(axis=1)
        return found


def _sums(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(J,) sums of the `values` (C,) of each arrangement; `ends` (J,) are the end indices of arrangements."""
    return np.add.reduceat(values, np.append(0, ends[:-1]))


def drawn_to(family: Family, features: Features, stats: np.ndarray) -> np.ndarray:
    """(n, K) log predictive densities of rows in each component, plus the log of its count."""
    return np.asarray(family.log_predictive(features, stats) + np.log(np.maximum(stats[:, -1], EMPTY)))


def left_out(
    family: Family, features: np.ndarray, held: np.ndarray, evidence: np.ndarray, share: np.ndarray
) -> np.ndarray:
    """(n,) :func:`drawn_to` of each row in its own component, with a `share` of the row left out of it; `held` and
    `evidence` are statistics and log evidence of the component that holds each row, or of one that holds all."""
    without = held - share[:, None] * features
    alone = (evidence - family.log_evidence(without)) / share
    return np.asarray(alone + np.log(np.maximum(without[:, -1], EMPTY)))
