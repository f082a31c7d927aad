"""The pass of any conjugate family, in NumPy, a row after the other: what compiled passes come to, and what stands in.

    rho_i(k) ~ w_k exp [A(S_k + t(x_i)) - A(S_k)],     w_new = alpha,     S_k += rho_i(k) t(x_i)

It asks a family for :meth:`Family.log_predictive` alone, of one row under all components at once.

Source: Lin (2013), algorithm 1.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpdist.core.errors import PrecisionError
from dpdist.inference.sva.base import FAR_OUT, OpeningRule, Pass
from dpdist.kernels.sequential import add_overlaps, share_row
from dpdist.models.families.base import Family, Rows


class PlainPass(Pass):
    """A pass by a family's predictive.

    Parameters
    ----------
    family, table, rule, dtype, overlap : as :meth:`Learner.begin` takes them; products are float64 whatever `dtype`
    """

    def __init__(
        self, family: Family, table: np.ndarray, rule: OpeningRule, dtype: type, overlap: np.ndarray | None = None
    ) -> None:
        self.family, self.law, self.count = family, rule.law, len(table)
        self.stats = np.concatenate([table, np.zeros((1, table.shape[1]))])  # the last row is the prior
        self.tracked = np.zeros((0, 0)) if overlap is None else np.pad(overlap, (0, 1))

    @property
    def table(self) -> np.ndarray:
        return self.stats[: self.count].copy()

    @property
    def overlap(self) -> np.ndarray:
        return self.tracked[: self.count, : self.count].copy()

    def advance(self, rows: Rows, weights: np.ndarray) -> None:
        features = self.family.features(rows)
        for n in np.flatnonzero(weights > 0):
            row = features[n : n + 1]
            self._take(row.toarray() if sparse.issparse(row) else row, float(weights[n]))

    def _take(self, row: np.ndarray, weight: float) -> None:
        """One row of features, (1, F)."""
        held = np.log(np.append(self.stats[: self.count, -1], np.exp(self.law.log_concentration)))
        scores = held + self.family.log_predictive(row, self.stats[: self.count + 1])[0]
        shares, active = np.empty(self.count + 1), np.empty(self.count + 1, dtype=np.int64)
        found, opens = share_row(scores, self.count, self.law, shares, active)
        if found < 0:
            raise PrecisionError(FAR_OUT)
        self.stats[active[:found]] += weight * shares[:found, None] * row
        add_overlaps(self.tracked, shares, active, found, weight)
        if opens:
            self._open()

    def _open(self) -> None:
        """The last row is a component's now; the prior comes after it."""
        self.count += 1
        if self.count == len(self.stats):
            self.stats = np.pad(self.stats, ((0, self.count), (0, 0)))
            if len(self.tracked):
                self.tracked = np.pad(self.tracked, (0, self.count))
