"""Sufficient statistics of Gaussians: x x^T packed as D(D+1)/2 columns with each off-diagonal once, then x, then 1."""

from __future__ import annotations

from functools import cache

import numpy as np

from dpdist.kernels.jit import jit


def packed_width(dimension: int) -> int:
    """Number of columns of a packed symmetric matrix."""
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


@jit
def fill_scatter(
    scale: np.ndarray,
    products: np.ndarray,
    total: np.ndarray,
    counts: np.ndarray,
    mean: np.ndarray,
    precision: np.ndarray,
    scatter: np.ndarray,
) -> None:
    """Fill the upper triangles of posterior scatter matrices; entries below the diagonals are unchanged.

    With m the prior mean, shift s_k = sum_n r_nk (x_n - m) and kappa_k the precision of the posterior mean,

        scatter_k = scale + sum_n r_nk (x_n - m)(x_n - m)^T - s_k s_k^T / kappa_k

    Parameters
    ----------
    scale : (D, D)
    products : (K, at least D(D+1)/2), sums of x x^T, packed, in the first columns
    total : (K, D), sums of x
    counts : (K,)
    mean : (D,), m
    precision : (K,), kappa
    scatter : (K, D, D)
    """
    shift = np.empty(len(mean))
    for k in range(scatter.shape[0]):
        fill_one_scatter(scale, products[k], total[k], counts[k], mean, precision[k], shift, scatter[k])


@jit
def fill_one_scatter(
    scale: np.ndarray,
    products: np.ndarray,
    total: np.ndarray,
    count: float,
    mean: np.ndarray,
    precision: float,
    shift: np.ndarray,
    scatter: np.ndarray,
) -> None:
    """Like :func:`fill_scatter`, for one component; also fills `shift` (D,)."""
    dimension, start = len(mean), 0
    for i in range(dimension):
        shift[i] = total[i] - count * mean[i]
    for i in range(dimension):
        by_mean, by_total, by_shift = shift[i], mean[i], shift[i] / precision
        source = products[start : start + dimension - i]
        prior, means, totals, shifts = scale[i, i:], mean[i:], total[i:], shift[i:]
        target = scatter[i, i:]
        for j in range(dimension - i):
            about_mean = source[j] - by_mean * means[j] - by_total * totals[j]
            target[j] = prior[j] + about_mean - by_shift * shifts[j]
        start += dimension - i


@jit
def pack_gradient(matrices: np.ndarray, packed: np.ndarray) -> None:
    """Fill ``packed`` (K, D(D+1)/2) with c such that packed(x x^T) @ c = x^T W x: off-diagonals of W count twice.

    Only the upper triangles of the symmetric ``matrices`` W (K, D, D) are read.
    """
    for k in range(matrices.shape[0]):
        pack_one_gradient(matrices[k], packed[k])


@jit
def pack_one_gradient(matrix: np.ndarray, packed: np.ndarray) -> None:
    """Like :func:`pack_gradient`, for one matrix (D, D)."""
    dimension, start = len(matrix), 0
    for i in range(dimension):
        source, target = matrix[i, i:], packed[start : start + dimension - i]
        for j in range(dimension - i):
            target[j] = 2.0 * source[j]
        target[0] = source[0]
        start += dimension - i


@jit
def packed_products(packed: np.ndarray, vectors: np.ndarray, products: np.ndarray) -> None:
    """Fill ``products`` (K, D) with W_k v_k, for matrices packed by :func:`pack_gradient` and ``vectors`` (K, D)."""
    for k in range(vectors.shape[0]):
        fill_one_product(packed[k], vectors[k], products[k])


@jit
def fill_one_product(packed: np.ndarray, vector: np.ndarray, product: np.ndarray) -> None:
    """Like :func:`packed_products`, for one matrix and one vector (D,)."""
    dimension, start = len(vector), 0
    product[:] = 0.0
    for i in range(dimension):
        product[i] += packed[start] * vector[i]
        for j in range(1, dimension - i):
            half = 0.5 * packed[start + j]
            product[i] += half * vector[i + j]
            product[i + j] += half * vector[i]
        start += dimension - i


@cache
def packed_diagonal(dimension: int) -> np.ndarray:
    """(D,) positions of the diagonal among the packed columns."""
    index = np.arange(dimension)
    places = index * dimension - index * (index - 1) // 2
    places.flags.writeable = False
    return places
