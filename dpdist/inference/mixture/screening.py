"""The most probable component of rows, told by products in float32 wherever these leave no doubt.

A product of F terms in float32 is off by at most (F + 4) 2^-24 sum_j |t_j| |c_jk|, rounded operands included (Higham
2002, section 3.1). Where the best component leads by more than twice that, it is the best in float64 too; of the other
rows products are made again in float64. So labels are those of float64, in half the time.

What all components have in common decides nothing: coefficients are taken less their mean, by which their sizes, and so
the bound, are smaller.

Source: Higham (2002), Accuracy and Stability of Numerical Algorithms, second edition.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy import sparse

from dpdist.models.families.base import Rows
from dpdist.models.mixture import Posterior

#: Components below which the sizes of features cost more than products in float32 save.
FEWEST = 64
#: Share of rows in doubt above which products in float32 save nothing.
MOST_IN_DOUBT = 0.25
#: Half of float32's spacing at one.
_ROUNDING = 2.0**-24


class Screen:
    """Chooses components of rows; in float64 only where they are few, or products in float32 left too many in doubt.

    Parameters
    ----------
    posterior : of a mixture, in float64
    without : (K,) bool, components that are not to be chosen; None for none
    """

    def __init__(self, posterior: Posterior, without: np.ndarray | None = None) -> None:
        self._posterior, self._without = posterior, without
        self._pays = posterior.coefficients.shape[1] >= FEWEST

    def best(self, rows: Rows) -> np.ndarray:
        """Position of the most probable component of prepared rows, (n,) float64; NaN where no number tells it."""
        if sparse.issparse(rows) or not self._pays:
            return self._exactly(rows)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is in doubt
            found, doubted = self._coarsely(rows)
        self._pays = doubted.mean() <= MOST_IN_DOUBT
        if doubted.any():
            found[doubted] = self._exactly(rows[doubted])
        return found

    def _exactly(self, rows: Rows) -> np.ndarray:
        scores = self._posterior.logits(self._posterior.family.features(rows))
        told = np.isfinite(scores.max(axis=1))
        return np.where(told, self._among(scores).argmax(axis=1), np.nan)

    def _coarsely(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By products in float32, and which rows they leave in doubt."""
        features = self._posterior.family.features(rows, np.float32)
        scores = self._among(features @ self._coefficients)
        every, found = np.arange(len(scores)), scores.argmax(axis=1)
        best = scores[every, found]
        scores[every, found] = -np.inf
        bound = (features.shape[1] + 4) * _ROUNDING * (np.abs(features) @ self._sizes)
        return found.astype(np.float64), ~(best - scores.max(axis=1) > 2 * bound)

    def _among(self, scores: np.ndarray) -> np.ndarray:
        if self._without is not None:
            scores[:, self._without] = -np.inf
        return scores

    @cached_property
    def _coefficients(self) -> np.ndarray:
        """Those of the posterior less their mean over components, (F, K) float32."""
        coefficients = self._posterior.coefficients
        return np.asarray(coefficients - coefficients.mean(axis=1, keepdims=True), dtype=np.float32)

    @cached_property
    def _sizes(self) -> np.ndarray:
        """The largest of each feature, (F,) float64, with room for the rounding of sizes and of the mean."""
        return np.asarray(1.01 * np.abs(self._coefficients).max(axis=1), dtype=np.float64)
