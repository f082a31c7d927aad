"""Comparisons by which laws are checked: numbers with numbers, and gradients with finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def hold(law: str, found: Any, expected: Any) -> None:
    """Assert that two arrays are equal up to rounding; `law` is the message."""
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8, err_msg=law)


def check_gradient(function: Callable[[np.ndarray], np.ndarray], gradient: np.ndarray, at: np.ndarray) -> None:
    """Assert that central differences along each column equal `gradient` (K, F)."""
    for column in range(at.shape[1]):
        step = np.zeros_like(at)
        step[:, column] = 1e-5 * max(1.0, float(np.abs(at[:, column]).max()))
        change = (function(at + step) - function(at - step)) / (2 * step[:, column])
        scale = 1e-5 * (1.0 + np.abs(gradient).max())
        np.testing.assert_allclose(
            change,
            gradient[:, column],
            rtol=1e-4,
            atol=scale,
            err_msg="coefficients are the gradient of the evidence",
        )
