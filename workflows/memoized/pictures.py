"""Pictures, and patches of them as rows.

A patch is 8x8 pixels minus their mean. It has no component along the constant patch, so it has no density in 64
dimensions. Rows are therefore the other 63 coordinates in the orthonormal cosine basis, in which distances are those of
pixels. Pixels are integers from 0 to 255; a uniform number from -1/2 to 1/2 is added to each, so that constant patches
of a saturated sky do not have infinite likelihood.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr
from scipy.fft import dct

SIDE, STRIDE = 8, 4
COLUMNS = SIDE**2 - 1
#: Stored rows are cut into so many chunks, which can be shared evenly among twenty or forty batches.
CHUNKS = 80


def cosine_basis() -> np.ndarray:
    """Orthonormal patches (64, 63) that span those of mean zero, smooth ones first."""
    waves = dct(np.eye(SIDE), axis=0, norm="ortho")
    products = np.kron(waves, waves)
    frequency = np.add.outer(np.arange(SIDE), np.arange(SIDE)).ravel()
    return np.ascontiguousarray(products[np.argsort(frequency, kind="stable")][1:].T)


BASIS = cosine_basis()


class Noisy(NamedTuple):
    """A picture to be judged: ``name``, ``picture`` (h, w) float64 from 0 to 255."""

    name: str
    picture: np.ndarray


def windows(picture: np.ndarray, stride: int) -> np.ndarray:
    """All patches of a picture (h, w) at a stride, (n, 64)."""
    seen = np.lib.stride_tricks.sliding_window_view(picture, (SIDE, SIDE))
    return seen[::stride, ::stride].reshape(-1, SIDE**2)


def training_pictures(data: Path, most: int | None) -> list[np.ndarray]:
    """The first training pictures of BSDS300, or drawn ones where these are not there."""
    path = data / "bsds" / "train_gray_u8.npz"
    if not path.exists():
        return [drawn_picture(seed) for seed in range(most or 200)]
    stored = np.load(path)
    return [picture for name in ("landscape", "portrait") for picture in stored[name]][:most]


def test_pictures(data: Path, most: int | None) -> list[Noisy]:
    """The first of the 68 pictures that denoising is judged by, or drawn ones."""
    path = data / "bsds" / "test_gray_u8.npz"
    if not path.exists():
        return [Noisy(f"drawn {seed}", drawn_picture(10_000 + seed).astype(float)) for seed in range(most or 68)]
    stored = np.load(path)
    pictures = {
        str(name): picture
        for shape in ("landscape", "portrait")
        for name, picture in zip(stored[f"{shape}_ids"], stored[shape], strict=True)
    }
    names = (path.parent / "bsd68_ids.txt").read_text().split()[:most]
    return [Noisy(name, pictures[name].astype(float)) for name in names]


def drawn_picture(seed: int, height: int = 96, width: int = 128) -> np.ndarray:
    """Plain and striped areas with straight edges between them, (height, width) uint8."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    picture = np.full((height, width), 128.0)
    for _ in range(12):
        angle, level, period = rng.uniform(0, 2 * np.pi), rng.uniform(30, 220), rng.uniform(3, 12)
        across = np.cos(angle) * (x - rng.uniform(0, width)) + np.sin(angle) * (y - rng.uniform(0, height))
        stripes = rng.choice([0.0, 25.0]) * np.sin(2 * np.pi * across / period)
        picture = np.where(across > 0, level + stripes, picture)
    return np.clip(picture + rng.normal(0, 2, picture.shape), 0, 255).astype(np.uint8)


def patches(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows (n, 63) float32 of a picture of whole numbers."""
    pixels = picture + rng.uniform(-0.5, 0.5, picture.shape)
    return (windows(pixels, STRIDE) @ BASIS).astype(np.float32)


def store_patches(pictures: list[np.ndarray], path: Path, most: int | None = None) -> str:
    """Write the patches of all pictures in random order, or the first of them, unless they are there.

    Returns
    -------
    path : absolute
    """
    count = sum(len(windows(picture, STRIDE)) for picture in pictures)
    kept = min(count, most or count)
    if not path.exists() or zarr.open_array(str(path), mode="r").attrs.get("finished") != [count, kept]:
        rows = np.concatenate(list(_all_patches(pictures)))
        rows = rows[np.random.default_rng(0).permutation(count)[:kept]]
        chunks = (-(-kept // CHUNKS), COLUMNS)
        array = zarr.create_array(str(path), shape=rows.shape, dtype=rows.dtype, chunks=chunks, overwrite=True)
        array[:] = rows
        array.attrs["finished"] = [count, kept]
    return str(path.resolve())


def _all_patches(pictures: list[np.ndarray]) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    return (patches(picture, rng) for picture in pictures)
