"""The first pass over the data: checks that all entries are numbers and computes their moments.

Means and scatters of two sets of rows are combined by the update of Chan, Golub & LeVeque (1979), so that a mean far
from zero costs no precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy import sparse

from dpdist.core.digests import digest_of_rows
from dpdist.core.errors import InputError
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition, Source
from dpdist.execution.base import Backend
from dpdist.models.families.base import Moments, Rows

#: Rows processed at once, so that a partition is never copied as a whole.
_BLOCK = 4096
#: Smaller variances come from squares that have lost digits.
_LEAST_VARIANCE = float(np.finfo(np.float64).tiny / np.finfo(np.float64).eps)
#: Largest number of bad rows or columns named in a message.
_NAMED = 5


@dataclass(frozen=True, eq=False)
class DataSummary:
    """Additive summary of rows.

    Parameters
    ----------
    count : float, sum of the row weights
    mean : (D,)
    scatter : (D,) sums of squares about the mean, or (D, D) including products
    minimum, maximum : (D,)
    integral : whether all entries are whole numbers
    lacking : (D,) number of entries of each column that are NaN or infinite
    bad : number of rows with such entries; ``first_bad`` holds the indices of the first ones
    digests : partition index -> digest
    """

    count: float
    mean: np.ndarray
    scatter: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    integral: bool
    lacking: np.ndarray
    bad: int = 0
    first_bad: tuple[int, ...] = ()
    digests: dict[int, str] = field(default_factory=dict)

    @property
    def variance(self) -> np.ndarray:
        """(D,) variances, divided by the count; exactly 0 for constant columns, regardless of rounding."""
        diagonal = np.diag(self.scatter) if self.scatter.ndim == 2 else self.scatter
        return np.where(self.maximum > self.minimum, np.maximum(diagonal, 0.0), 0.0) / self.count

    def moments(self) -> Moments:
        """The moments from which families derive their defaults."""
        return Moments(self.count, self.mean, self.variance, self.minimum, self.maximum, self.integral)

    def __add__(self, other: DataSummary) -> DataSummary:
        count = self.count + other.count
        share = other.count / count if count > 0 else 0.0
        gap = other.mean - self.mean
        spread = gap * gap if self.scatter.ndim == 1 else np.outer(gap, gap)
        return DataSummary(
            count,
            self.mean + share * gap,
            self.scatter + other.scatter + self.count * share * spread,
            np.minimum(self.minimum, other.minimum),
            np.maximum(self.maximum, other.maximum),
            self.integral and other.integral,
            self.lacking + other.lacking,
            self.bad + other.bad,
            (self.first_bad + other.first_bad)[:_NAMED],
            self.digests | other.digests,
        )


def summarise_source(source: Source, backend: Backend, products: bool = False) -> DataSummary:
    """Summarise all rows in one distributed pass, and store the digests of its partitions in the source.

    Parameters
    ----------
    source : the data
    backend : where to run
    products : whether to compute the full (D, D) scatter, which PCA needs

    Raises
    ------
    InputError
        If rows hold NaN or infinity (the message names their number, the first of them and their columns), or numbers
        whose squares overflow or underflow.
    """
    partitions = source.partitions
    columns = backend.share_each(partitions), [products] * len(partitions), [source.shape[1]] * len(partitions)
    data_summary = backend.gathered("data summary", summarise_partition, *columns)
    if data_summary.bad:
        named = ", ".join(str(row) for row in data_summary.first_bad)
        named = named if data_summary.bad <= len(data_summary.first_bad) else f"{named}, ..."
        kind = "row" if data_summary.bad == 1 else "rows"
        raise InputError(
            f"{source.label} holds NaN or infinity in {data_summary.bad} of {source.shape[0]} rows ({kind} "
            f"{named}); every entry should be finite. NaN or infinity by column: "
            f"{_lacking(data_summary, source)}. Drop or fill those rows, or leave columns out."
        )
    if not np.isfinite(data_summary.variance).all():
        raise InputError(
            f"{_called(source, int(np.argmin(np.isfinite(data_summary.variance))))} of {source.label} holds numbers "
            "whose squares overflow float64; divide the column by a power of ten, correct it, or leave it out."
        )
    faint = (data_summary.variance < _LEAST_VARIANCE) & (data_summary.maximum > data_summary.minimum)
    if faint.any():
        raise InputError(
            f"{_called(source, int(np.argmax(faint)))} of {source.label} varies so little that squared differences "
            "underflow in float64; multiply the column by a power of ten, or leave it out."
        )
    source.digests = tuple(data_summary.digests[partition.index] for partition in partitions)
    return data_summary


def summarise_partition(partition: Partition, products: bool, columns: int) -> DataSummary:
    """The summary of one partition; raises :class:`InputError` unless it has `columns` columns."""
    rows, weights = partition.load()
    if rows.shape[1] != columns:
        told = f"{partition.label} should have {columns} columns, as its source declares; got {rows.shape[1]}"
        raise InputError(f"{told}. Correct the code that loads its rows.")
    with one_thread(), np.errstate(over="ignore", invalid="ignore"):  # the caller reports overflow
        total: DataSummary | None = None
        for start in range(0, rows.shape[0], _BLOCK):
            block = rows[start : start + _BLOCK]
            scale = np.ones(block.shape[0]) if weights is None else weights[start : start + _BLOCK]
            part = _summarise_block(block, scale, partition.start + start, products)
            total = part if total is None else total + part
    assert total is not None, "a partition holds at least one row"
    return replace(total, digests={partition.index: digest_of_rows(rows, weights)})


def _summarise_block(block: Rows, weights: np.ndarray, first: int, products: bool) -> DataSummary:
    if sparse.issparse(block):
        if products:
            raise InputError("PCA needs dense rows; reduce sparse counts beforehand, or leave pca out.")
        return _summarise_sparse(block, weights, first)
    values = np.asarray(block, dtype=np.float64)
    entries = np.isfinite(values)
    finite, lacking = entries.all(axis=1), (~entries).sum(axis=0)
    bad, used = np.flatnonzero(~finite), finite & (weights > 0)
    if not used.all():
        values, weights = values[used], weights[used]
    if not len(values):
        blank = np.zeros(block.shape[1])
        scatter = np.zeros((len(blank), len(blank))) if products else blank
        return _of_none(blank, scatter, lacking, bad, first)
    count = float(weights.sum())
    mean = weights @ values / count
    gaps = values - mean
    scatter = (weights[:, None] * gaps).T @ gaps if products else weights @ (gaps * gaps)
    integral = bool((values == np.rint(values)).all())
    least, most = values.min(axis=0), values.max(axis=0)
    return DataSummary(count, mean, scatter, least, most, integral, lacking, len(bad), _name(bad, first))


def _summarise_sparse(block: sparse.csr_array, weights: np.ndarray, first: int) -> DataSummary:
    broken = ~np.isfinite(block.data)
    owners = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    bad, lacking = np.unique(owners[broken]), np.bincount(block.indices[broken], minlength=block.shape[1])
    data = np.where(broken, 0.0, block.data.astype(np.float64))
    values = sparse.csr_array((data, block.indices, block.indptr), shape=block.shape)
    if not weights.all():
        values, weights = values[weights > 0], weights[weights > 0]
    if not values.shape[0]:
        blank = np.zeros(block.shape[1])
        return _of_none(blank, blank, lacking, bad, first)
    count = float(weights.sum())
    mean = values.T @ weights / count
    scatter = _scatter(values, weights, mean, count)
    ends = values.min(axis=0), values.max(axis=0)
    least, most = (np.asarray(end.todense(), dtype=np.float64).ravel() for end in ends)
    integral = bool((values.data == np.rint(values.data)).all())
    return DataSummary(count, mean, scatter, least, most, integral, lacking, len(bad), _name(bad, first))


def _scatter(values: sparse.csr_array, weights: np.ndarray, mean: np.ndarray, count: float) -> np.ndarray:
    """Weighted squared distances (D,) of all entries, including zeros, from the mean of their column."""
    own, columns = np.repeat(weights, np.diff(values.indptr)), values.indices
    stored = np.bincount(columns, own, minlength=len(mean))
    gaps = np.bincount(columns, own * (values.data - mean[columns]) ** 2, minlength=len(mean))
    return np.asarray(gaps + np.maximum(count - stored, 0.0) * mean**2)


def _of_none(mean: np.ndarray, scatter: np.ndarray, lacking: np.ndarray, bad: np.ndarray, first: int) -> DataSummary:
    """The summary of a block without usable rows."""
    nowhere = np.full_like(mean, np.inf)
    return DataSummary(0.0, mean, scatter, nowhere, -nowhere, True, lacking, len(bad), _name(bad, first))


def _lacking(found: DataSummary, source: Source) -> str:
    """The columns with entries that are not finite, those with most such entries first."""
    order = np.argsort(-found.lacking, kind="stable")[: np.count_nonzero(found.lacking)]
    named = ", ".join(f"{_called(source, int(i))} ({found.lacking[i]})" for i in order[:_NAMED])
    return named + ("" if len(order) <= _NAMED else f" and {len(order) - _NAMED} more")


def _called(source: Source, column: int) -> str:
    """A column's name in quotes, or its number if it has no name."""
    names = source.names
    return f"column {column}" if names is None else f"column '{names[column]}'"


def _name(bad: np.ndarray, first: int) -> tuple[int, ...]:
    return tuple(int(first + row) for row in bad[:_NAMED])
