"""Responsibilities under many arrangements of components at once, from one common product of features."""

from __future__ import annotations

import numpy as np

from dpdist.kernels.jit import jit


@jit
def share_arrangements(logits: np.ndarray, weights: np.ndarray, ends: np.ndarray, bounds: np.ndarray) -> bool:
    """Replace every row's logits by its weight times their softmax, separately within each arrangement, in place.

    Parameters
    ----------
    logits : (n, C) float64, of the components of all arrangements, concatenated; overwritten by c_n r_nc
    weights : (n,) float64, c_n
    ends : (J,) intp, end index of each arrangement's components
    bounds : (J,) float64, incremented by sum_n c_n log sum_c exp(logit_nc)

    Returns
    -------
    bool
        Whether all bounds are finite.
    """
    for n in range(logits.shape[0]):
        row = logits[n]
        begin = 0
        for j in range(ends.shape[0]):
            end = ends[j]
            top = row[begin]
            for c in range(begin + 1, end):
                top = max(top, row[c])
            total = 0.0
            for c in range(begin, end):
                gap = row[c] - top
                row[c] = np.exp(gap) if gap > -40.0 else 0.0
                total += row[c]
            scale = weights[n] / total
            for c in range(begin, end):
                row[c] *= scale
            bounds[j] += weights[n] * (top + np.log(total))
            begin = end
    return bool(np.isfinite(bounds).all())
