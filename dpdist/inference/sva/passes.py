"""Compiled passes of the conjugate families, each over the arrays that its kernel keeps."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from dpdist.core.errors import PrecisionError
from dpdist.inference.sva.base import FAR_OUT, OpeningRule, Pass
from dpdist.kernels.sequential_counts import (
    Coins,
    Rates,
    Urns,
    advance_bernoulli,
    advance_multinomial,
    advance_poisson,
    set_coin,
    set_rate,
)
from dpdist.kernels.sequential_diagonal import Boxes, advance_diagonal
from dpdist.kernels.sequential_diagonal import set_level as set_box_level
from dpdist.kernels.sequential_gaussian import Ellipsoids, advance_gaussian
from dpdist.kernels.sequential_gaussian import set_level as set_ellipsoid_level
from dpdist.kernels.sequential_isotropic import Sphere, advance_isotropic
from dpdist.models.families.base import Family, Rows
from dpdist.models.families.bernoulli import Bernoulli
from dpdist.models.families.diagonal_gaussian import DiagonalGaussian
from dpdist.models.families.gaussian import Gaussian
from dpdist.models.families.isotropic_gaussian import IsotropicGaussian
from dpdist.models.families.multinomial import Multinomial, entries_of
from dpdist.models.families.poisson import Poisson
from dpdist.models.families.zero_mean_gaussian import ZeroMeanGaussian

#: Rows that the isotropic pass takes at once; results do not depend on it beyond rounding.
BLOCK = 32


class ConjugatePass(Pass):
    """A pass by a compiled kernel over arrays with room for more components.

    Parameters
    ----------
    family, table, rule, dtype, overlap : as :meth:`Learner.begin` takes them
    """

    #: Components opened between two checks of the room left.
    margin = 1

    def __init__(
        self, family: Any, table: np.ndarray, rule: OpeningRule, dtype: type, overlap: np.ndarray | None = None
    ) -> None:
        self.family, self.dtype = family, dtype
        self.count = len(table)
        self.law = rule.law
        self.stats = np.concatenate([table, np.zeros((1, table.shape[1]))])
        tracked = np.zeros((0, 0)) if overlap is None else np.pad(overlap, (0, 1))
        self.arrays: tuple[np.ndarray, ...] = (*self.cells(self.stats), tracked)
        self._reserve(2 * self.count + 4 * self.margin)

    @property
    def table(self) -> np.ndarray:
        return self.stats[: self.count].copy()

    @property
    def overlap(self) -> np.ndarray:
        tracked = self.arrays[-1]
        return tracked[: self.count, : self.count].copy()

    def advance(self, rows: Rows, weights: np.ndarray) -> None:
        done = 0
        while done < rows.shape[0]:
            moved, self.count = self.run(rows[done:], weights[done:])
            if moved < 0:
                raise PrecisionError(_SENTENCES[moved])
            done += moved
            if done < rows.shape[0]:
                self._reserve(2 * len(self.stats) + self.margin)

    @abstractmethod
    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        """The arrays that the kernel keeps for components with these statistics, the last of them the prior."""

    @abstractmethod
    def run(self, rows: Rows, weights: np.ndarray) -> tuple[int, int]:
        """Call the kernel: rows done and components now."""

    def log_weights(self, stats: np.ndarray) -> np.ndarray:
        """log w_k of components, log alpha for the last row."""
        return np.log(np.append(stats[:-1, -1], np.exp(self.law.log_concentration)))

    def _reserve(self, capacity: int) -> None:
        held = self.count + 1
        self.stats = _with_room(self.stats[:held], capacity)
        tracked = self.arrays[-1]
        if len(tracked):
            tracked = _with_room(_with_room(tracked[:held, :held], capacity).T, capacity)
        self.arrays = (*(_with_room(array[:held], capacity) for array in self.arrays[:-1]), tracked)


_SENTENCES = {
    -1: FAR_OUT,
    -2: "a row lies too far from the data's mean for float32 to resolve distances of one standard deviation. Use "
    "compute_dtype='float64', or standardise the columns (row_transform=TransformPlan(scale=True)).",
}


def _with_room(array: np.ndarray, capacity: int) -> np.ndarray:
    room = np.zeros((capacity, *array.shape[1:]), array.dtype)
    room[: len(array)] = array
    return room


class GaussianPass(ConjugatePass):
    """Full covariance, mean unknown."""

    family: Gaussian

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        post = self.family.posterior(stats)
        return self.levelled(stats, post.mean, post.precision, post.degrees, post.factor)

    def levelled(
        self, stats: np.ndarray, mean: np.ndarray, precision: np.ndarray, degrees: np.ndarray, factor: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """The arrays of ``Ellipsoids``, levels computed."""
        upper = np.ascontiguousarray(np.swapaxes(factor, 1, 2))
        cells = Ellipsoids(mean.copy(), precision.copy(), degrees.copy(), upper, np.empty(len(stats)))
        for k, log_weight in enumerate(self.log_weights(stats)):
            set_ellipsoid_level(cells, k, log_weight)
        return tuple(cells)

    def run(self, rows: Rows, weights: np.ndarray) -> tuple[int, int]:
        *cells, overlap = self.arrays
        return advance_gaussian(rows, weights, self.count, self.law, Ellipsoids(*cells), self.stats, overlap)


class ZeroMeanGaussianPass(GaussianPass):
    """Full covariance, mean zero."""

    family: ZeroMeanGaussian  # type: ignore[assignment]

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        degrees, factor = self.family.posterior(stats)
        return self.levelled(stats, np.zeros(factor.shape[:2]), np.full(len(stats), np.inf), degrees, factor)


class DiagonalGaussianPass(ConjugatePass):
    """A variance a column."""

    family: DiagonalGaussian

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        post = self.family.posterior(stats)
        columns = post.mean.copy(), post.rate.copy(), np.empty(post.rate.shape)
        cells = Boxes(*columns, post.precision.ravel().copy(), post.shape.ravel().copy(), np.empty(len(stats)))
        for k, log_weight in enumerate(self.log_weights(stats)):
            set_box_level(cells, k, log_weight)
        return tuple(cells)

    def run(self, rows: Rows, weights: np.ndarray) -> tuple[int, int]:
        *cells, overlap = self.arrays
        return advance_diagonal(rows, weights, self.count, self.law, Boxes(*cells), self.stats, overlap)


class IsotropicGaussianPass(ConjugatePass):
    """One known variance; rows go through in blocks, by matrix products."""

    family: IsotropicGaussian
    margin = BLOCK + 1
    #: Rows taken at once.
    block = BLOCK

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        return ()

    def run(self, rows: Rows, weights: np.ndarray) -> tuple[int, int]:
        means = np.empty((len(self.stats), rows.shape[1]), self.dtype)
        return advance_isotropic(
            rows, weights, self.count, self.law, self._sphere, self.stats, means, self.arrays[-1], self.block
        )

    @property
    def _sphere(self) -> Sphere:
        return Sphere(float(self.family.variance), 1 / float(self.family.mean_variance), self.family.mean)


class MultinomialPass(ConjugatePass):
    """Counts over a vocabulary."""

    family: Multinomial

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        parameter = self.family.pseudocount + stats[:, :-1]
        return parameter, parameter.sum(axis=1), self.log_weights(stats)

    def run(self, rows: Rows, weights: np.ndarray) -> tuple[int, int]:
        *cells, overlap = self.arrays
        entries = entries_of(rows)
        return advance_multinomial(entries, weights, self.count, self.law, Urns(*cells), self.stats, overlap)


class PoissonPass(ConjugatePass):
    """Independent counts."""

    family: Poisson

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        shape, rate = (np.array(values) for values in self.family.posterior(stats))
        cells = Rates(shape, rate, np.empty(shape.shape), np.empty(len(stats)))
        for k, log_weight in enumerate(self.log_weights(stats)):
            set_rate(cells, k, log_weight)
        return tuple(cells)

    def run(self, rows: Rows, weights: np.ndarray) -> tuple[int, int]:
        *cells, overlap = self.arrays
        return advance_poisson(entries_of(rows), weights, self.count, self.law, Rates(*cells), self.stats, overlap)


class BernoulliPass(ConjugatePass):
    """Binary columns."""

    family: Bernoulli

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        ones, zeros = (np.array(values) for values in self.family.posterior(stats))
        cells = Coins(ones, zeros, np.empty(ones.shape), np.empty(len(stats)))
        for k, log_weight in enumerate(self.log_weights(stats)):
            set_coin(cells, k, log_weight)
        return tuple(cells)

    def run(self, rows: Rows, weights: np.ndarray) -> tuple[int, int]:
        *cells, overlap = self.arrays
        return advance_bernoulli(entries_of(rows), weights, self.count, self.law, Coins(*cells), self.stats, overlap)


#: The compiled pass of each family that has one; any other passes by :class:`dpdist.inference.sva.plain.PlainPass`.
PASSES: dict[type[Family], type[ConjugatePass]] = {
    Gaussian: GaussianPass,
    ZeroMeanGaussian: ZeroMeanGaussianPass,
    DiagonalGaussian: DiagonalGaussianPass,
    IsotropicGaussian: IsotropicGaussianPass,
    Multinomial: MultinomialPass,
    Poisson: PoissonPass,
    Bernoulli: BernoulliPass,
}
