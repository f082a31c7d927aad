"""Cost of look-ahead: the ELBO by lap if batches start from posteriors that are some batches old.

    python workflows/benchmarks/lookahead.py [--laps 12] [--rows 20000] [--seeds 1]

The same memoized fit with look-ahead 0, 1, 2 and 4, from the same k-means++ start, with default moves, in 20 batches,
on the MNIST digits (50 principal components, full covariance) and on SIFT vectors (128 columns, diagonal). With a
look-ahead of n, workers can process the partitions of n + 1 batches at a time. Its cost is measured by the ELBO after
each lap, in nats per row below look-ahead 0, and by the number of laps to reach the final ELBO of look-ahead 0.
Everything runs in this process, because results depend on the look-ahead but not on the number of workers. Missing data
sets are left out; ``--small`` uses scikit-learn's digits instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import digits, options, print_table
from sklearn.datasets import load_digits

from dpdist import DPMixture
from dpdist.execution import SerialBackend
from dpdist.inference.schedules import Memoized
from dpdist.models.families import DiagonalGaussian, Family, Gaussian

AHEAD, BATCHES = (0, 1, 2, 4), 20


class Case(NamedTuple):
    """A data set: its rows, the likelihood, clusters to begin with."""

    name: str
    rows: np.ndarray
    family: Family
    components: int


class Trace(NamedTuple):
    """ELBO a row after each lap, and K in the end."""

    elbos: list[float]
    components: int


def cases(data: Path, rows: int, small: bool) -> list[Case]:
    """The data sets that are there."""
    if small:
        return [Case("digits", load_digits().data[:, 10:30], DiagonalGaussian(), 5)]
    found, mnist = [], digits(data, 50)
    if mnist is not None:
        found.append(Case("MNIST-50", mnist[:rows], Gaussian(), 30))
    sift = data / "sift_bsds" / "sift_bsds_train_200k.npz"
    if sift.exists():
        found.append(Case("SIFT", np.load(sift)["sift"][:rows].astype(np.float64), DiagonalGaussian(), 50))
    return found


def run(case: Case, ahead: int, laps: int, seed: int) -> Trace:
    """One fit."""
    model = DPMixture(
        case.family,
        initial="k-means++",
        initial_components=case.components,
        schedule=Memoized(BATCHES, ahead),
        tolerance=0.0,
        max_laps=laps,
        random_state=seed,
    )
    infos = [info for _, info in model.iter_fit(case.rows, backend=SerialBackend())]
    return Trace([info.elbo / info.rows for info in infos], infos[-1].n_components)


def laps_to(level: float, trace: Trace) -> str:
    """The first lap that ends at a level of the ELBO or above; "-" where none does."""
    return next((str(lap) for lap, elbo in enumerate(trace.elbos, start=1) if elbo >= level), "-")


def lines(case: Case, seed: int, traces: dict[int, Trace]) -> list[list[object]]:
    """Of a table: for each look-ahead what it is below none after some laps, and when it is where none was."""
    base = np.array(traces[0].elbos)
    marks = sorted({0, len(base) // 4, len(base) // 2, len(base) - 1})
    level = base[-1] - 1e-3
    return [
        [
            case.name,
            seed,
            ahead,
            *(f"{base[mark] - trace.elbos[mark]:.4f}" for mark in marks),
            f"{trace.elbos[-1]:.4f}",
            trace.components,
            laps_to(level, trace),
        ]
        for ahead, trace in traces.items()
    ]


def main() -> None:
    """Run all fits and print their tables."""
    parser = options(__doc__)
    parser.add_argument("--laps", type=int, default=12)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    laps = 4 if given.small else given.laps
    marks = [mark + 1 for mark in sorted({0, laps // 4, laps // 2, laps - 1})]
    columns = [
        "data",
        "seed",
        "ahead",
        *(f"below after {mark}" for mark in marks),
        "ELBO/row",
        "K",
        "laps to the end's",
    ]
    for case in cases(given.data, given.rows, given.small):
        for seed in range(given.seeds):
            traces = {ahead: run(case, ahead, laps, seed) for ahead in AHEAD}
            print_table(columns, lines(case, seed, traces))
            assert all(np.isfinite(trace.elbos).all() for trace in traces.values()), "an ELBO is not finite"
            assert (np.diff(traces[0].elbos) > -1e-9).all(), "an ELBO fell"


if __name__ == "__main__":
    main()
