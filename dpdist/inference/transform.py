"""Preparation of rows: an affine transform stored with the model, followed by a shift to the origin.

    z = (x - shift) @ matrix  (or  (x - shift) * scale),   then   z - origin

The transform is chosen by the user (centring, scaling, PCA). The origin is internal: location families are shifted to
the mean of the data once per run, so that sums of squares keep their precision. Neither is visible outside: the ELBO,
densities, draws and descriptions of components refer to raw columns,

    log p(x) = log p(z) + log |dz/dx|,   a mean m is   m @ axes + shift,   a covariance C is   axes' C axes,

where the rows of ``axes = matrix' / scale`` are the kept axes in raw columns. If PCA drops axes, all of this refers to
the plane that the kept axes span: a row is scored by its projection, per unit of the plane's volume in raw columns
(|dz/dx| if nothing is dropped); draws and means lie in the plane, and covariances have its rank. Hyperparameters given
to a family refer to transformed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from scipy import sparse
from scipy.linalg import qr

from dpdist.core.checks import COUNT, FLAG
from dpdist.core.errors import InputError
from dpdist.core.settings import check_settings, documented, setting
from dpdist.core.stored import Stored
from dpdist.data.base import Source
from dpdist.data.columns import Names, check_names
from dpdist.inference.data_summary import DataSummary
from dpdist.models.families.base import Moments, Rows, fill_zeros

#: Name -> (dimension names, values), the form in which families and likelihoods describe components.
Description = Mapping[str, tuple[tuple[str, ...], np.ndarray]]


@dataclass(frozen=True, eq=False)
class Transform:
    """An affine map of rows.

    Parameters
    ----------
    shift : (D,) subtracted first, or None
    scale : (D,) factors, or None
    matrix : (D, d) right factor, or None
    """

    shift: Annotated[np.ndarray | None, Stored(("raw_column",), "subtracted from every row first")] = None
    scale: Annotated[np.ndarray | None, Stored(("raw_column",), "multiplies every row")] = None
    matrix: Annotated[np.ndarray | None, Stored(("raw_column", "column"), "right factor of every row")] = None

    @property
    def is_identity(self) -> bool:
        """Whether rows are unchanged."""
        return self.shift is None and self.scale is None and self.matrix is None

    def apply(self, rows: Rows) -> Rows:
        """Transformed rows, float64; the identity returns the rows themselves."""
        if self.is_identity:
            return rows
        if sparse.issparse(rows):
            raise InputError("centring, scaling and PCA need dense rows; leave them out, or make the rows dense.")
        values = np.array(rows, dtype=np.float64)
        if self.shift is not None:
            values -= self.shift
        if self.scale is not None:
            values *= self.scale
        return values if self.matrix is None else values @ self.matrix

    def restore(self, values: np.ndarray) -> np.ndarray:
        """Raw rows (n, D) that correspond to transformed rows (n, d)."""
        if self.matrix is not None:
            values = values @ self.matrix.T
        if self.scale is not None:
            values = values / self.scale
        return values if self.shift is None else values + self.shift

    def restore_variance(self, variance: np.ndarray) -> np.ndarray:
        """Variances of raw columns (K, D) from those of uncorrelated transformed columns (K, d)."""
        if self.matrix is not None:
            variance = variance @ (self.matrix.T**2)
        return variance if self.scale is None else variance / self.scale**2

    def restore_covariance(self, covariance: np.ndarray) -> np.ndarray:
        """Covariances of raw columns (K, D, D) from those of transformed columns (K, d, d)."""
        if self.matrix is not None:
            covariance = self.matrix @ covariance @ self.matrix.T
        return covariance if self.scale is None else covariance / np.outer(self.scale, self.scale)

    @property
    def log_volume(self) -> float:
        """log |dz/dx|, the difference of raw and transformed log densities; within the plane if columns are dropped."""
        if self.scale is None:
            return 0.0
        if self.matrix is None:
            return float(np.log(self.scale).sum())
        # Sorting long rows first and pivoting keep precision if columns differ widely in scale.
        axes = (self.matrix / self.scale[:, None])[np.argsort(self.scale)]
        triangle, _ = qr(axes, mode="r", pivoting=True)
        return float(-np.log(np.abs(np.diag(triangle))).sum())

    def moments(self, data_summary: DataSummary) -> Moments:
        """Moments of the transformed rows, from the summary of the raw rows."""
        if self.is_identity:
            return data_summary.moments()
        mean, covariance = data_summary.mean, data_summary.scatter / data_summary.count
        if self.shift is not None:
            mean = mean - self.shift
        if self.scale is not None:
            mean = mean * self.scale
            covariance = covariance * (self.scale**2 if covariance.ndim == 1 else np.outer(self.scale, self.scale))
        if self.matrix is not None:
            mean, covariance = mean @ self.matrix, self.matrix.T @ covariance @ self.matrix
        variance = np.diag(covariance) if covariance.ndim == 2 else covariance
        # The variance of constant columns, and of axes beyond the rank of the rows, is only rounding.
        varies = data_summary.variance > 0.0
        if self.matrix is not None:
            varies = variance > len(self.matrix) * np.finfo(np.float64).eps * variance.max()
        variance = np.where(varies, variance, 0.0)
        anywhere = np.full(mean.shape, np.inf)
        return Moments(data_summary.count, mean, variance, -anywhere, anywhere, False)


@documented
@dataclass(frozen=True)
class TransformPlan:
    """Which transform to fit."""

    center: bool = setting(False, FLAG, "Subtract the mean.")
    scale: bool = setting(
        False, FLAG, "Divide by the standard deviation (if it is zero, by the root of the mean variance)."
    )
    pca: int | None = setting(
        None, COUNT.or_none("all columns"), "Number of principal components to keep; the columns are also centred."
    )

    def __post_init__(self) -> None:
        check_settings(self, " of TransformPlan")

    def fit(self, data_summary: DataSummary) -> Transform:
        """The transform for data with this summary; raises :class:`InputError` if there are fewer columns than
        principal components asked for."""
        columns = data_summary.mean.shape[0]
        if self.pca is not None and self.pca > columns:
            raise InputError(f"pca should be from 1 to the number of columns, {columns}; got {self.pca}.")
        shift = data_summary.mean if self.center or self.pca is not None else None
        factors = 1 / np.sqrt(fill_zeros(data_summary.variance)) if self.scale else None
        matrix = None if self.pca is None else _principal_axes(data_summary, factors, self.pca)
        return Transform(shift, factors, matrix)

    def turned(self, data_summary: DataSummary) -> Transform:
        """The fitted transform; if it keeps all columns, followed by a lossless rotation onto all principal axes.

        In low precision, products of columns keep what matters along these axes. In directions of small variance, sums
        over other columns would cancel.
        """
        transform = self.fit(data_summary)
        if transform.matrix is not None:
            return transform
        return replace(transform, matrix=_principal_axes(data_summary, transform.scale, data_summary.mean.shape[0]))


def _principal_axes(data_summary: DataSummary, factors: np.ndarray | None, keep: int) -> np.ndarray:
    """The `keep` leading eigenvectors, (D, keep); the largest entry of each is positive."""
    covariance = data_summary.scatter / data_summary.count
    if factors is not None:
        covariance = covariance * np.outer(factors, factors)
    _, vectors = np.linalg.eigh(covariance)
    axes = vectors[:, ::-1][:, :keep]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None], axis=0)
    return np.ascontiguousarray(axes * np.where(largest < 0, -1.0, 1.0))


@dataclass(frozen=True, eq=False)
class Preparation:
    """Transform and origin: everything between stored rows and the model.

    Parameters
    ----------
    transform : Transform
    origin : (d,) subtracted last, or None
    columns : int, number of columns of raw rows
    names : of the raw columns, if they have any
    """

    transform: Transform
    origin: Annotated[np.ndarray | None, Stored(("column",), "origin of the model, subtracted last")]
    columns: int
    names: Names | None = None

    @property
    def width(self) -> int:
        """Number of columns of prepared rows."""
        return self.columns if self.transform.matrix is None else int(self.transform.matrix.shape[1])

    def matches(self, other: Preparation) -> bool:
        """Whether both are centred and map rows to the same values, up to rounding."""
        own, its = (
            (each.transform.shift, each.transform.scale, each.transform.matrix, each.origin) for each in (self, other)
        )
        centred = self.origin is not None or self.transform.shift is not None
        return centred and all(_alike(*pair) for pair in zip(own, its, strict=True))

    def check_source(self, source: Source, asker: str = "the model", accepts_sparse: bool = True) -> None:
        """Raise :class:`InputError` unless raw rows have the fit's columns, by name and number, and are dense if
        needed.
        """
        check_names(self.names, source.names, asker)
        self.check_columns(source.shape[1], asker)
        if source.sparse and not accepts_sparse:
            raise InputError(f"{source.label} is sparse, which this likelihood does not accept; pass x.toarray().")

    def check_columns(self, columns: int, asker: str = "the model") -> None:
        """Raise :class:`InputError` unless raw rows have as many columns as in the fit."""
        if columns != self.columns:
            raise InputError(
                f"rows should have {self.columns} columns, like the fitted rows; got {columns}: "
                f"X has {columns} features, but {asker} is expecting {self.columns} features as input."
            )

    def apply(self, rows: Rows) -> Rows:
        """Rows as the model takes them, float64 (CSR if they were sparse)."""
        self.check_columns(rows.shape[1])
        prepared = self.transform.apply(rows)
        if sparse.issparse(prepared):
            return sparse.csr_array(prepared, dtype=np.float64)
        if self.origin is None:
            return np.ascontiguousarray(prepared, dtype=np.float64)
        return np.subtract(prepared, self.origin, dtype=np.float64)

    def restore(self, prepared: np.ndarray) -> np.ndarray:
        """Raw rows (n, D) that correspond to prepared rows (n, d)."""
        return self.transform.restore(prepared if self.origin is None else prepared + self.origin)

    def restored(self, described: Description) -> Description:
        """A description of components in raw columns.

        Variables with other names than those below are unchanged; their dimensions refer to kept axes if PCA dropped
        some.
        """
        transform, kept = self.transform, "kept_" if self.width < self.columns else ""
        ways: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "mean": self.restore,
            "variance": transform.restore_variance,
            "mean_variance": transform.restore_variance,
            "covariance": transform.restore_covariance,
        }
        return {
            name: (dims, ways[name](values))
            if name in ways
            else (tuple(kept + dim if dim.startswith("column") else dim for dim in dims), values)
            for name, (dims, values) in described.items()
        }


def _alike(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Whether two arrays are equal up to rounding of their largest entries."""
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and bool(np.abs(one - other).max(initial=0) <= 1e-9 * np.abs(one).max(initial=0))
