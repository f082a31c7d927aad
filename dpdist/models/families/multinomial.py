"""Counts over a vocabulary: multinomial likelihood with a Dirichlet prior on the probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.special import gammaln, psi

from dpdist.kernels.sequential_counts import Sparse, rising_sums
from dpdist.models.families.base import Features, LinearFamily, Moments, Rows, is_sparse
from dpdist.models.families.support import COUNTS
from dpdist.models.hyperparameters import EachCount, filled


@dataclass(frozen=True, eq=False)
class Multinomial(LinearFamily):
    """Multinomial counts; rows may be SciPy CSR.

    Parameters
    ----------
    pseudocount : float or (D,), optional
        Parameter of the Dirichlet prior, its count per column. Default: 0.5.

    Notes
    -----
    Statistics: x, 1; F = D + 1. Base measure: the multinomial coefficient.
    """

    pseudocount: EachCount = EachCount()

    name = "multinomial"
    support = COUNTS
    whole_rows = False

    def with_defaults(self, moments: Moments) -> Multinomial:
        return filled(self, moments.dimension, pseudocount=0.5)

    def log_base_measure(self, rows: Rows) -> np.ndarray:
        totals = np.asarray(rows.sum(axis=1), dtype=np.float64).ravel()
        return np.asarray(gammaln(totals + 1) - row_sums_of(rows, log_factorial))

    def points(self, rows: Rows) -> Rows:
        """Rows as proportions, so that long and short rows are comparable."""
        totals = np.maximum(np.asarray(rows.sum(axis=1), dtype=np.float64).ravel(), 1.0)
        if is_sparse(rows):
            return sparse.csr_array(sparse.diags_array(1 / totals) @ rows)
        return np.asarray(rows) / totals[:, None]

    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        parameter = self.pseudocount + stats[:, :-1]
        return np.asarray(
            gammaln(self.pseudocount.sum())
            - gammaln(parameter.sum(axis=1))
            + (gammaln(parameter) - gammaln(self.pseudocount)).sum(axis=1)
        )

    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        parameter = self.pseudocount + stats[:, :-1]
        coefficients = np.zeros((stats.shape[1], stats.shape[0]))
        coefficients[:-1] = (psi(parameter) - psi(parameter.sum(axis=1, keepdims=True))).T
        return coefficients

    def log_predictive(self, features: Features, stats: np.ndarray) -> np.ndarray:
        """Dirichlet-multinomial, without the base measure."""
        parameter, rows = self.pseudocount + stats[:, :-1], features[:, :-1]
        sums = rising_sums_of(rows, parameter)
        totals, sizes = parameter.sum(axis=1), np.asarray(rows.sum(axis=1), dtype=np.float64).ravel()
        return np.asarray(sums - rising_sums_of(sizes[:, None], totals[:, None]))

    def free_parameters(self, features: int) -> int:
        return features - 2  # probabilities sum to 1

    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        parameter = self.pseudocount + stats[:, :-1]
        return {"probability": (("component", "column"), parameter / parameter.sum(axis=1, keepdims=True))}

    def sample(self, stats: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws with the mean total of the component's rows, or of all rows if the component has none."""
        held, every = np.stack([stats[:, :-1].sum(axis=1), stats[:, -1]]), stats.sum(axis=0)
        counts, rows = np.where(stats[:, -1] > 0, held, [[every[:-1].sum()], [every[-1]]])
        sizes = np.rint(counts / np.maximum(rows, 1e-300)).astype(np.int64)
        draws = [
            rng.multinomial(sizes[component], rng.dirichlet(self.pseudocount + stats[component, :-1]))
            for component in components
        ]
        return np.array(draws, dtype=np.float64).reshape(len(draws), -1)


def rising_sums_of(rows: Rows, parameter: np.ndarray) -> np.ndarray:
    """Sums over columns of log Gamma(p + x) - log Gamma(p), (n, K), for counts (n, D) and parameters (K, D)."""
    sums = np.empty((rows.shape[0], parameter.shape[0]))
    rising_sums(entries_of(rows), np.ascontiguousarray(parameter), sums)
    return sums


def entries_of(rows: Rows) -> Sparse:
    """Counts, dense or CSR, in the form that kernels take."""
    held = rows if is_sparse(rows) else sparse.csr_array(np.asarray(rows))
    return Sparse(held.data.astype(np.float64), held.indices.astype(np.int64), held.indptr.astype(np.int64))


def log_factorial(counts: np.ndarray) -> np.ndarray:
    """log x! of counts."""
    return np.asarray(gammaln(counts + 1.0))


def row_sums_of(rows: Rows, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Row sums (n,) of a function with f(0) = 0 applied to every entry."""
    if is_sparse(rows):
        applied = sparse.csr_array((function(rows.data), rows.indices, rows.indptr), shape=rows.shape)
        return np.asarray(applied.sum(axis=1)).ravel()
    return np.asarray(function(rows).sum(axis=1))
