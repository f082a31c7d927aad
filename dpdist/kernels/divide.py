"""Divide the responsibility of some components among replacements, touching only rows that belong to them."""

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
    targets: np.ndarray,
    onto: np.ndarray,
    coefficients: np.ndarray,
    floor: float,
    stats: np.ndarray,
    counts: np.ndarray,
    entropy: np.ndarray,
) -> bool:
    """Divide r_nk of each target k among M replacements by the softmax of their logits, and sum up.

    Parameters
    ----------
    resp : (n, K), responsibilities
    weights : (n,) float64, row weights c_n
    features : (n, F)
    targets : (J,) intp, the components divided
    onto : (J, M) intp, the component that a replacement's share is added to, or -1 for one of its own
    coefficients : (J, M, F), the replacements' logits are ``features @ coefficients``
    floor : float, smallest share of r_nk kept
    stats : (J, M, F) float64, gains sum_n c_n r_nk s_njm t(x_n)
    counts : (J, M) float64, gains sum_n c_n r_nk s_njm
    entropy : (J, M) float64, gains sum_n c_n [h(r_n,onto + r_nk s_njm) - h(r_n,onto)]

    Returns
    -------
    bool
        False if some row had no finite largest logit, or a logit that is not a number.
    """
    replacements = coefficients.shape[1]
    share = np.empty(replacements)
    for j in range(targets.shape[0]):
        for n in range(resp.shape[0]):
            mass = np.float64(resp[n, targets[j]])
            if mass == 0.0:
                continue
            row = features[n]
            top = -np.inf
            for m in range(replacements):
                share[m] = _dot(row, coefficients[j, m])
                top = max(top, share[m])
            if not np.isfinite(top):
                return False
            total = 0.0
            for m in range(replacements):
                share[m] = np.exp(share[m] - top)
                total += share[m]
            if not np.isfinite(total):
                return False
            kept = 0.0
            for m in range(replacements):
                if share[m] < floor * total:
                    share[m] = 0.0
                kept += share[m]
            for m in range(replacements):
                if share[m] > 0.0:
                    part = mass * share[m] / kept
                    held = np.float64(resp[n, onto[j, m]]) if onto[j, m] >= 0 else 0.0
                    counts[j, m] += weights[n] * part
                    entropy[j, m] += weights[n] * (_negative_log(held + part) - _negative_log(held))
                    _add_scaled(stats[j, m], weights[n] * part, row)
    return True
