"""Divide the responsibilities of components among replacements, visiting only rows that belong to these components."""

from __future__ import annotations

import numpy as np

from dpdist.kernels.jit import jit, jit_reassociated


@jit_reassociated
def _dot(left: np.ndarray, right: np.ndarray) -> float:
    total = 0.0
    for f in range(left.shape[0]):
        total += left[f] * right[f]
    return total


@jit
def _add_scaled(target: np.ndarray, scale: float, row: np.ndarray) -> None:
    for f in range(target.shape[0]):
        target[f] += scale * row[f]


@jit
def _negative_log(value: float) -> float:
    """h(r) = -r log r, with h(0) = 0."""
    return -value * np.log(value) if value > 0.0 else 0.0


@jit
def divide_rows(
    resp: np.ndarray,
    weights: np.ndarray,
    features: np.ndarray,
    groups: np.ndarray,
    ends: np.ndarray,
    onto: np.ndarray,
    coefficients: np.ndarray,
    floor: float,
    stats: np.ndarray,
    counts: np.ndarray,
    entropy: np.ndarray,
) -> bool:
    """Divide each group's responsibility for a row among its replacements, by the softmax of their logits.

    The C replacements of all groups are stored consecutively.

    Parameters
    ----------
    resp : (n, K), responsibilities
    weights : (n,) float64, row weights c_n
    features : (n, F)
    groups : (J, G) intp, the components of each group, padded with -1; r_nj is the sum of their responsibilities
    ends : (J,) intp, end index of each group's replacements
    onto : (C,) intp, the component to which a replacement's responsibility is added, or -1 for a new component
    coefficients : (C, F), the replacements' logits are ``features @ coefficients.T``
    floor : float, smallest share of r_nj kept
    stats : (C, F) float64, incremented by sum_n c_n r_nj s_nc t(x_n)
    counts : (C,) float64, incremented by sum_n c_n r_nj s_nc
    entropy : (C,) float64, incremented by sum_n c_n [h(r_n,onto + r_nj s_nc) - h(r_n,onto)]

    Returns
    -------
    bool
        False if some row had no finite largest logit, or a logit that is not a number.
    """
    share = np.empty(coefficients.shape[0])
    begin = 0
    for j in range(groups.shape[0]):
        end = ends[j]
        for n in range(resp.shape[0]):
            mass = 0.0
            for g in range(groups.shape[1]):
                if groups[j, g] >= 0:
                    mass += np.float64(resp[n, groups[j, g]])
            if mass == 0.0:
                continue
            row = features[n]
            top = -np.inf
            for c in range(begin, end):
                share[c] = _dot(row, coefficients[c])
                top = max(top, share[c])
            if not np.isfinite(top):
                return False
            total = 0.0
            for c in range(begin, end):
                share[c] = np.exp(share[c] - top)
                total += share[c]
            if not np.isfinite(total):
                return False
            kept = 0.0
            for c in range(begin, end):
                if share[c] < floor * total:
                    share[c] = 0.0
                kept += share[c]
            for c in range(begin, end):
                if share[c] > 0.0:
                    part = mass * share[c] / kept
                    held = np.float64(resp[n, onto[c]]) if onto[c] >= 0 else 0.0
                    counts[c] += weights[n] * part
                    entropy[c] += weights[n] * (_negative_log(held + part) - _negative_log(held))
                    _add_scaled(stats[c], weights[n] * part, row)
        begin = end
    return True
