"""How many rows are drawn during a lap, so that moves can search them for proposals at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.core.checks import COUNT, whole
from dpdist.core.errors import InputError
from dpdist.core.settings import check_settings, documented, setting
from dpdist.models.families.base import Rows, stack_rows

#: Where components take turns, at least this many have the same turn, even if that leaves few rows for each:
#: neighbouring components should be sampled in the same lap. Fewer if the least rows of so many do not fit.
TOGETHER = 16
#: Smallest number of rows drawn from a component, as a multiple of its number of statistics: children of fewer rows are
#: not found. Of 1.9 million image patches, 64 columns in 190 full components (2,081 statistics), samples of 700 rows
#: led to no split in three laps, 1,400 to 2 splits in one, and 4,000 to 32.
ROWS_PER_STATISTIC = 2
#: Largest number of laps in which components take turns so that each has so many rows.
MOST_TURNS = 8
#: A sample that holds more than this share of its component counts as the whole component: the weights of the other
#: rows are negligible.
ALMOST_ALL = 0.95


@documented
@dataclass(frozen=True)
class Sampling:
    """How many rows may be drawn in a lap."""

    rows: int = setting(4000, whole(2), "Largest number of rows drawn from each component.")
    total_bytes: int = setting(128 * 2**20, COUNT, "Largest size of all drawn rows together, in bytes.")
    fewest: int = setting(
        256,
        COUNT,
        "Smallest number of rows drawn from each component, if it has so many. If these rows of all components do not "
        "fit into total_bytes, components take turns, 16 or more at a time. They also take turns, in up to 8 laps, so "
        "that each has twice as many rows as statistics.",
    )

    def __post_init__(self) -> None:
        check_settings(self, " of Sampling")

    def each(self, components: int, row_bytes: int) -> int:
        """Rows that may be drawn from each of `components` components."""
        return min(self.rows, self.total_bytes // (row_bytes * max(1, components)))

    def turns(self, rows: np.ndarray, row_bytes: int, statistics: int, least: int = 1) -> int:
        """Number of laps in which each component has one turn.

        Parameters
        ----------
        rows : (K,) expected number of rows of each component
        row_bytes : size of a row
        statistics : F, number of columns of the statistics
        least : number of rows below which a component's sample is useless
        """
        if row_bytes * rows.sum() <= self.total_bytes:
            return 1
        wanted = min(self.rows, max(self.fewest, ROWS_PER_STATISTIC * statistics), max(1, int(rows.max())))
        most = max(1, self.total_bytes // (row_bytes * max(1, least)))
        needed = self._turns(len(rows), row_bytes, min(self.rows, self.fewest), most)
        return max(needed, min(MOST_TURNS, self._turns(len(rows), row_bytes, wanted, most)))

    def _turns(self, components: int, row_bytes: int, each: int, most: int) -> int:
        together = min(most, max(TOGETHER, self.total_bytes // (row_bytes * each)))
        return -(-components // together)

    def probabilities(self, wanted: np.ndarray, rows: np.ndarray, row_bytes: int) -> np.ndarray:
        """(K,) probability with which a row joins the sample of its component, so that enough rows of each are drawn.

        Parameters
        ----------
        wanted : (K,) bool, components from which rows are needed
        rows : (K,) expected number of rows of each component, regardless of their weights
        row_bytes : size of a row
        """
        each = self.each(int(wanted.sum()), row_bytes)
        return np.where(wanted, np.minimum(1.0, 1.2 * each / np.maximum(rows, 1.0)), 0.0)

    def check(self, least: int, row_bytes: int) -> None:
        """Raise :class:`InputError` if the `least` rows of one component do not fit."""
        if self.total_bytes < least * row_bytes:
            raise InputError(
                f"total_bytes of Sampling should hold at least {least} rows of {row_bytes} bytes each; got "
                f"{self.total_bytes}. Set it to {self.rows * row_bytes} for {self.rows} rows of a component."
            )


def share_of(weights: np.ndarray, count: float) -> float:
    """Share of a component with count `count` that sampled rows of `weights` (n,) hold; 1 above :data:`ALMOST_ALL`."""
    share = float(weights.sum()) / max(count, 1e-300)
    return share if share < ALMOST_ALL else 1.0


def rows_each(counts: np.ndarray, most: int) -> list[int]:
    """Rows of each of M components in a sample of about `most` rows, in proportion to `counts` (M,); at least 2."""
    found: list[int] = np.maximum(2, most * counts / max(float(counts.sum()), 1e-300)).astype(int).tolist()
    return found


def in_equal_shares(samples: Sequence[tuple[Rows, np.ndarray]], counts: np.ndarray) -> tuple[Rows, np.ndarray, float]:
    """Samples of components with `counts` (M,) as one sample, reweighted to the same sampling rate for all components.

    Returns
    -------
    rows, weights : of all samples, one component after the other
    share : the common rate, the smallest of the samples' rates, ignoring components without rows; 1 if that is at least
        :data:`ALMOST_ALL`
    """
    shares = np.array([own.sum() for _, own in samples]) / np.maximum(counts, 1e-300)
    least = shares[shares > 0].min(initial=np.inf)
    if ALMOST_ALL <= least < np.inf:
        least = 1.0
    weights = [own * (least / share) if share > 0 else own for (_, own), share in zip(samples, shares, strict=True)]
    return stack_rows([rows for rows, _ in samples]), np.concatenate(weights), float(least)
