"""What a fitted model says of rows: labels, probabilities, densities.

Labels and probabilities are the local step's, under the posterior of the whole data. The log density is the
posterior predictive

    log [ sum_k w_k exp(A(S_k + t(x)) - A(S_k)) + w_rest exp(A(t(x))) ] + log h(x)

with posterior mean weights and w_rest the leftover of the stick, so it integrates to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import logsumexp, softmax

from dpdist.errors import InputError
from dpdist.families.base import Rows
from dpdist.model import Posterior, Precision
from dpdist.problem import Problem
from dpdist.sources.base import Partition
from dpdist.summary import Summary
from dpdist.threads import one_thread
from dpdist.visit import block_rows


@dataclass(frozen=True, eq=False)
class Predictor:
    """A fitted model, ready for rows; picklable.

    Parameters
    ----------
    problem : what was fitted
    total : summary of the data it was fitted to
    ids : (K,) stable ids of the components
    """

    problem: Problem
    total: Summary
    ids: np.ndarray

    def posterior(self) -> Posterior:
        """q in the form of the local step, in float64."""
        return self.problem.model.posterior(self.total, Precision(floor=0.0))

    def logits(self, rows: Rows, posterior: Posterior) -> np.ndarray:
        """E_q[log p(x, k)] without base measure, (n, K)."""
        return posterior.logits(self.problem.model.family.features(rows))

    def labels(self, partition: Partition) -> np.ndarray:
        """Position of the most probable component, (n,) int64."""
        posterior = self.posterior()
        return self._by_block(partition, lambda rows: self.logits(rows, posterior).argmax(axis=1))

    def probabilities(self, partition: Partition) -> np.ndarray:
        """Responsibilities, (n, K)."""
        posterior = self.posterior()
        return self._by_block(partition, lambda rows: softmax(self.logits(rows, posterior), axis=1))

    def top(self, partition: Partition, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions (n, L) of the `count` most probable components, best first, and their probabilities."""
        posterior = self.posterior()

        def best(rows: Rows) -> np.ndarray:
            shares = softmax(self.logits(rows, posterior), axis=1)
            order = np.argsort(-shares, axis=1, kind="stable")[:, :count]
            return np.stack([order, np.take_along_axis(shares, order, axis=1)], axis=2)

        both = self._by_block(partition, best)
        return both[:, :, 0].astype(np.int64), both[:, :, 1]

    def log_density(self, partition: Partition) -> np.ndarray:
        """Log predictive density of rows, (n,), in the coordinates of the transform."""
        model, total = self.problem.model, self.total
        weights, rest = model.allocation.weights(total.counts)
        stats = np.concatenate([total.stats, np.zeros((1, total.stats.shape[1]))])
        with np.errstate(divide="ignore"):
            log_weights = np.log(np.append(weights, rest))

        def density(rows: Rows) -> np.ndarray:
            predictive = model.family.log_predictive(model.family.features(rows), stats) + log_weights
            return np.asarray(logsumexp(predictive, axis=1) + model.family.log_base_measure(rows))

        return self._by_block(partition, density)

    def _by_block(self, partition: Partition, function: Callable[[Rows], np.ndarray]) -> np.ndarray:
        stored, _ = partition.load()
        _require_finite(stored, partition)
        step = block_rows(self.total.stats.shape[1])
        with one_thread():
            parts = [
                function(self.problem.preparation.apply(stored[start : start + step]))
                for start in range(0, stored.shape[0], step)
            ]
        return np.concatenate(parts)


def _require_finite(stored: Rows, partition: Partition) -> None:
    values = stored.data if sparse.issparse(stored) else stored
    if not np.isfinite(values).all():
        bad = "" if sparse.issparse(stored) else f", first in row {partition.start + _first_bad(stored)}"
        raise InputError(f"the rows hold NaN or infinity{bad}; every entry should be finite. Drop or fill those rows.")


def _first_bad(stored: np.ndarray) -> int:
    return int(np.argmin(np.isfinite(stored).all(axis=1)))


def predict_partition(partition: Partition, predictor: Predictor, method: str, *arguments: Any) -> Any:
    """Call one of the predictor's methods on a partition; a task."""
    return getattr(predictor, method)(partition, *arguments)
