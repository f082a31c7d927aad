"""Rows drawn during a lap, in which moves look for what to propose at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.core.checks import COUNT, whole
from dpdist.core.errors import InputError
from dpdist.core.settings import check_settings, documented, setting
from dpdist.models.families.base import Rows, stack_rows

#: Components that have their turn together at least, however few rows of each that leaves: neighbours are among them.
TOGETHER = 16
#: Share of what components hold beyond which a sample of them is taken for all of it: the rows that are not in it weigh
#: next to nothing there.
ALMOST_ALL = 0.95


@documented
@dataclass(frozen=True)
class Sampling:
    """How many rows may be drawn in a lap."""

    rows: int = setting(4000, whole(2), "Of each component.")
    total_bytes: int = setting(64 * 2**20, COUNT, "Bound on all of them.")
    fewest: int = setting(
        256,
        COUNT,
        "Rows of each component at least, if it has them; where those of all do not fit, components take turns, 16 or "
        "more at a time.",
    )

    def __post_init__(self) -> None:
        check_settings(self, " of Sampling")

    def each(self, components: int, row_bytes: int) -> int:
        """Rows that may be drawn of each of so many components."""
        return min(self.rows, self.total_bytes // (row_bytes * max(1, components)))

    def turns(self, components: int, row_bytes: int) -> int:
        """In how many laps each of so many components has its turn."""
        together = max(TOGETHER, self.total_bytes // (row_bytes * min(self.rows, self.fewest)))
        return max(1, -(-components // together))

    def probabilities(self, wanted: np.ndarray, least: int, rows: np.ndarray, row_bytes: int) -> np.ndarray:
        """(K,) probability with which a row joins the sample of its component, so that enough of each are drawn.

        The last components are left out where the `least` rows of so many would not fit into the sample.

        Parameters
        ----------
        wanted : (K,) bool, components of which rows are needed
        least : rows without which a component's sample is of no use
        rows : (K,) expected rows of each component, whatever their weights
        row_bytes : size of a row
        """
        drawn = wanted & (np.cumsum(wanted) <= self.total_bytes // (row_bytes * max(1, least)))
        each = self.each(int(drawn.sum()), row_bytes)
        return np.where(drawn, np.minimum(1.0, 1.2 * each / np.maximum(rows, 1.0)), 0.0)

    def check(self, least: int, row_bytes: int) -> None:
        """Raise :class:`InputError` if not even the `least` rows of one component fit."""
        if self.total_bytes < least * row_bytes:
            raise InputError(
                f"total_bytes of Sampling should hold at least {least} rows, a row taking {row_bytes} bytes; got "
                f"{self.total_bytes}. Give {self.rows * row_bytes} to have {self.rows} rows of a component."
            )


def share_of(weights: np.ndarray, count: float) -> float:
    """Share that sampled rows of `weights` (n,) are of their component, which holds `count`; one where it is almost."""
    share = float(weights.sum()) / max(count, 1e-300)
    return share if share < ALMOST_ALL else 1.0


def rows_each(counts: np.ndarray, most: int) -> list[int]:
    """Rows of components that hold `counts` (M,) in a sample of about `most`, in the proportions of what they hold."""
    found: list[int] = np.maximum(2, most * counts / max(float(counts.sum()), 1e-300)).astype(int).tolist()
    return found


def in_equal_shares(samples: Sequence[tuple[Rows, np.ndarray]], counts: np.ndarray) -> tuple[Rows, np.ndarray, float]:
    """Samples of components that hold `counts` (M,) as one, weighted anew so that all are sampled at the same rate.

    Returns
    -------
    rows, weights : one component's after the other's
    share : that rate, the least of the samples' own, but for components of which there are no rows; one where it is
        almost that
    """
    shares = np.array([own.sum() for _, own in samples]) / np.maximum(counts, 1e-300)
    least = shares[shares > 0].min(initial=np.inf)
    if ALMOST_ALL <= least < np.inf:
        least = 1.0
    weights = [own * (least / share) if share > 0 else own for (_, own), share in zip(samples, shares, strict=True)]
    return stack_rows([rows for rows, _ in samples]), np.concatenate(weights), float(least)
