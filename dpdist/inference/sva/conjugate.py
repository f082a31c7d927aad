"""Conjugate families as passes see them: tables are sufficient statistics, scores differences of the log evidence.

    h_i(k) = A(S_k + t(x_i)) - A(S_k),     rho_i(k) ~ w_k exp h_i(k),     w_new = alpha,     S_k += rho_i(k) t(x_i)

The table holds data only; the prior enters through A (Lin 2013, eq. 16; algorithm 1 as printed leaves it out).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.inference.sva.base import Learner, OpeningRule, Pass
from dpdist.inference.sva.passes import PASSES, PlainPass
from dpdist.models.families.base import Family, Moments, Rows


@dataclass(frozen=True, eq=False)
class Conjugate(Learner):
    """A conjugate family as a pass sees it.

    Parameters
    ----------
    family : with every hyperparameter filled
    columns : D, the width of prepared rows
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

    def begin(self, table: np.ndarray, rule: OpeningRule, dtype: type, overlap: np.ndarray | None, seen: float) -> Pass:
        return PASSES.get(type(self.family), PlainPass)(self.family, table, rule, dtype, overlap)

    def log_predictive(self, rows: Rows, table: np.ndarray) -> np.ndarray:
        stats = np.concatenate([table, np.zeros((1, table.shape[1]))])
        predictive = self.family.log_predictive(self.family.features(rows), stats)
        return np.asarray(predictive + self.family.log_base_measure(rows)[:, None])

    def join(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return left + right

    def gains(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        evidence = self.family.log_evidence
        return evidence(left + right) - evidence(left) - evidence(right)

    def affinity(self, table: np.ndarray) -> np.ndarray:
        """Expected log likelihood a row of b's rows under a, whatever the base measure."""
        return (table @ self.family.coefficients(table)) / table[:, -1:]

    def describe(self, table: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        return self.family.describe(table)

    def sample(self, table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self.family.sample(table, rng)
