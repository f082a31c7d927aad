"""Conjugate families in the form that passes use, and their passes, compiled or in Python.

Tables are sufficient statistics, and scores are differences of the log evidence:

    h_i(k) = A(S_k + t(x_i)) - A(S_k),     rho_i(k) ~ w_k exp h_i(k),     w_new = alpha,     S_k += rho_i(k) t(x_i)

The table holds data only; the prior enters through A (Lin 2013, eq. 16; algorithm 1 as printed omits it).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpdist.core.errors import PrecisionError
from dpdist.inference.sva.base import FAR_OUT, Learner, OpeningRule, Pass
from dpdist.kernels.sequential import Components, LevelledArrays, advance, set_levels, take_rows
from dpdist.kernels.sequential_counts import BernoulliPosteriors, MultinomialPosteriors, PoissonPosteriors, Sparse
from dpdist.kernels.sequential_diagonal import DiagonalPosteriors
from dpdist.kernels.sequential_gaussian import GaussianPosteriors
from dpdist.kernels.sequential_isotropic import Sphere, advance_isotropic
from dpdist.models.families.base import Family, Moments, Rows, dense_rows
from dpdist.models.families.bernoulli import Bernoulli
from dpdist.models.families.diagonal_gaussian import DiagonalGaussian
from dpdist.models.families.gaussian import Gaussian
from dpdist.models.families.isotropic_gaussian import IsotropicGaussian
from dpdist.models.families.multinomial import Multinomial, entries_of
from dpdist.models.families.poisson import Poisson
from dpdist.models.families.zero_mean_gaussian import ZeroMeanGaussian

#: Rows that the isotropic pass processes at once; results do not depend on it beyond rounding.
BLOCK = 32


class ConjugatePass(Pass):
    """A pass over arrays with room for more components.

    Parameters
    ----------
    family, table, rule, dtype, overlap : as in :meth:`Learner.begin`
    """

    #: Largest number of components opened between two checks of the room left.
    margin = 1

    def __init__(
        self, family: Any, table: np.ndarray, rule: OpeningRule, dtype: type, overlap: np.ndarray | None
    ) -> None:
        self.family, self.dtype = family, dtype
        self.count = len(table)
        self.law = rule.law
        self.stats = np.concatenate([table, np.zeros((1, table.shape[1]))])
        self.tracked = np.zeros((0, 0)) if overlap is None else np.pad(overlap, (0, 1))
        self.kept = self.cells(self.stats)
        self._reserve(2 * self.count + 4 * self.margin)

    @property
    def table(self) -> np.ndarray:
        return self.stats[: self.count].copy()

    @property
    def overlap(self) -> np.ndarray:
        return self.tracked[: self.count, : self.count].copy()

    def advance(self, rows: Rows, weights: np.ndarray) -> None:
        done = 0
        while done < rows.shape[0]:
            moved, self.count = self.run(rows[done:], weights[done:])
            if moved < 0:
                raise PrecisionError(_TOO_FAR if moved == -2 and self.dtype is np.float64 else _SENTENCES[moved])
            done += moved
            if done < rows.shape[0]:
                self._reserve(2 * len(self.stats) + self.margin)

    @abstractmethod
    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        """Arrays for components with these statistics, the last of which is the prior."""

    @abstractmethod
    def run(self, rows: Rows, weights: np.ndarray) -> tuple[int, int]:
        """Process rows while there is room; return the rows done, or a negative error code, and the components."""

    def log_weights(self, stats: np.ndarray) -> np.ndarray:
        """log w_k of components, log alpha for the last row."""
        return np.asarray(np.log(np.append(stats[:-1, -1], np.exp(self.law.log_concentration))))

    def _reserve(self, capacity: int) -> None:
        held = self.count + 1
        self.stats = _with_room(self.stats[:held], capacity)
        if len(self.tracked):
            self.tracked = _with_room(_with_room(self.tracked[:held, :held], capacity).T, capacity)
        self.kept = tuple(_with_room(array[:held], capacity) for array in self.kept)


#: Error message for float64, where no other type would help.
_TOO_FAR = (
    "a row lies too far from the data's mean for float64 to resolve distances of one standard deviation. Standardise "
    "the columns (row_transform=TransformPlan(scale=True)), or give the family a larger variance."
)
_SENTENCES = {
    -1: FAR_OUT,
    -2: "a row lies too far from the data's mean for float32 to resolve distances of one standard deviation. Use "
    "compute_dtype='float64', or standardise the columns (row_transform=TransformPlan(scale=True)).",
}


def _with_room(array: np.ndarray, capacity: int) -> np.ndarray:
    room = np.zeros((capacity, *array.shape[1:]), array.dtype)
    room[: len(array)] = array
    return room


class PlainPass(ConjugatePass):
    """The pass of any family, in Python, with :meth:`Family.log_predictive` for each row; products are float64."""

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        return ()

    def run(self, rows: Rows, weights: np.ndarray) -> tuple[int, int]:
        components = _Predicted(self.family, self.stats, self.law.log_concentration)
        features = self.family.features(rows)
        return take_rows(features, weights, self.count, self.law, components, self.stats, self.tracked)


class _Predicted(Components[Rows, np.ndarray]):
    """Components stored as statistics only; scores are differences of their log evidence.

    Parameters
    ----------
    stats : (C, F), to which the pass adds
    """

    def __init__(self, family: Family, stats: np.ndarray, log_concentration: float) -> None:
        self.family, self.stats, self.concentration = family, stats, np.exp(log_concentration)
        self.scores = np.empty(len(stats))

    @property
    def level(self) -> np.ndarray:
        """The scores, as the pass requires."""
        return self.scores

    def row(self, rows: Rows, n: int, count: int) -> np.ndarray:
        """Features (1, F); computes all scores."""
        dense = dense_rows(rows[n : n + 1])
        log_weights = np.log(np.append(self.stats[:count, -1], self.concentration))
        self.scores[: count + 1] = log_weights + self.family.log_predictive(dense, self.stats[: count + 1])[0]
        return dense

    def compare(self, row: np.ndarray, offered: int, likely: int, log_floor: float, scores: np.ndarray) -> None:
        scores[:offered] = self.scores[:offered]

    def open(self, count: int) -> None:
        """The next row is zero already, like the prior's statistics."""

    def absorb(self, k: int, row: np.ndarray, gained: float, stats: np.ndarray) -> None:
        stats += gained * row[0]


