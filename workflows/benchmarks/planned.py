"""The forecast of ``dpdist plan`` for a lap compared with real laps on one worker and on two.

    python workflows/benchmarks/planned.py [--rows 400000] [--columns 32] [--components 60] [--rounds 3]

Drawn clusters in a Zarr array, diagonal Gaussians with default moves, from k-means++. Before each fit its unit costs
are measured again on the same workers, so that load on the machine affects both. The ratio is of predicted seconds to
those of the second lap, which is the first with moves measured and applied, and the one that plans forecast.
"""

from __future__ import annotations

import os

import numpy as np
from common import draw_clusters, options, print_table, spread, store_rows

from dpdist import DPMixture
from dpdist.data import ZarrSource
from dpdist.execution.connecting import local_backend
from dpdist.inference.schedules import Memoized
from dpdist.models.families import DiagonalGaussian
from dpdist.runs.planning.plan import plan

BATCHES, LAPS = 20, 2


def main() -> None:
    """Plan and fit in turn, and print what came of both."""
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--columns", type=int, default=32)
    parser.add_argument("--components", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rows, components, rounds = (20_000, 8, 1) if given.small else (given.rows, given.components, given.rounds)
    given.out.mkdir(parents=True, exist_ok=True)
    x = draw_clusters(rows, given.columns, components, seed=0)[0].astype(np.float32)
    path = store_rows(given.out / f"planned-{rows}.zarr", x.shape, "float32", [x], 16_384)
    ratios: dict[int, list[float]] = {1: [], 2: []}
    table = []
    for _ in range(rounds):
        for workers, found in ratios.items():
            predicted, measured = both(path, components, workers)
            found.append(predicted / measured)
            table.append([workers, f"{predicted:.2f} s", f"{measured:.2f} s", f"{found[-1]:.2f}"])
    print_table(["workers", "predicted", "measured", "ratio"], table)
    for workers, found in ratios.items():
        print(f"{workers} worker{'s' if workers > 1 else ''}, predicted / measured: {spread(found)}")


def both(path: str, components: int, workers: int) -> tuple[float, float]:
    """Seconds of a lap, predicted and measured."""
    model = DPMixture(
        DiagonalGaussian(),
        initial="k-means++",
        initial_components=components,
        schedule=Memoized(BATCHES, 1),
        tolerance=0.0,
        max_laps=LAPS,
        random_state=0,
    )
    backend = local_backend(workers)
    try:
        cores = float(len(os.sched_getaffinity(0)))
        found = plan(model.spec(), ZarrSource.open(path), components, workers, LAPS, backend, cores=cores)
        *_, (_, last) = model.iter_fit(path, backend=backend)
    finally:
        backend.close()
    return found.forecast.lap, last.seconds


if __name__ == "__main__":  # workers import this file
    main()
