"""Wishart algebra shared by the Gaussian families with a full precision matrix.

The precision follows W(nu, B^-1), so E[precision] = nu B^-1 and E[covariance] = B / (nu - D - 1).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.linalg.lapack import dpotri
from scipy.special import gammaln, psi

from dpdist.core.checks import numbers, shown
from dpdist.core.errors import InputError, PrecisionError
from dpdist.kernels import wishart as compiled
from dpdist.kernels.jit import contiguous
from dpdist.kernels.packed import fill_scatter, pack_gradient, packed_products, packed_width
from dpdist.models.families.base import Family
from dpdist.models.hyperparameters import Hyperparameter, LoneCount, filled

#: Sums of squares are inaccurate if rounding of the raw second moments may exceed this share of what is left of them.
LOST = 1e-3
#: What second moments are multiplied by in that comparison.
ROUNDED = 8 * float(np.finfo(np.float64).eps) / LOST
#: Bytes of (K, D, D) matrices that are computed at a time: for many components at once they would take several times
#: the memory of the packed statistics.
BLOCK_BYTES = 2**23
#: Up to this number of columns, evidences and coefficients are computed by compiled loops instead of LAPACK. With few
#: components of few columns these take a thirtieth of the time; with 64 columns both take about as long.
FEW_COLUMNS = 64


class Scale(Hyperparameter[npt.ArrayLike, np.ndarray]):
    """A number, one per column, or a matrix; filled, (D, D) positive definite."""

    wanted = numbers(dimensions=2).or_none("a value derived from the data")

    def complete(self, value: object, dimension: int) -> np.ndarray:
        array = np.asarray(value, dtype=np.float64)
        if array.ndim == 0 or array.shape == (dimension,):
            array = np.diag(np.broadcast_to(array, (dimension,)))
        if array.shape != (dimension, dimension) or not _symmetric(array):
            raise InputError(
                f"scale should be a number, {dimension} numbers or a symmetric {dimension}x{dimension} matrix; "
                f"got {shown(value)}."
            )
        least = np.linalg.eigvalsh(array)[0]
        if not least > 0:
            raise InputError(f"scale should be positive definite; got {shown(value)}, with an eigenvalue of {least:g}.")
        return np.asarray(array / 2 + array.T / 2)


def _symmetric(array: np.ndarray) -> bool:
    """Whether a square matrix is symmetric but for rounding, in any units of its columns."""
    spread = np.sqrt(np.abs(np.diagonal(array)))
    return bool((np.abs(array - array.T) <= 1e-8 * np.outer(spread, spread)).all())


def turned(scale: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """A scale (D, D) for rows multiplied by orthonormal `axes` (D, D); symmetric to the bit."""
    found = axes.T @ scale @ axes
    return np.asarray((found + found.T) / 2)


Posterior = TypeVar("Posterior")


class WishartFamily(Family, Generic[Posterior]):
    """A family with a Wishart prior on the precision matrix.

    Posteriors of many columns are computed for blocks of components.
    """

    degrees_of_freedom: LoneCount
    scale: Scale

    spreads = True
    turns = True

    @abstractmethod
    def posterior(self, stats: np.ndarray, first: int = 0) -> Posterior:
        """Posterior of components with statistics (K, F); error messages number the components from `first` on."""

    @abstractmethod
    def log_normaliser(self, post: Posterior) -> np.ndarray:
        """Log normaliser of the posterior densities, (K,), without constants common to all."""

    @abstractmethod
    def gradients(self, post: Posterior) -> np.ndarray:
        """Like :meth:`coefficients`, by component, (K, F)."""

    @property
    @abstractmethod
    def compiled_prior(self) -> compiled.Prior:
        """The prior as compiled code takes it."""

    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        constant = 0.5 * self.dimension * np.log(np.pi)
        return np.asarray(self._levels(stats) - self._prior_level - constant * stats[:, -1])

    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        found = np.empty(stats.shape)
        if self.dimension <= FEW_COLUMNS:
            self._fill(compiled.gradients, stats, found)
        else:
            for some, post in self.posteriors(stats):
                found[some] = self.gradients(post)
        return found.T

    def _levels(self, stats: np.ndarray) -> np.ndarray:
        """Log normalisers of the posteriors, (K,), without constants common to all."""
        if self.dimension > FEW_COLUMNS:
            return np.concatenate([self.log_normaliser(post) for _, post in self.posteriors(stats)])
        found = np.empty(len(stats))
        self._fill(compiled.levels, stats, found)
        return found

    def _fill(
        self, fill: Callable[[compiled.Prior, np.ndarray, np.ndarray], int], stats: np.ndarray, found: np.ndarray
    ) -> None:
        """Let compiled code fill `found` with what it computes of the posteriors."""
        lost = fill(self.compiled_prior, contiguous(stats), found)
        if lost >= 0:
            raise PrecisionError(_lost_sentence(lost, stats[:, -1], 0))

    def posteriors(self, stats: np.ndarray) -> Iterator[tuple[slice, Posterior]]:
        """Blocks of components and their posteriors; one empty block if there are no components."""
        step = max(1, BLOCK_BYTES // (8 * self.dimension**2))
        for start in range(0, max(1, len(stats)), step):
            yield slice(start, start + step), self.posterior(stats[start : start + step], start)

    @property
    def dimension(self) -> int:
        """D."""
        return int(self.scale.shape[0])

    @cached_property
    def _prior_level(self) -> float:
        return float(self._levels(0.0 * self.features(np.zeros((1, self.dimension))))[0])


Kind = TypeVar("Kind", bound=WishartFamily[Any])


def with_scale(family: Kind, variance: np.ndarray) -> Kind:
    """The family with degrees of freedom filled, and a scale for which variances are expected to be `variance` (D,).

    Raises
    ------
    InputError
        If the Wishart prior is not proper.
    """
    dimension = len(variance)
    known = filled(family, dimension, degrees_of_freedom=dimension + 2.0)
    degrees = known.degrees_of_freedom
    if not dimension - 1 < degrees < np.inf:
        raise InputError(
            f"degrees_of_freedom should be finite and exceed {dimension - 1} for {dimension} columns; got {degrees:g}."
        )
    return filled(known, dimension, scale=variance * max(degrees - dimension - 1, 1.0))


def rows_of(components: np.ndarray, some: slice) -> Iterator[tuple[np.ndarray, int]]:
    """For each component of a block: where it occurs in `components` (n,), and its index in the block."""
    for place, component in enumerate(range(some.start, min(some.stop, components.max(initial=-1) + 1))):
        rows = np.flatnonzero(components == component)
        if len(rows):
            yield rows, place


def posterior_scatter(
    scale: np.ndarray,
    stats: np.ndarray,
    total: np.ndarray,
    counts: np.ndarray,
    mean: np.ndarray,
    precision: np.ndarray,
) -> np.ndarray:
    """Posterior scatter matrices (K, D, D), lower triangles only; arguments as in ``fill_scatter``."""
    scatter = np.zeros((len(stats), *scale.shape))
    sums = [np.ascontiguousarray(each) for each in (stats, total, counts)]
    fill_scatter(np.ascontiguousarray(scale), sums[0], sums[1], sums[2], mean, precision, scatter)
    return np.swapaxes(scatter, 1, 2)


def cholesky(scatter: np.ndarray, raw_diagonal: np.ndarray, counts: np.ndarray, first: int = 0) -> np.ndarray:
    """Cholesky factors (K, D, D) of posterior scatter matrices; refuses matrices lost to rounding.

    Parameters
    ----------
    scatter : (K, D, D), of which the lower triangles are read
    raw_diagonal : (K, D), the uncentred second moments from which they were computed, of rows and of the prior mean
    counts : (K,), for the message
    first : number of the first of these components in the message

    Raises
    ------
    PrecisionError
        If a matrix is not positive definite, or rounding of its second moments may exceed ``LOST`` of its diagonal or
        of its pivots.
    """
    diagonal = np.diagonal(scatter, axis1=1, axis2=2)
    raw = np.maximum(np.abs(raw_diagonal), diagonal)
    _require_precise(diagonal, raw, counts, first)
    try:
        factor = np.linalg.cholesky(scatter)
    except np.linalg.LinAlgError:
        least = np.linalg.eigvalsh(scatter)[:, 0]
        raise PrecisionError(_lost_sentence(int(least.argmin()), counts, first)) from None
    # A pivot is what is left of a column given those before it, which of columns nearly collinear may be rounding only.
    _require_precise(np.diagonal(factor, axis1=1, axis2=2) ** 2, raw, counts, first)
    return factor


def _require_precise(left: np.ndarray, raw: np.ndarray, counts: np.ndarray, first: int) -> None:
    """Raise :class:`PrecisionError` if what is `left` of `raw` second moments, both (K, D), is not :func:`precise`."""
    sound = precise(left, raw).all(axis=1)
    if not sound.all():
        raise PrecisionError(_lost_sentence(int(sound.argmin()), counts, first))


def precise(left: np.ndarray, raw: np.ndarray) -> np.ndarray:
    """Where rounding of `raw` second moments cannot exceed ``LOST`` of what is `left` of them after sums cancel."""
    return np.asarray(ROUNDED * raw <= left)


def within(scale: np.ndarray, degrees: float, factor: np.ndarray, count: float) -> np.ndarray:
    """Covariance (D, D) within components; the prior's expected covariance counts as D rows.

    Parameters
    ----------
    scale, degrees : of the prior
    factor : (K, D, D) Cholesky factors of posterior scatters
    count : number of rows, minus those used to estimate means
    """
    dimension = len(scale)
    scatter = np.einsum("kij,klj->il", factor, factor) - len(factor) * scale
    covariance: np.ndarray = scatter + dimension * scale / max(degrees - dimension - 1, 1.0)
    return covariance / (max(count, 0.0) + dimension)


def _lost_sentence(component: int, counts: np.ndarray, first: int) -> str:
    return (
        f"the scatter matrix of component {first + component} ({counts[component]:.6g} rows) lost its precision: its "
        "rows vary far less than their distance from the origin or the prior mean, or far less than other rows, or "
        "columns are nearly collinear. Standardise the columns (row_transform=TransformPlan(scale=True)), reduce them "
        "(row_transform=TransformPlan(pca=50)), give the family a mean near the rows or a larger scale, or give rows "
        "smaller weights."
    )


def log_determinant(factor: np.ndarray) -> np.ndarray:
    """log |B| (K,) from Cholesky factors (K, D, D)."""
    return np.asarray(2.0 * np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1))


def packed_inverse(factor: np.ndarray) -> np.ndarray:
    """B^-1 from Cholesky factors (K, D, D), packed as by :func:`dpdist.kernels.packed.pack_gradient`."""
    inverse = np.empty(factor.shape)
    for lower, target in zip(factor, inverse, strict=True):
        target[...] = dpotri(lower, lower=1)[0].T
    packed = np.empty((len(factor), packed_width(factor.shape[1])))
    pack_gradient(inverse, packed)
    return packed


def times(packed: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """W_k v_k (K, D) for matrices packed as by :func:`packed_inverse` and vectors (K, D)."""
    products = np.empty(vectors.shape)
    packed_products(packed, np.ascontiguousarray(vectors), products)
    return products


def log_gamma(half_degrees: np.ndarray, dimension: int) -> np.ndarray:
    """Multivariate log gamma without its power of pi: sum_d logGamma(nu/2 - d/2), d = 0..D-1."""
    terms = gammaln(np.asarray(half_degrees)[..., None] - np.arange(dimension) / 2)
    return np.asarray(terms.sum(axis=-1))


def expected_log_determinant(degrees: np.ndarray, log_scale: np.ndarray, dimension: int) -> np.ndarray:
    """E log |precision| (K,) under W(nu, B^-1)."""
    digammas = psi((degrees[:, None] - np.arange(dimension)) / 2).sum(axis=1)
    return np.asarray(digammas + dimension * np.log(2.0) - log_scale)
