"""The interface of a likelihood: a conjugate exponential family, defined by its log evidence.

With sufficient statistics t(x), whose last entry is 1, and their sum S over some rows,

    A(S) = log of the integral of exp(eta . S) under the prior of eta        (``log_evidence``; A(0) = 0)
    dA/dS = E_q[eta]                                                         (``coefficients``)
    log p(x | rows summarised by S) = A(S + t(x)) - A(S) + log h(x)          (``log_predictive``)

Everything else (local step, ELBO, moves, prediction) follows from these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias, TypeGuard, TypeVar

import numpy as np
from scipy import sparse

from dpdist.models.families.support import Support

#: Rows (n, D) or features (n, F): a NumPy array or a scipy.sparse.csr_array.
Rows: TypeAlias = np.ndarray | sparse.csr_array
Features: TypeAlias = np.ndarray | sparse.csr_array
FamilyType = TypeVar("FamilyType", bound="Family")


@dataclass(frozen=True, eq=False)
class Moments:
    """Column moments of a data set, from which default hyperparameters are derived.

    Parameters
    ----------
    count : float, sum of the row weights
    mean, variance, minimum, maximum : (D,) float64; the variance divides by the count
    integral : bool, whether every entry is a whole number
    """

    count: float
    mean: np.ndarray
    variance: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    integral: bool

    @property
    def dimension(self) -> int:
        """D, the number of columns."""
        return int(self.mean.shape[0])

    def spread(self) -> np.ndarray:
        """(D,) variances, with zeros replaced by the mean of the positive ones, or by 1 if there are none."""
        return fill_zeros(self.variance)


def fill_zeros(scale: np.ndarray) -> np.ndarray:
    """Replace zeros by the mean of the positive entries, or by 1 if there are none."""
    positive = scale > 0.0
    return np.where(positive, scale, scale[positive].mean() if positive.any() else 1.0)


class Family(ABC):
    """A likelihood with its conjugate prior; subclasses are frozen dataclasses of hyperparameters.

    A stored model contains the import path of its family and the fields, so a user-defined class should be in a module.

    Hyperparameters left at ``None`` are filled by :meth:`with_defaults`; the mathematical methods need them filled.
    """

    #: Short name, used in configurations and reports.
    name: str
    #: Whether rows may be shifted to another origin, together with the prior.
    has_location: bool = False
    #: Whether rows may be rotated, together with the prior.
    turns: bool = False
    #: Whether rows may be SciPy CSR.
    accepts_sparse: bool = False
    #: Whether a component learns its covariance, so that it may cover several clusters; then :meth:`empirical`
    #: estimates the width of one.
    spreads: bool = False
    #: Whether a component describes whole rows; if not, its density is that of a row given its total.
    whole_rows: bool = True
    #: Values that rows may hold; None for any.
    support: Support | None = None

    @abstractmethod
    def with_defaults(self: FamilyType, moments: Moments) -> FamilyType:
        """The same family with missing hyperparameters derived from the data's moments."""

    @abstractmethod
    def features(self, rows: Rows, dtype: type = np.float64) -> Features:
        """Sufficient statistics t(x), (n, F), of rows (n, D); the last column is 1."""

    @abstractmethod
    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        """A(S) for each row S of `stats` (K, F): (K,) float64, in nats, without the base measure."""

    @abstractmethod
    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        """Gradient of :meth:`log_evidence`, E_q[eta], as a new array (F, K) float64, which the caller may modify."""

    @abstractmethod
    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        """Posterior means for users: name -> (dimension names, array); the first dimension is ``component``.

        They are stored under these names beside a model; names that :mod:`dpdist.storage.descriptions` does not know
        are the family's own. Values called ``mean``, ``variance``, ``mean_variance`` or ``covariance`` are converted to
        raw columns if rows are transformed; others are unchanged.
        """

    @abstractmethod
    def sample(self, stats: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Posterior predictive draws (n, D), one for each of `components` (n,), which index `stats` (K, F)."""

    def about(self: FamilyType, origin: np.ndarray) -> FamilyType:
        """The same prior for rows from which `origin` (D,) was subtracted."""
        return self

    def turned(self: FamilyType, axes: np.ndarray) -> FamilyType:
        """The same prior for rows multiplied by orthonormal `axes` (D, D), if :attr:`turns` is true."""
        return self

    def empirical(self: FamilyType, stats: np.ndarray, free: Collection[str]) -> FamilyType:
        """The prior estimated from non-empty components with statistics `stats` (K, F).

        Parameters
        ----------
        free : names of the hyperparameters that may change
        """
        return self

    def log_base_measure(self, rows: Rows) -> np.ndarray:
        """log h(x), (n,): the part of the log likelihood that does not depend on the component."""
        return np.zeros(rows.shape[0])

    def log_predictive(self, features: Features, stats: np.ndarray) -> np.ndarray:
        """A(S_k + t(x_n)) - A(S_k), (n, K), for every row and component."""
        dense, before = dense_rows(features), self.log_evidence(stats)
        if len(dense) < len(stats):
            return np.asarray(np.stack([self.log_evidence(stats + row) for row in dense]) - before)
        return np.asarray(np.stack([self.log_evidence(row + dense) for row in stats], axis=1) - before)

    def check_moments(self, moments: Moments) -> None:
        """Raise :class:`InputError` if data with these moments cannot come from this family."""
        if self.support is not None:
            self.support.check_range(moments.minimum, moments.maximum, moments.integral, type(self).__name__)

    def check_rows(self, rows: Rows, places: Sequence[int] | np.ndarray) -> None:
        """The same check for rows (n, D); `places` (n,) are their positions in the data."""
        if self.support is not None:
            self.support.check_rows(rows, places, type(self).__name__)

    def points(self, rows: Rows) -> Rows:
        """Coordinates of rows in which squared distances are meaningful; used to seed clusters."""
        return rows

    def free_parameters(self, features: int) -> int:
        """Number of free parameters of a component with `features` statistics; by default all but the count."""
        return features - 1

    def hyperparameters(self) -> dict[str, object]:
        """Field name -> value."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}  # type: ignore[arg-type]


class LinearFamily(Family):
    """A likelihood whose statistics are the row itself and 1; rows may be dense or SciPy CSR."""

    accepts_sparse = True

    def features(self, rows: Rows, dtype: type = np.float64) -> Features:
        if is_sparse(rows):
            ones = sparse.csr_array(np.ones((rows.shape[0], 1), dtype))
            return sparse.csr_array(sparse.hstack([rows.astype(dtype), ones], format="csr"))
        features = np.empty((rows.shape[0], rows.shape[1] + 1), dtype)
        features[:, :-1] = rows
        features[:, -1] = 1
        return features


def is_sparse(rows: Rows) -> TypeGuard[sparse.csr_array]:
    """Whether rows are a SciPy sparse array."""
    return bool(sparse.issparse(rows))


def computable(rows: np.ndarray, dtype: type) -> np.ndarray:
    """Rows in a type whose products neither wrap nor lose what features of `dtype` hold: float64 or that type."""
    return rows if rows.dtype in (np.float64, dtype) else rows.astype(np.float64)


def dense_rows(rows: Rows) -> np.ndarray:
    """Rows as a NumPy array."""
    return rows.toarray() if is_sparse(rows) else rows


def stack_rows(parts: Sequence[Rows]) -> Rows:
    """Rows of all parts, concatenated; dense or CSR like the parts."""
    if is_sparse(parts[0]):
        return sparse.csr_array(sparse.vstack(parts, format="csr"))
    return np.concatenate(parts)
