"""What a likelihood must provide: a conjugate exponential family seen through its log evidence.

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
        """(D,) variances in which a zero takes the mean of the positive ones, and 1 if there is none."""
        return fill_zeros(self.variance)


def fill_zeros(scale: np.ndarray) -> np.ndarray:
    """Replace zeros by the mean of the positive entries, or by 1 where there is none."""
    positive = scale > 0.0
    return np.where(positive, scale, scale[positive].mean() if positive.any() else 1.0)


class Family(ABC):
    """A likelihood with its conjugate prior; subclasses are frozen dataclasses of hyperparameters.

    A model is stored with the import path of its family and the fields; so a class of your own belongs in a module.

    Hyperparameters left at ``None`` are filled by :meth:`with_defaults`; the mathematical methods need
    them filled.
    """

    #: Short name, used by configurations and reports.
    name: str
    #: Whether rows may be moved to another origin, the prior moving along.
    has_location: bool = False
    #: Whether rows may be turned, the prior turning along.
    turns: bool = False
    #: Whether rows may be SciPy CSR.
    accepts_sparse: bool = False
    #: Whether a component learns its covariance, so that it may come to spread over several clusters; then
    #: :meth:`empirical` says how wide one is.
    spreads: bool = False
    #: Whether a component says all of a row; else its density is of a row given its total.
    whole_rows: bool = True
    #: The numbers that rows may hold; None for any.
    support: Support | None = None

    @abstractmethod
    def with_defaults(self: FamilyType, moments: Moments) -> FamilyType:
        """The same family with every missing hyperparameter derived from the data's moments."""

    @abstractmethod
    def features(self, rows: Rows, dtype: type = np.float64) -> Features:
        """Sufficient statistics t(x), (n, F), of rows (n, D); the last column is 1."""

    @abstractmethod
    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        """A(S) for each row S of `stats` (K, F): (K,) float64, in nats, base measure apart."""

    @abstractmethod
    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        """Gradient of :meth:`log_evidence`, E_q[eta], as a new array (F, K) float64, which may be added to."""

    @abstractmethod
    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        """Posterior means for people: name -> (dimension names, array), first dimension ``component``.

        They are stored under these names beside a model; what :mod:`dpdist.storage.descriptions` does not
        know is the family's own. What is called ``mean``, ``variance``, ``mean_variance`` or ``covariance`` is carried
        back to raw columns where rows are transformed; anything else is told as it is.
        """

    @abstractmethod
    def sample(self, stats: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Posterior predictive draws (n, D), one of each of `components` (n,), positions in `stats` (K, F)."""

    def about(self: FamilyType, origin: np.ndarray) -> FamilyType:
        """The same prior for rows from which `origin` (D,) was subtracted."""
        return self

    def turned(self: FamilyType, axes: np.ndarray) -> FamilyType:
        """The same prior for rows that were multiplied by orthonormal `axes` (D, D), where :attr:`turns` says so."""
        return self

    def empirical(self: FamilyType, stats: np.ndarray, free: Collection[str]) -> FamilyType:
        """The prior that components with statistics `stats` (K, F), none of them empty, suggest.

        Parameters
        ----------
        free : names of the hyperparameters that may differ from what they are
        """
        return self

    def log_base_measure(self, rows: Rows) -> np.ndarray:
        """log h(x), (n,): the part of the log likelihood that no component changes."""
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
        """The same of rows (n, D), which have some `places` (n,) in the data."""
        if self.support is not None:
            self.support.check_rows(rows, places, type(self).__name__)

    def points(self, rows: Rows) -> Rows:
        """Coordinates of rows in which squared distances make sense; used to seed clusters."""
        return rows

    def free_parameters(self, features: int) -> int:
        """Free parameters of a component, where statistics have so many `features`; by default all but the count."""
        return features - 1

    def hyperparameters(self) -> dict[str, object]:
        """Field name -> value."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}  # type: ignore[arg-type]


class LinearFamily(Family):
    """A likelihood of rows, dense or SciPy CSR, whose statistics are the row itself and 1."""

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
    """Whether rows are SciPy's."""
    return bool(sparse.issparse(rows))


def dense_rows(rows: Rows) -> np.ndarray:
    """Rows as a NumPy array."""
    return rows.toarray() if is_sparse(rows) else rows


def stack_rows(parts: Sequence[Rows]) -> Rows:
    """Rows one set below the other, dense or CSR as they came."""
    if is_sparse(parts[0]):
        return sparse.csr_array(sparse.vstack(parts, format="csr"))
    return np.concatenate(parts)
