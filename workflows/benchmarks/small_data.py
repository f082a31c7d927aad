"""Speed on small data: processor time to reach an ELBO, and time of a lap compared with scikit-learn's iteration.

With ``--before``, another tree of this package is fitted alternately with this one, seed by seed. For each seed the
table shows when each of them reached the final ELBO of the other tree minus 0.001 nats per row; "never" if this tree
ended lower. A lap has the default number of batches and no moves; an iteration is E-step, M-step and lower bound, as in
``lap.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import alternate, digits, draw_clusters, options, print_table, spread
from lap import first_labels, our_lap, their_iteration
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_moons
from threadpoolctl import threadpool_limits

SEEDS = 3
#: Nats a row by which an ELBO may be missed.
NEAR = 1e-3
#: Rows, columns and components of a lap.
LAP = (10_000, 50, 16)
SMALL_LAP = (2_000, 10, 4)


class Lap(NamedTuple):
    """What is known at the end of a lap."""

    seconds: float
    elbo: float  # nats a row
    components: int


def data_sets(data: Path, small: bool) -> dict[str, np.ndarray]:
    """What is fitted, by name."""
    if small:
        return {"clusters": draw_clusters(900, 4, 5, seed=0)[0]}
    leading = digits(data, 40)
    rows = draw_clusters(7_000, 40, 30, seed=0, apart=1.0)[0] if leading is None else leading[:7_000]
    return {
        "iris": load_iris().data,
        "wine": load_wine().data,
        "cancer": load_breast_cancer().data,
        "moons": make_moons(2_000, noise=0.1, random_state=0)[0],
        "counts": np.random.default_rng(0).poisson([3, 5, 2], (600, 3)).astype(np.float64),
        "digits": load_digits().data,
        "leading": rows,
    }


def fit(path: str, seed: int) -> None:
    """Fit stored rows in this process and print each lap."""
    from dpdist import DPMixture
    from dpdist.execution import SerialBackend

    x = np.load(path)
    for _ in DPMixture(max_laps=4).iter_fit(x[:500], backend=SerialBackend()):
        pass  # so that kernels are compiled, or read
    began = time.process_time()
    told = [
        Lap(time.process_time() - began, info.elbo / len(x), info.n_components)
        for _, info in DPMixture(random_state=seed, max_laps=200).iter_fit(x, backend=SerialBackend())
    ]
    print(json.dumps(told))


def laps_of(tree: Path, path: Path, seed: int) -> list[Lap]:
    """The laps of a fit by the package in `tree`, on one thread of a process of its own."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, __file__, "--fit", str(path), str(seed)]
    environment = {**os.environ, **threads, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [Lap(*each) for each in json.loads(done.stdout.splitlines()[-1])]


def until(laps: list[Lap], elbo: float) -> float | None:
    """Seconds until an ELBO was reached, if it was."""
    return next((lap.seconds for lap in laps if lap.elbo >= elbo - NEAR), None)


def fits(name: str, path: Path, trees: dict[str, Path], seeds: int) -> list[list[object]]:
    """Rows of the table of fits; the first of the `trees` sets the goal."""
    table: list[list[object]] = []
    for seed in range(seeds):
        found = [laps_of(tree, path, seed) for tree in trees.values()]
        goal = found[0][-1].elbo
        for tree, laps in zip(trees, found, strict=True):
            reached, end = until(laps, goal), laps[-1]
            told = "never" if reached is None else f"{reached:.2f}"
            table.append([name, seed, tree, told, f"{end.seconds:.2f}", f"{end.elbo:.3f}", end.components])
    return table


def lap_against_iteration(data: Path, size: tuple[int, int, int], rounds: int) -> None:
    """Print processor time of a lap, of an iteration, and their ratio."""
    rows, columns, components = size
    leading = None if size is SMALL_LAP else digits(data, columns)
    x = draw_clusters(rows, columns, components, seed=0, apart=1.0)[0] if leading is None else leading[:rows]
    labels = first_labels(x, components)
    with threadpool_limits(1):
        timed = {"dpdist": our_lap(x, labels, None, "float64"), "scikit-learn": their_iteration(x, labels)}
        seconds = alternate(timed, rounds, time.process_time)
    print(f"\nN={rows} D={columns} K={components}, {rounds} rounds, one thread")
    ratio = seconds["dpdist"] / seconds["scikit-learn"]
    table = [[name, spread(own, 4)] for name, own in seconds.items()]
    print_table(["lap or iteration", "processor seconds"], [*table, ["ratio", spread(ratio)]])


def main() -> None:
    """Fit, time, print."""
    parser = options(__doc__)
    parser.add_argument("--before", type=Path, help="another tree of this package, to compare with")
    parser.add_argument("--sets", nargs="+", help="names of the data sets that are fitted; default all")
    parser.add_argument("--fit", nargs=2, help="used by the benchmark itself")
    given = parser.parse_args()
    if given.fit:
        fit(given.fit[0], int(given.fit[1]))
        return
    here = Path(__file__).resolve().parents[2]
    trees = {"this": here} if given.before is None else {"before": given.before.resolve(), "this": here}
    given.out.mkdir(parents=True, exist_ok=True)
    sets = data_sets(given.data, given.small)
    if unknown := set(given.sets or ()) - sets.keys():
        parser.error(f"--sets takes {', '.join(sets)}; got {', '.join(sorted(unknown))}")
    for name in given.sets or sets:
        x = sets[name]
        path = given.out / f"small_data_{name}.npy"
        np.save(path, x)
        table = fits(name, path, trees, 1 if given.small else SEEDS)
        print_table(["data", "seed", "tree", "to the ELBO (s)", "to the end (s)", "ELBO a row", "K"], table)
    lap_against_iteration(given.data, SMALL_LAP if given.small else LAP, 3 if given.small else 15)


if __name__ == "__main__":
    main()
