"""Laps on two worker processes compared with the same laps on one.

The 1,880,200 patches of 8x8 pixels at stride 4 of the 200 BSDS training pictures, minus their means, with zero-mean
Gaussians (D = 64, K = 100) from a k-means++ start, without moves. Both clusters run throughout, and laps alternate
between them. It is checked at every size that one worker and two give the same bits after every lap.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import draw_clusters, options, print_table, spread, store_rows

from dpdist.core.threads import one_thread
from dpdist.execution import Backend
from dpdist.execution.connecting import local_backend
from dpdist.inference.blocks import block_rows
from dpdist.inference.schedules import Memoized
from dpdist.inference.state import Info
from dpdist.models.allocations import DirichletProcess
from dpdist.models.families import Moments, ZeroMeanGaussian
from dpdist.models.mixture import Model, Precision, local_step
from dpdist.models.sufficient_statistics import Summary

SIDE, STRIDE = 8, 4
#: Chunks of the stored rows: four a batch of twenty, which two workers can share evenly.
CHUNKS = 80
Images = dict[str, np.ndarray]


class Size(NamedTuple):
    """How large the benchmark is."""

    pictures: int  # of each orientation, at most
    components: int
    laps: int
    batches: int


FULL, SMALL = Size(10_000, 100, 3, 20), Size(1, 4, 2, 3)


def patches(pictures: np.ndarray) -> np.ndarray:
    """The patches of some pictures (n, h, w), each less its mean: (m, 64) float32."""
    windows = np.lib.stride_tricks.sliding_window_view(pictures, (SIDE, SIDE), axis=(1, 2))
    rows = windows[:, ::STRIDE, ::STRIDE].reshape(-1, SIDE * SIDE).astype(np.float32)
    return rows - rows.mean(axis=1, keepdims=True)


def read_pictures(data: Path, most: int) -> list[np.ndarray] | None:
    """Grey pictures (n, h, w) by orientation, `most` of each, or None if they are not there."""
    path = data / "bsds" / "train_gray_u8.npz"
    if not path.exists():
        return None
    stored = np.load(path)
    return [stored[name][:most] for name in ("landscape", "portrait")]


def drawn_pictures(most: int) -> list[np.ndarray]:
    """Pictures of clustered patches where the real ones are missing, (n, 320, 480)."""
    count = min(most, 50)
    rows, _ = draw_clusters(count * 40 * 60, SIDE * SIDE, 20, seed=0)
    tiles = rows.reshape(count, 40, 60, SIDE, SIDE).swapaxes(2, 3)
    return [np.clip(128 + 8 * tiles, 0, 255).astype(np.uint8).reshape(count, 320, 480)]


def store_patches(pictures: list[np.ndarray], path: Path) -> str:
    """Write the patches of all pictures to Zarr, one picture at a time."""
    count = sum(len(patches(group[:1])) * len(group) for group in pictures)
    blocks = (patches(picture[None]) for group in pictures for picture in group)
    chunk = -(-count // CHUNKS)
    return store_rows(path, (count, SIDE * SIDE), "float32", _even(blocks, chunk), chunk)


def _even(blocks: Iterator[np.ndarray], chunk: int) -> Iterator[np.ndarray]:
    """The same rows in blocks of one chunk, so that no chunk is written twice."""
    held = np.empty((0, SIDE * SIDE), np.float32)
    for block in blocks:
        held = np.concatenate([held, block])
        while len(held) >= chunk:
            yield held[:chunk]
            held = held[chunk:]
    yield held


def fit(backend: Backend, rows: str | np.ndarray, size: Size) -> Iterator[Info]:
    """Laps over some rows; workers import this script, and need no estimator."""
    from dpdist import DPMixture

    model = DPMixture(
        ZeroMeanGaussian(),
        initial="k-means++",
        initial_components=size.components,
        schedule=Memoized(batches=size.batches, lookahead=1),
        moves=[],
        tolerance=0.0,
        max_laps=size.laps,
        random_state=0,
    )
    return (info for _, info in model.iter_fit(rows, backend=backend))


def warm(backend: Backend) -> None:
    """A lap over a few drawn rows, which loads the workers' code."""
    rows = np.random.default_rng(0).standard_normal((4096, SIDE * SIDE))
    list(fit(backend, rows, Size(0, components=4, laps=1, batches=2)))


