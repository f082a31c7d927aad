"""Total responsibility of each component for the rows of each owner, the component with the largest responsibility."""

from __future__ import annotations

import numpy as np

from dpdist.kernels.jit import jit


@jit
def add_held(resp: np.ndarray, weights: np.ndarray, owners: np.ndarray, held: np.ndarray) -> None:
    """``held[owners[n], k] += weights[n] * resp[n, k]``, visiting only nonzero responsibilities.

    Parameters
    ----------
    resp : (n, K)
    weights : (n,) float64
    owners : (n,)
    held : (K, K) float64
    """
    for n in range(resp.shape[0]):
        target = held[owners[n]]
        for k in range(resp.shape[1]):
            if resp[n, k] > 0.0:
                target[k] += weights[n] * resp[n, k]
