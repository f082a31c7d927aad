"""Cost and loss of computing the gains of likely pairs of components only.

The first table: seconds on one thread for the gains of all pairs and of the likely ones, from the statistics of a
k-means++ start with the given number of full Gaussians on dense SIFT; the time for all pairs is that of a quarter of
the components, times sixteen. Seconds of tasks on workers and of the coordinator itself are separate. The second: the
effect on merges on real rows, with every pair computed. "found" is the share of components whose best partner is among
the likely ones, "nearest" that of the six partners with the least loss per row. "merged" is the total gain of likely
pairs, taken greedily without overlap, relative to that of all pairs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import NamedTuple

import numpy as np
from candidates import patches
from common import draw_clusters, leading_components, options, print_table

from dpdist import DPMixture
from dpdist.core.threads import one_thread
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.execution.base import Ref, Value
from dpdist.inference.mixture.engine import laps
from dpdist.inference.moves.pairs import pair_gains, screened_losses, with_shared
from dpdist.models.families import DiagonalGaussian, Family, Gaussian, ZeroMeanGaussian
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.methods.mixture import MemoizedMixture


class Timed(SerialBackend):
    """Runs everything here and remembers how long tasks took."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def map(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        began = time.process_time()
        found = super().map(function, *columns)
        self.seconds += time.process_time() - began
        return found


class Case(NamedTuple):
    """Rows, what is fitted to them, with how many components, and after how many laps pairs are looked at."""

    name: str
    rows: np.ndarray
    family: Family
    components: int
    laps: int


def cases(data: Path, small: bool) -> Iterator[Case]:
    """The data sets that are there; drawn clusters at the reduced size."""
    if small:
        yield Case("drawn clusters", draw_clusters(2000, 4, 40, seed=0, apart=2.0)[0], Gaussian(), 80, 2)
        return
    pictures, digits = data / "bsds" / "train_gray_u8.npz", data / "mnist" / "mnist_train60k.npz"
    sift = data / "sift_bsds" / "sift_bsds_train_200k.npz"
    if sift.exists():
        rows = leading_components(np.load(sift)["sift"].astype(np.float64), 32)
        yield Case("SIFT, 32 components, full", rows, Gaussian(), 400, 6)
        yield Case("SIFT, 32 components, diagonal", rows, DiagonalGaussian(), 400, 6)
    if digits.exists():
        rows = leading_components(np.load(digits)["images"].reshape(-1, 784) / 255.0, 50)
        yield Case("MNIST, 50 components, full", rows, Gaussian(), 200, 6)
    if pictures.exists():
        yield Case("8x8 patches, zero-mean", patches(pictures, 200_000), ZeroMeanGaussian(), 200, 6)


def fitted(case: Case) -> tuple[Model, Summary]:
    """The model, and the summary of all rows after some laps without moves."""
    start = DPMixture(
        case.family, initial="k-means++", initial_components=case.components, moves=[], tolerance=0.0, random_state=0
    )
    source, backend = ArraySource(case.rows), SerialBackend()
    problem, state = MemoizedMixture().begin(start.spec(), source, backend)
    for last, _ in islice(laps(problem, source, state, backend), case.laps):
        state = last
    return problem.model, reduce(add, state.batch_summaries).summary


def merged(gains: np.ndarray, exact: np.ndarray) -> float:
    """What pairs of most promising `gains`, no component in two, gain by `exact`."""
    first, second = np.nonzero(gains > 0)
    free, total = np.ones(len(gains), dtype=bool), 0.0
    for place in np.argsort(-gains[first, second], kind="stable"):
        a, b = first[place], second[place]
        if free[a] and free[b] and exact[a, b] > 0:
            free[[a, b]] = False
            total += exact[a, b]
    return total


def missed(case: Case) -> list[object]:
    """A line of the second table."""
    model, total = fitted(case)
    every, likely = pair_gains(model, total), with_shared(model, total, screened_losses(model, total, SerialBackend()))
    exact, counts = np.maximum(every, every.T), np.maximum(total.counts, 1e-3)
    known = np.isclose(likely, every, rtol=1e-9) & np.isfinite(every)
    known = known | known.T
    nearest = np.argsort(-(exact / np.minimum.outer(counts, counts)), axis=1)[:, :6]
    found = known[np.arange(len(exact)), exact.argmax(axis=1)].mean()
    near = np.take_along_axis(known, nearest, axis=1).mean()
    kept = merged(likely, exact) / max(merged(exact, exact), 1e-300)
    positive = int((every > 0).sum())
    return [case.name, len(exact), int(np.triu(known).sum()), positive, f"{found:.3f}", f"{near:.3f}", f"{kept:.4f}"]


def cost(rows: np.ndarray, components: int) -> list[object]:
    """A line of the first table."""
    start = DPMixture(Gaussian(), initial="k-means++", initial_components=components, random_state=0)
    problem, state = MemoizedMixture().begin(start.spec(), ArraySource(rows), SerialBackend())
    assert state.start is not None, "there is a start"
    model, total, timed = problem.model, state.start.summary, Timed()
    with one_thread():
        began = time.process_time()
        pair_gains(model, total.take(np.arange(0, components, 4)))
        all_pairs = 16 * (time.process_time() - began)
        began = time.process_time()
        screened_losses(model, total, timed)
        likely = time.process_time() - began
    return [components, rows.shape[1], f"{all_pairs:.1f}", f"{likely - timed.seconds:.2f}", f"{timed.seconds:.1f}"]


def main() -> None:
    """Run the benchmark and print its tables."""
    given = options(__doc__).parse_args()
    sift = given.data / "sift_bsds" / "sift_bsds_train_200k.npz"
    sizes, rows = (100,), draw_clusters(2000, 4, 40, seed=0)[0]
    if not given.small and sift.exists():
        sizes, rows = (200, 1000), np.load(sift)["sift"].astype(np.float64)
    table = [cost(rows, components) for components in sizes]
    print_table(["K", "D", "all pairs, s", "likely: coordinator, s", "likely: tasks, s"], table)
    lines = [missed(case) for case in cases(given.data, given.small)]
    if given.small:
        assert all(float(str(line[-1])) > 0.95 for line in lines), "what likely pairs gain is nearly what all do"
    print_table(["rows", "K", "likely pairs", "gaining pairs", "found", "nearest", "merged"], lines)


if __name__ == "__main__":
    main()