def same_bits(one: Info, two: Info) -> bool:
    """Whether two laps ended at the same statistics, entropies and bound."""
    same = np.array_equal(one.total.stats, two.total.stats) and np.array_equal(one.total.entropy, two.total.entropy)
    return bool(same and one.elbo == two.elbo)


def compare(path: str, size: Size) -> list[tuple[Info, Info]]:
    """Each lap on one worker and on two, in turn."""
    backends = [local_backend(1), local_backend(2)]
    try:
        for backend in backends:
            warm(backend)
        one, two = (fit(backend, path, size) for backend in backends)
        return list(zip(one, two, strict=True))
    finally:
        for backend in backends:
            backend.close()


def step_rows(rows: int) -> float:
    """Seconds that the local step takes over some drawn rows in this process."""
    rng = np.random.default_rng(0)
    family = ZeroMeanGaussian(scale=1.0).with_defaults(
        Moments(1.0, np.zeros(SIDE**2), np.ones(SIDE**2), np.zeros(SIDE**2), np.ones(SIDE**2), False)
    )
    block = rng.standard_normal((block_rows(SIDE**2 * (SIDE**2 + 1) // 2 + 1), SIDE**2))
    features = family.features(block)
    stats = np.ascontiguousarray((features.T @ rng.dirichlet(np.full(100, 0.1), len(block))).T)
    posterior = Model(family, DirichletProcess()).posterior(Summary(stats, np.zeros(100)), Precision())
    began = time.perf_counter()
    with one_thread():
        for _ in range(rows // len(block)):
            local_step(posterior, family.features(block), np.ones(len(block)))
    return time.perf_counter() - began


def ceiling(rounds: int, rows: int) -> list[float]:
    """What two processes gain over one on this machine when they share nothing, Dask least of all."""
    with get_context("spawn").Pool(2) as pool:
        pool.map(step_rows, [1000, 1000])
        seconds = [(pool.apply(step_rows, (rows,)), pool.map(step_rows, [rows, rows])) for _ in range(rounds)]
    return [2 * alone / max(together) for alone, together in seconds]


def report(pairs: list[tuple[Info, Info]]) -> None:
    """Print the table and the ratio."""
    columns = ["lap", "one worker", "two workers", "ratio", "ELBO/row", "same bits"]
    print_table(columns, [_line(one, two) for one, two in pairs])
    print(f"one worker / two workers: {spread(one.seconds / two.seconds for one, two in pairs)}")


def _line(one: Info, two: Info) -> list[str]:
    seconds = [f"{one.seconds:.2f} s", f"{two.seconds:.2f} s", f"{one.seconds / two.seconds:.2f}"]
    return [str(one.lap), *seconds, f"{one.elbo / one.rows:.6f}", "yes" if same_bits(one, two) else "NO"]


def main() -> None:
    """Run the benchmark and print its table."""
    given = options(__doc__).parse_args()
    size = SMALL if given.small else FULL
    given.out.mkdir(parents=True, exist_ok=True)
    pictures = read_pictures(given.data, size.pictures)
    name = "patches" if pictures is not None else "drawn-patches"
    pictures = pictures if pictures is not None else drawn_pictures(size.pictures)
    path = store_patches(pictures, given.out / f"{name}{'-small' if given.small else ''}.zarr")
    pairs = compare(path, size)
    print(f"N={pairs[0][0].rows:.0f} D={SIDE * SIDE} K={size.components}, {name}")
    report(pairs)
    apart = ceiling(*((1, 500) if given.small else (9, 100_000)))
    print(f"two processes that share nothing / one, the machine's own ceiling: {spread(apart)}")
    assert all(same_bits(one, two) for one, two in pairs), "one worker and two gave different bits"


if __name__ == "__main__":
    main()
