"""How laws are held: numbers against numbers, and gradients against differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def hold(law: str, found: Any, expected: Any) -> None:
    """Two sets of numbers are the same but for rounding, as a law has it."""
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8, err_msg=law)


def check_gradient(function: Callable[[np.ndarray], np.ndarray], gradient: np.ndarray, at: np.ndarray) -> None:
    """Central differences along each column, against what `gradient` (K, F) promises."""
    for column in range(at.shape[1]):
        step = np.zeros_like(at)
        step[:, column] = 1e-5 * max(1.0, float(np.abs(at[:, column]).max()))
        change = (function(at + step) - function(at - step)) / (2 * step[:, column])
        scale = 1e-5 * (1.0 + np.abs(gradient).max())
        np.testing.assert_allclose(
            change, gradient[:, column], rtol=1e-4, atol=scale, err_msg="coefficients are the gradient"
        )
