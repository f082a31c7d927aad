"""The rows of some components divided among replacements: what splits and deletes have workers measure."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpdist.core.errors import PrecisionError
from dpdist.kernels.divide import divide_rows
from dpdist.models.mixture import Block, summarise
from dpdist.models.sufficient_statistics import Summary


def divide(block: Block, targets: np.ndarray, onto: np.ndarray, coefficients: np.ndarray) -> Summary:
    """Measure what replacements make of the rows of `targets`: a summary of J * M rows."""
    if sparse.issparse(block.features):
        return _divide_sparse(block, targets, onto, coefficients)
    shape = coefficients.shape
    stats, counts, entropy = np.zeros(shape), np.zeros(shape[:2]), np.zeros(shape[:2])
    floor = block.posterior.precision.floor
    finite = divide_rows(
        block.resp, block.weights, block.features, targets, onto, coefficients, floor, stats, counts, entropy
    )
    if not finite:
        raise PrecisionError("the log probabilities of a proposed component are not finite; standardise the columns.")
    stats[:, :, -1] = counts
    return Summary(stats.reshape(-1, shape[2]), entropy.ravel())


def _divide_sparse(block: Block, targets: np.ndarray, onto: np.ndarray, coefficients: np.ndarray) -> Summary:
    parts = []
    for target, places, weights in zip(targets, onto, coefficients, strict=True):
        rows = np.flatnonzero(block.resp[:, target])
        mass, features = block.resp[rows, target].astype(np.float64), block.features[rows]
        logits = np.ascontiguousarray(features @ weights.T, dtype=np.float64)
        resp, part = summarise(logits, mass, features, block.weights[rows], block.posterior)
        held = np.where(places >= 0, block.resp[rows][:, places], 0.0)
        change = _entropy_terms(held + resp) - _entropy_terms(held)
        parts.append(Summary(part.stats, block.weights[rows] @ change))
    return Summary(np.concatenate([p.stats for p in parts]), np.concatenate([p.entropy for p in parts]))


def _entropy_terms(resp: np.ndarray) -> np.ndarray:
    logs = np.log(resp, out=np.zeros_like(resp), where=resp > 0)
    return -resp * logs