class CompiledPass(ConjugatePass):
    """A compiled pass, one row after the other, over a NamedTuple of arrays."""

    #: Class of the NamedTuple.
    kind: ClassVar[Callable[..., Components[Any, Any]]]

    def run(self, rows: Rows, weights: np.ndarray) -> tuple[int, int]:
        components = self.kind(*self.kept)
        return advance(self.observed(rows), weights, self.count, self.law, components, self.stats, self.tracked)

    def observed(self, rows: Rows) -> np.ndarray | Sparse:
        """Rows in the form that the kernel takes."""
        return rows

    def levelled(self, stats: np.ndarray, components: LevelledArrays) -> tuple[np.ndarray, ...]:
        """The arrays of components, with levels computed."""
        set_levels(components, self.log_weights(stats))
        return tuple(components)


class GaussianPass(CompiledPass):
    """Full covariance, mean unknown."""

    family: Gaussian
    kind = GaussianPosteriors

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        post = self.family.posterior(stats)
        return self.ellipsoids(stats, post.mean, post.precision, post.degrees, post.factor)

    def ellipsoids(
        self, stats: np.ndarray, mean: np.ndarray, precision: np.ndarray, degrees: np.ndarray, factor: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """The arrays of :class:`GaussianPosteriors`."""
        upper = np.ascontiguousarray(np.swapaxes(factor, 1, 2))
        cells = GaussianPosteriors(mean.copy(), precision.copy(), degrees.copy(), upper, np.empty(len(stats)))
        return self.levelled(stats, cells)


class ZeroMeanGaussianPass(GaussianPass):
    """Full covariance, mean zero."""

    family: ZeroMeanGaussian  # type: ignore[assignment]

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        degrees, factor = self.family.posterior(stats)
        return self.ellipsoids(stats, np.zeros(factor.shape[:2]), np.full(len(stats), np.inf), degrees, factor)


class DiagonalGaussianPass(CompiledPass):
    """One variance per column."""

    family: DiagonalGaussian
    kind = DiagonalPosteriors

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        post = self.family.posterior(stats)
        columns = post.mean.copy(), post.rate.copy(), np.empty(post.rate.shape)
        cells = DiagonalPosteriors(
            *columns, post.precision.ravel().copy(), post.shape.ravel().copy(), np.empty(len(stats))
        )
        return self.levelled(stats, cells)


class CountsPass(CompiledPass):
    """Counts or binary columns; only nonzero entries are visited."""

    def observed(self, rows: Rows) -> Sparse:
        return entries_of(rows)


class MultinomialPass(CountsPass):
    """Counts over a vocabulary."""

    family: Multinomial
    kind = MultinomialPosteriors

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        parameter = self.family.pseudocount + stats[:, :-1]
        return parameter, parameter.sum(axis=1), self.log_weights(stats)


class PoissonPass(CountsPass):
    """Independent counts."""

    family: Poisson
    kind = PoissonPosteriors

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        shape, rate = (np.array(values) for values in self.family.posterior(stats))
        return self.levelled(stats, PoissonPosteriors(shape, rate, np.empty(shape.shape), np.empty(len(stats))))


class BernoulliPass(CountsPass):
    """Binary columns."""

    family: Bernoulli
    kind = BernoulliPosteriors

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        ones, zeros = (np.array(values) for values in self.family.posterior(stats))
        return self.levelled(stats, BernoulliPosteriors(ones, zeros, np.empty(ones.shape), np.empty(len(stats))))


class IsotropicGaussianPass(ConjugatePass):
    """One known variance; rows are processed in blocks, by matrix products."""

    family: IsotropicGaussian
    margin = BLOCK + 1
    #: Rows processed at once.
    block = BLOCK

    def cells(self, stats: np.ndarray) -> tuple[np.ndarray, ...]:
        return ()

    def run(self, rows: Rows, weights: np.ndarray) -> tuple[int, int]:
        sphere = Sphere(float(self.family.variance), 1 / float(self.family.mean_variance), self.family.mean)
        means: np.ndarray = np.empty((len(self.stats), rows.shape[1]), self.dtype)
        return advance_isotropic(
            rows, weights, self.count, self.law, sphere, self.stats, means, self.tracked, self.block
        )


#: The compiled pass of each family that has one; other families use :class:`PlainPass`.
PASSES: dict[type[Family], type[ConjugatePass]] = {
    Gaussian: GaussianPass,
    ZeroMeanGaussian: ZeroMeanGaussianPass,
    DiagonalGaussian: DiagonalGaussianPass,
    IsotropicGaussian: IsotropicGaussianPass,
    Multinomial: MultinomialPass,
    Poisson: PoissonPass,
    Bernoulli: BernoulliPass,
}


@dataclass(frozen=True, eq=False)
class Conjugate(Learner):
    """A conjugate family in the form that a pass uses.

    Parameters
    ----------
    family : with all hyperparameters filled
    columns : D, number of columns of prepared rows
    """

    family: Family
    columns: int

    additive = True

    @property
    def accepts_sparse(self) -> bool:  # type: ignore[override]
        """Whether the family does."""
        return self.family.accepts_sparse

    def check_moments(self, moments: Moments) -> None:
        self.family.check_moments(moments)

    @property
    def width(self) -> int:
        return int(self.family.features(np.zeros((1, self.columns))).shape[1])

    def check(self, table: np.ndarray) -> None:
        self.family.log_evidence(table)

    def begin(self, table: np.ndarray, rule: OpeningRule, dtype: type, overlap: np.ndarray | None, seen: float) -> Pass:
        return PASSES.get(type(self.family), PlainPass)(self.family, table, rule, dtype, overlap)

    def log_predictive(self, rows: Rows, table: np.ndarray) -> np.ndarray:
        stats = np.concatenate([table, np.zeros((1, table.shape[1]))])
        predictive = self.family.log_predictive(self.family.features(rows), stats)
        return np.asarray(predictive + self.family.log_base_measure(rows)[:, None])

    def join(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return np.asarray(left + right)

    def gains(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        evidence = self.family.log_evidence
        return np.asarray(evidence(left + right) - evidence(left) - evidence(right))

    def affinity(self, table: np.ndarray) -> np.ndarray:
        """Expected log likelihood per row of b's rows under a, without the base measure."""
        return np.asarray((table @ self.family.coefficients(table)) / table[:, -1:])

    def describe(self, table: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        return self.family.describe(table)

    def sample(self, table: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self.family.sample(table, components, rng)
