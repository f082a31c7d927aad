"""Sampled rows of a few components: arrangements of these, and what the bound on all rows would be under them."""

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

#: Nats a row by which an arrangement must gain in a step to go on being refined; steps that it may take to settle.
STEP_GAIN, MOST_STEPS = 1e-4, 30
#: Nats a row by which q of the sample's statistics may be broader than q of all rows' for this to say by how much the
#: fit is too good; rows at most that are left out of a component that is broader.
TRUSTED, LEFT_OUT = 2.0, 64
#: Numbers of a block of dense features, and rows of it at least.
BLOCK_NUMBERS, FEWEST_ROWS = 2**17, 64


class Arrangement(NamedTuple):
    """Components of a sample.

    Parameters
    ----------
    stats : (M, F) of the responsibilities
    elbo : under them of the rows that the sample stands for, base measure apart
    resp : (n, M), those responsibilities, times the rows' weights
    broader : (M,) what it costs that q is of the sample's statistics, as of :meth:`SampledRows.broader`
    """

    stats: np.ndarray
    elbo: float
    resp: np.ndarray
    broader: np.ndarray

    @property
    def occupied(self) -> Arrangement:
        """Without components that hold no row, which matter nothing to the bound."""
        held = self.stats[:, -1] >= EMPTY
        return self._replace(stats=self.stats[held], resp=self.resp[:, held], broader=self.broader[held])


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Rows drawn from the whole data, with what inference needs of them.

    Components are fitted to the sample and judged by what the bound would be on all the rows that it stands for. With
    q of statistics S of the sample, ``<grad A(S), S> + H`` is what its rows expect of themselves, and as the fit is as
    much too good for the rows seen as q is too broad, ``1 / share`` times as much is expected of all. From that goes
    the divergence of q from the prior as it would be after all rows, of statistics T = S / share:

        H / share + <grad A(S), T> - [<grad A(T), T> - A(T)],

    which is A(S) + H where the sample is all there is. The bound of a sample alone would have fewer components.

    Parameters
    ----------
    features : (n, F)
    points : (n, D) for k-means++
    weights : (n,) float64
    share : of the rows for which the sample stands
    """

    model: Model
    features: Features
    points: Rows
    weights: np.ndarray
    share: float = 1.0

    @classmethod
    def of(cls, model: Model, rows: Rows, weights: np.ndarray, share: float = 1.0) -> SampledRows:
        """Of prepared rows."""
        return cls(model, model.family.features(rows), model.family.points(rows), weights, share)

    @property
    def rows(self) -> float:
        """How many rows the sample stands for."""
        return float(self.weights.sum()) / self.share

    @cached_property
    def total(self) -> np.ndarray:
        """Statistics (F,) of all rows, as one component has them."""
        return self.sums(self.weights)

    @property
    def undivided(self) -> float:
        """The bound where one component holds all rows."""
        stats = self.total[None]
        return float(self._evidence(stats, self.broader(stats), np.ones(1, dtype=np.intp))[0])

    # BLAS reads many rows faster from the right of a product with few components than from its left.

    def sums(self, resp: np.ndarray) -> np.ndarray:
        """Statistics (C, F) of components that have `resp` (n, C) of the rows."""
        return np.asarray(resp.T @ self.features)

    def logits(self, gradients: np.ndarray) -> np.ndarray:
        """Products (n, C) of the rows with the `gradients` (C, F) of components."""
        return np.ascontiguousarray((gradients @ self.features.T).T)

    def _blocks(self) -> list[slice]:
        rows, columns = self.features.shape
        step = rows if is_sparse(self.features) else max(FEWEST_ROWS, BLOCK_NUMBERS // columns)
        return [slice(start, start + step) for start in range(0, rows, step)]

    def owned(self, owners: np.ndarray, members: int) -> np.ndarray:
        """Statistics (M, F) of so many components that own their rows whole, `owners` being (n,)."""
        return self.sums((owners[:, None] == np.arange(members)) * self.weights[:, None])

    def stepped(self, candidates: Sequence[np.ndarray]) -> list[Arrangement]:
        """Each candidate, statistics (M, F), after a step of variational inference; they share their products."""
        ends = np.cumsum([len(stats) for stats in candidates])
        gradients = self.model.gradients(np.concatenate(candidates), ends)
        stats, bounds = np.zeros(gradients.shape), np.zeros(len(ends))
        resp = np.empty((len(self.weights), len(gradients)))
        for part in self._blocks():  # whose features stay in the cache from one product to the other
            features, own = self.features[part], resp[part]
            own[...] = (gradients @ features.T).T
            if not share_arrangements(own, self.weights[part], ends, bounds):
                raise PrecisionError(NOT_FINITE)
            stats += own.T @ features
        # H is the sum over rows of log Z less the expected logit, which is linear in the statistics.
        entropies = bounds - _sums((stats * gradients).sum(axis=1), ends)
        broader = self.broader(stats)
        elbos = (self._evidence(stats, broader, ends) + entropies / self.share).tolist()
        parts = [slice(*each) for each in pairwise([0, *ends.tolist()])]
        return [Arrangement(stats[k], elbo, resp[:, k], broader[k]) for k, elbo in zip(parts, elbos, strict=True)]

    def broader(self, stats: np.ndarray) -> np.ndarray:
        """(C,) <grad A(S) - grad A(T), T>, what it costs that q is of the sample's statistics: zero or less."""
        if self.share == 1.0:
            return np.zeros(len(stats))
        family, every = self.model.family, stats / self.share
        return np.asarray(((family.coefficients(stats) - family.coefficients(every)).T * every).sum(axis=1))

    def settled(self, stats: np.ndarray) -> Arrangement:
        """Components with statistics (M, F) after as many steps as it takes until the bound hardly rises."""
        (now,) = self.stepped([stats])
        for _ in range(MOST_STEPS):
            (after,) = self.stepped([now.stats])
            if after.elbo - now.elbo < STEP_GAIN * self.rows:
                return after
            now = after
        return now

    def credible(self, now: Arrangement) -> np.ndarray:
        """Statistics (M, F) of the components that are more than the rows of the sample they hold.

        Where few rows determine a component, that it fits these says nothing of rows that were not seen. Such a one has
        to take its rows also where each is left out of it: it would not take unseen ones otherwise.
        """
        stats = now.stats
        few = -now.broader * self.share > TRUSTED * stats[:, -1]
        if len(stats) == 1 or not few.any():
            return stats
        kept = [not few[k] or self._takes_rows_left_out(now, k) for k in range(len(stats))]
        return stats[kept] if any(kept) else stats

    def _takes_rows_left_out(self, now: Arrangement, k: int) -> bool:
        """Whether a row left out of a component has its highest predictive density there: most of what it holds.

        A row of weight w is w such rows, of which one is left out.
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
        """(J,) what stands beside the entropies in the bound on all rows, for arrangements of `stats` (C, F)."""
        allocation, every = self.model.allocation, stats / self.share
        counts = allocation.in_order(side_by_side(every[:, -1], ends)[0])
        found = _sums(self.model.family.log_evidence(every) + broader, ends)
        found += allocation.log_evidence(counts)
        if self.share != 1.0:
            gap = allocation.log_weights(counts * self.share) - allocation.log_weights(counts)
            found += (gap * counts).sum(axis=1)
        return found


def _sums(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(J,) of what arrangements have of `values` (C,), one after the other, each up to one of `ends` (J,)."""
    return np.add.reduceat(values, np.append(0, ends[:-1]))


def drawn_to(family: Family, features: Features, stats: np.ndarray) -> np.ndarray:
    """(n, K) log predictive densities of rows in components, and the logarithms of what these hold."""
    return np.asarray(family.log_predictive(features, stats) + np.log(np.maximum(stats[:, -1], EMPTY)))


def left_out(
    family: Family, features: np.ndarray, held: np.ndarray, evidence: np.ndarray, share: np.ndarray
) -> np.ndarray:
    """(n,) as :func:`drawn_to`, of rows in their own components, each without a `share` of the row.

    Parameters
    ----------
    held, evidence : statistics and log evidence of the component that holds each row, or of one that holds all
    """
    without = held - share[:, None] * features
    alone = (evidence - family.log_evidence(without)) / share
    return np.asarray(alone + np.log(np.maximum(without[:, -1], EMPTY)))
