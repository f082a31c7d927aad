"""The most probable component of each row, from float32 products where their error cannot change the result.

A product of F terms in float32 has an error of at most (F + 4) 2^-24 sum_j |t_j| |c_jk|, including rounded operands
(Higham 2002, section 3.1). If the best component leads by more than twice this bound, it is also the best in float64;
for the other rows the products are repeated in float64. So labels equal those of float64 and take half the time.

A part common to all components does not affect the choice, so the mean over components is subtracted from the
coefficients, which makes them and the bound smaller.

Source: Higham (2002), Accuracy and Stability of Numerical Algorithms, second edition.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy import sparse

from dpdist.models.families.base import Rows
from dpdist.models.mixture import Posterior

#: With fewer components, the error bounds cost more than float32 products save.
FEWEST = 64
#: If more than this share of rows is undecided, float32 products save nothing.
MOST_IN_DOUBT = 0.25
#: Half of float32's spacing at one.
_ROUNDING = 2.0**-24


class Screen:
    """Chooses the component of each row; only in float64 if components are few or float32 left too many rows undecided.

    Parameters
    ----------
    posterior : of a mixture, in float64
    without : (K,) bool, components to exclude; None for none
    """

    def __init__(self, posterior: Posterior, without: np.ndarray | None = None) -> None:
        self._posterior, self._without = posterior, without
        self._pays = posterior.coefficients.shape[1] >= FEWEST

    def best(self, rows: Rows) -> np.ndarray:
        """Index of the most probable component of prepared rows, (n,) float64; NaN if its score is not finite."""
        if sparse.issparse(rows) or not self._pays:
            return self._exactly(rows)
        with np.errstate(over="ignore", invalid="ignore"):  # rows with scores that are not finite are undecided
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
        """The choice by float32 products, and (n,) bool, rows that remain undecided."""
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
        """Coefficients of the posterior minus their mean over components, (F, K) float32."""
        coefficients = self._posterior.coefficients
        return np.asarray(coefficients - coefficients.mean(axis=1, keepdims=True), dtype=np.float32)

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Largest absolute coefficient of each feature, (F,) float64, with a margin for rounding."""
        return np.asarray(1.01 * np.abs(self._coefficients).max(axis=1), dtype=np.float64)
