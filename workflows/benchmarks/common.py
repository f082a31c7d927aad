"""Shared parts of the benchmarks: options, data, alternating timings, plain tables."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import zarr

#: The shared data folder where neither ``--data`` nor ``DPDIST_SHARED`` names one: beside the repository.
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
#: Where results go without ``--out``.
OUT = Path("build") / "workflows"


def options(about: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark takes; a script's docstring is its help."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("DPDIST_SHARED", SHARED))
    parser.add_argument("--data", type=Path, default=shared, help="folder of the shared data sets, where one is read")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for files, where any are written")
    parser.add_argument("--small", action="store_true", help="a reduced size that runs in seconds and checks results")
    return parser


def alternate(
    actions: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, np.ndarray]:
    """Seconds of each action, (rounds,), taken in turn: A, B, A, B, ... after one round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds + 1):
        for name, action in actions.items():
            began = clock()
            action()
            seconds[name].append(clock() - began)
    return {name: np.array(times[1:]) for name, times in seconds.items()}


def spread(values: Iterable[float], digits: int = 2) -> str:
    """The median of some values, with the smallest and the largest."""
    array = np.array(list(values))
    return f"{np.median(array):.{digits}f} ({array.min():.{digits}f} to {array.max():.{digits}f})"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A plain table, columns aligned to the right."""
    lines = [list(columns), *([str(entry) for entry in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join(entry.rjust(width) for entry, width in zip(line, widths, strict=True)), flush=True)


def draw_clusters(
    rows: int, columns: int, components: int, seed: int, apart: float = 5.0
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of Gaussian clusters of equal weight, and the cluster of each row.

    Means are drawn from N(0, apart^2 I) and covariances from a Wishart of 2D degrees of freedom and mean I.
    With the default, means in 16 dimensions lie some 28 standard deviations apart: well separated.

    Returns
    -------
    x : (rows, columns) float64
    labels : (rows,) int64
    """
    rng = np.random.default_rng(seed)
    means = apart * rng.standard_normal((components, columns))
    roots = rng.standard_normal((components, 2 * columns, columns)) / np.sqrt(2 * columns)
    factors = np.linalg.cholesky(np.swapaxes(roots, 1, 2) @ roots)
    labels = rng.integers(components, size=rows)
    x = rng.standard_normal((rows, columns))
    for k in range(components):
        x[labels == k] = x[labels == k] @ factors[k].T + means[k]
    return x, labels


def digits(data: Path, columns: int) -> np.ndarray | None:
    """The leading principal components of the MNIST digits, (60000, columns) float64, or None if they are not there."""
    path = data / "mnist" / "mnist_train60k.npz"
    if not path.exists():
        return None
    images = np.load(path)["images"]
    return leading_components(images.reshape(len(images), -1) / 255.0, columns)


def leading_components(x: np.ndarray, columns: int) -> np.ndarray:
    """The leading principal components of rows (n, D), (n, columns)."""
    centred = x - x.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    return np.ascontiguousarray(centred @ axes[:, ::-1][:, :columns])


def store_rows(path: Path, shape: tuple[int, int], dtype: str, blocks: Iterable[np.ndarray], chunk: int) -> str:
    """Write blocks of rows one after the other to a Zarr array, unless a finished one of that shape is there.

    Returns
    -------
    str
        The path, absolute, as workers need it.
    """
    if path.exists() and zarr.open(str(path), mode="r").attrs.get("finished") == [*shape, dtype]:
        return str(path.resolve())
    array = zarr.create_array(str(path), shape=shape, dtype=dtype, chunks=(chunk, shape[1]), overwrite=True)
    start = 0
    for block in blocks:
        array[start : start + len(block)] = block
        start += len(block)
    array.attrs["finished"] = [*shape, dtype]
    return str(path.resolve())
