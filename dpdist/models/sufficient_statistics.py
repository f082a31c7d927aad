"""Additive summaries: the results that workers return for their rows.

A summary of rows x_1..x_n under responsibilities r holds S = sum_n c_n r_n t(x_n)^T, the entropies H_k = -sum_n c_n
r_nk log r_nk and the sum of the log base measures, where c_n are the row weights. Summaries of disjoint rows add.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Protocol, Self

import numpy as np

from dpdist.core.stored import Stored


class Addable(Protocol):
    """Sums over rows or documents, which add and can be scaled."""

    def __add__(self, other: Self, /) -> Self: ...

    def scaled(self, factor: float) -> Self:
        """All entries multiplied by `factor`."""
        ...


@dataclass(frozen=True, eq=False)
class Additive:
    """Numbers and arrays that add over rows or documents, field by field."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def scaled(self, factor: float) -> Self:
        """All entries multiplied by `factor`."""
        return type(self)(*(factor * getattr(self, each.name) for each in fields(self)))


@dataclass(frozen=True, eq=False)
class Summary(Additive):
    """Statistics, entropies and base measure of some rows.

    Parameters
    ----------
    stats : (R, F) float64
        Expected sufficient statistics, one row per component; the last column holds the expected counts.
    entropy : (E,) float64
        Entropy terms. ``E == R`` for components; moves may have entropies without statistics.
    base : float
        Sum of the log base measures, which does not depend on the responsibilities.
    """

    stats: Annotated[
        np.ndarray, Stored(("component", "feature"), "expected sufficient statistics; the last is the count")
    ]
    entropy: Annotated[np.ndarray, Stored(("component",), "entropy of the responsibilities", "nat")]
    base: float = 0.0

    @staticmethod
    def zeros(rows: int, columns: int, entropies: int | None = None) -> Summary:
        """The summary of zero rows."""
        return Summary(np.zeros((rows, columns)), np.zeros(rows if entropies is None else entropies))

    @property
    def counts(self) -> np.ndarray:
        """Expected counts N_k, (R,)."""
        return self.stats[:, -1]

    def take(self, rows: Sequence[int] | np.ndarray) -> Summary:
        """The components `rows`, in that order; the base measure is unchanged."""
        index = np.asarray(rows, dtype=np.intp)
        return Summary(self.stats[index], self.entropy[index], self.base)


def concatenate(parts: Sequence[Summary]) -> Summary:
    """The components of all `parts`, in order; the base measure is that of the first part."""
    return Summary(
        np.concatenate([part.stats for part in parts]),
        np.concatenate([part.entropy for part in parts]),
        parts[0].base,
    )
