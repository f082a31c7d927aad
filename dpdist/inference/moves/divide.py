"""Dividing the rows of groups of components among replacements: the measurement of moves that create components."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpdist.core.errors import PrecisionError
from dpdist.kernels.divide import divide_rows
from dpdist.models.mixture import Block, summarise
from dpdist.models.sufficient_statistics import Summary

#: Error message for proposed components whose log probabilities are not finite.
NOT_FINITE = "the log probabilities of a proposed component are not finite; standardise the columns."


def divide(block: Block, groups: np.ndarray, ends: np.ndarray, onto: np.ndarray, coefficients: np.ndarray) -> Summary:
    """Divide the rows of groups of components among replacements; return their summary, C rows.

    Parameters
    ----------
    block : rows with their responsibilities
    groups : (J, G) intp, the components of each group, padded with -1
    ends : (J,) intp, end index of each group's replacements
    onto : (C,) intp, the component to which a replacement's responsibility is added, or -1 for a new component
    coefficients : (C, F) of the replacements' logits

    Raises
    ------
    PrecisionError
        If log probabilities are not finite.
    """
    if sparse.issparse(block.features):
        return _divide_sparse(block, groups, ends, onto, coefficients)
    stats, counts, entropy = np.zeros(coefficients.shape), np.zeros(len(onto)), np.zeros(len(onto))
    floor = block.posterior.precision.floor
    finite = divide_rows(
        block.resp, block.weights, block.features, groups, ends, onto, coefficients, floor, stats, counts, entropy
    )
    if not finite:
        raise PrecisionError(NOT_FINITE)
    stats[:, -1] = counts
    return Summary(stats, entropy)


def _divide_sparse(
    block: Block, groups: np.ndarray, ends: np.ndarray, onto: np.ndarray, coefficients: np.ndarray
) -> Summary:
    parts, begins = [], np.append(0, ends[:-1])
    for group, begin, end in zip(groups, begins.tolist(), ends.tolist(), strict=True):
        held_by_group = block.resp[:, group[group >= 0]].sum(axis=1, dtype=np.float64)
        rows, places = np.flatnonzero(held_by_group), onto[begin:end]
        mass, features = held_by_group[rows], block.features[rows]
        logits = np.ascontiguousarray(features @ coefficients[begin:end].T, dtype=np.float64)
        resp, part = summarise(logits, mass, features, block.weights[rows], block.posterior)
        held = np.where(places >= 0, block.resp[rows][:, places], 0.0)
        change = _entropy_terms(held + resp) - _entropy_terms(held)
        parts.append(Summary(part.stats, block.weights[rows] @ change))
    return Summary(np.concatenate([p.stats for p in parts]), np.concatenate([p.entropy for p in parts]))


def _entropy_terms(resp: np.ndarray) -> np.ndarray:
    logs = np.log(resp, out=np.zeros_like(resp), where=resp > 0)
    return np.asarray(-resp * logs)
