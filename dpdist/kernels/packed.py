"""Sufficient statistics of Gaussians: x x^T packed as D(D+1)/2 columns, off-diagonals once, then x, then 1."""

from __future__ import annotations

import numpy as np

from dpdist.kernels.jit import jit


def packed_width(dimension: int) -> int:
    """Number of columns that a packed symmetric matrix takes."""
    return dimension * (dimension + 1) // 2


@jit
def pack_quadratic(rows: np.ndarray, features: np.ndarray) -> None:
    """Fill ``features[:, :D(D+1)/2]`` with the products x_i x_j, i <= j, row-major over the upper triangle."""
    # Slices, not indices: the compiler then knows that the inner loop is contiguous.
    dimension = rows.shape[1]
    for n in range(rows.shape[0]):
        row = rows[n]
        start = 0
        for i in range(dimension):
            left, right = row[i], row[i:]
            target = features[n, start : start + dimension - i]
            for j in range(dimension - i):
                target[j] = left * right[j]
            start += dimension - i


def unpack_index(dimension: int) -> np.ndarray:
    """(D, D) positions of each matrix entry in the packed columns."""
    index = np.empty((dimension, dimension), dtype=np.intp)
    upper = np.triu_indices(dimension)
    index[upper] = np.arange(packed_width(dimension))
    index.T[upper] = index[upper]
    return index


def unpack_symmetric(packed: np.ndarray, dimension: int) -> np.ndarray:
    """(K, D(D+1)/2) packed -> (K, D, D) symmetric."""
    return packed[:, unpack_index(dimension)]


def pack_gradient(matrices: np.ndarray) -> np.ndarray:
    """(K, D, D) symmetric W -> (K, D(D+1)/2) c with  packed(x x^T) @ c = x^T W x: off-diagonals twice."""
    rows, columns = np.triu_indices(matrices.shape[1])
    packed = matrices[:, rows, columns]
    packed[:, rows != columns] *= 2.0
    return packed
