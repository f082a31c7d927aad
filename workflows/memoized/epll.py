"""Denoising by the expected patch log likelihood of a mixture of zero-mean Gaussians (Zoran & Weiss, ICCV 2011).

Half-quadratic splitting: for beta in (1, 4, 8, 16, 32) / sigma^2, every patch z of the picture x is replaced by its
estimate under its likeliest component and noise of variance 1 / beta,

    k = argmax_k log w_k + log N(z; 0, C_k + I / beta),    z <- C_k (C_k + I / beta)^-1 z,

with its mean kept. Then the picture becomes the weighted mean of the noisy picture y, with weight 1 / sigma^2, and of
the overlapping patches at each pixel, with weight beta. At the first beta all components are compared. After that, a
patch is compared only for the `candidates` components that were best at the first beta for patches with the same last
component, which costs a tenth; ``candidates=None`` compares all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pictures import BASIS, COLUMNS, SIDE, windows

from dpdist.kernels.packed import pack_quadratic

BETAS = (1, 4, 8, 16, 32)
CANDIDATES = 24
#: Patches compared at a time.
BLOCK = 8192
#: Entries of a symmetric matrix, each once.
UPPER = np.triu_indices(COLUMNS)


class Prior(NamedTuple):
    """A mixture: ``weights`` (K,), ``covariances`` (K, 63, 63) of coordinates of patches of pixels from 0 to 255."""

    weights: np.ndarray
    covariances: np.ndarray


class Components(NamedTuple):
    """A mixture under noise: quadratic forms (K, 2016) and levels (K,) float32; filters (K, 63, 63) float32."""

    forms: np.ndarray
    levels: np.ndarray
    filters: np.ndarray


def under_noise(prior: Prior, variance: float) -> Components:
    """What the components say of patches with noise of a variance."""
    noisy = prior.covariances + variance * np.eye(COLUMNS)
    precisions = np.linalg.inv(noisy)
    forms = precisions[:, *UPPER] * np.where(UPPER[0] == UPPER[1], -0.5, -1.0)
    levels = np.log(prior.weights) - 0.5 * np.linalg.slogdet(noisy)[1]
    filters = prior.covariances @ precisions
    return Components(*(array.astype(np.float32) for array in (forms, levels, filters)))


def log_densities(components: Components, rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Of rows (n, 63) under some components (M,), up to a constant: (n, M)."""
    products = np.empty((len(rows), len(UPPER[0])), np.float32)
    pack_quadratic(rows, products)
    return np.asarray(products @ components.forms[chosen].T + components.levels[chosen])


def choose(components: Components, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest component of each row, (n,), and the components (K, K) as rows of each like them, best first."""
    count = len(components.levels)
    owners, liked = np.empty(len(rows), dtype=int), np.zeros((count, count))
    for start in range(0, len(rows), BLOCK):
        block = slice(start, start + BLOCK)
        found = log_densities(components, rows[block], np.arange(count))
        owners[block] = found.argmax(axis=1)
        np.add.at(liked, owners[block], found)
    np.fill_diagonal(liked, np.inf)
    return owners, np.argsort(-liked, axis=1, kind="stable")


def choose_again(components: Components, rows: np.ndarray, owners: np.ndarray, nearest: np.ndarray) -> np.ndarray:
    """The likeliest component of each row, (n,), among those nearest (K, M) to its last one."""
    found = owners.copy()
    for k in np.unique(owners):
        mine = np.flatnonzero(owners == k)
        for start in range(0, len(mine), BLOCK):
            block = mine[start : start + BLOCK]
            found[block] = nearest[k][log_densities(components, rows[block], nearest[k]).argmax(axis=1)]
    return found


def filtered(components: Components, rows: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Each row as its component says that it was without noise, (n, 63)."""
    clean = np.empty_like(rows)
    for k in np.unique(owners):
        mine = owners == k
        clean[mine] = rows[mine] @ components.filters[k]
    return clean


def overlapped(patches: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The mean of what all patches (n, 64) of a picture say of each pixel, (h, w)."""
    high, wide = shape[0] - SIDE + 1, shape[1] - SIDE + 1
    total, count = np.zeros(shape), np.zeros(shape)
    for i, pixels in enumerate(patches.T):
        place = np.s_[i // SIDE : i // SIDE + high, i % SIDE : i % SIDE + wide]
        total[place] += pixels.reshape(high, wide)
        count[place] += 1
    return total / count


def denoise(prior: Prior, noisy: np.ndarray, sigma: float, candidates: int | None = CANDIDATES) -> np.ndarray:
    """The picture (h, w) of 0 to 255 behind one with noise of standard deviation `sigma`."""
    picture, owners, nearest = noisy, np.empty(0, dtype=int), np.empty(0, dtype=int)
    basis = BASIS.astype(np.float32)
    for beta in BETAS:
        components = under_noise(prior, sigma**2 / beta)
        patches = windows(picture, 1)
        means = patches.mean(axis=1, keepdims=True)
        rows = patches.astype(np.float32) @ basis
        if not len(owners) or candidates is None:
            owners, nearest = choose(components, rows)
        else:
            owners = choose_again(components, rows, owners, nearest[:, :candidates])
        expected = overlapped(filtered(components, rows, owners) @ basis.T + means, noisy.shape)
        picture = (noisy + beta * expected) / (1 + beta)
    return np.clip(picture, 0, 255)


def add_noise(picture: np.ndarray, sigma: float, seed: int) -> np.ndarray:
    """The picture with Gaussian noise, which is neither rounded nor clipped."""
    return picture + sigma * np.random.default_rng(seed).standard_normal(picture.shape)


def psnr(picture: np.ndarray, truth: np.ndarray) -> float:
    """Peak signal-to-noise ratio, in decibels."""
    return float(10 * np.log10(255**2 / np.square(picture - truth).mean()))
