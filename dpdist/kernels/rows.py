"""Operations on rows in plain loops: an array assignment compiles its error message too, which takes seconds."""

from __future__ import annotations

import numpy as np

from dpdist.kernels.jit import jit


@jit
def copy_row(source: np.ndarray, target: np.ndarray) -> None:
    """``target[d] = source[d]`` for all of `source`."""
    for d in range(source.shape[0]):
        target[d] = source[d]


@jit
def add_to_row(value: float, target: np.ndarray) -> None:
    """``target[d] += value`` for all of `target`."""
    for d in range(target.shape[0]):
        target[d] += value


@jit
def take_columns(rows: np.ndarray, columns: np.ndarray, taken: np.ndarray) -> None:
    """``taken = rows[:, columns]``, which NumPy does one column at a time."""
    for n in range(rows.shape[0]):
        own, row = rows[n], taken[n]
        for c in range(columns.shape[0]):
            row[c] = own[columns[c]]
