"""Is the command line as fast as Python on small data?

Fits 5,000 x 36 drawn rows in a Zarr array alternately with ``dpdist fit`` and ``DPMixture().fit``, and also with
``dpdist fit --max-laps 1``, which is nearly all start-up. Both must give the same bits. Prints the seconds of each and
the ratio (command - start-up) / Python.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from common import alternate, draw_clusters, options, spread, store_rows

import dpdist
from dpdist.storage.checkpoint import RunStore

COMMAND = [sys.executable, "-m", "dpdist"]


def fit_by_command(rows: str, run: Path, *arguments: str) -> None:
    """Fit in a process of its own, and keep the run."""
    given = ["fit", rows, "--out", str(run), "--overwrite", "--random-state", "0", *arguments]
    subprocess.run([*COMMAND, *given], check=True, capture_output=True)


def bits(model: dpdist.DPMixture) -> tuple[object, ...]:
    """What a fit found."""
    return model.elbo_, model.n_iter_, model.component_ids_.tobytes(), model.weights_.tobytes()


def main() -> None:
    """Time the pairs and compare what they found."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rows, rounds = (600, 1) if given.small else (5000, given.rounds)
    given.out.mkdir(parents=True, exist_ok=True)
    x, _ = draw_clusters(rows, 36, 12, seed=0, apart=2.0)
    path = store_rows(given.out / f"rows-{rows}.zarr", x.shape, "float64", [x], chunk=rows)
    run, short = given.out / "run.zarr", given.out / "short.zarr"
    model = dpdist.DPMixture(random_state=0)
    seconds = alternate(
        {
            "Python": lambda: model.fit(path),
            "dpdist fit": lambda: fit_by_command(path, run),
            "start-up": lambda: fit_by_command(path, short, "--max-laps", "1"),
        },
        rounds,
    )
    assert bits(dpdist.load(run)) == bits(model), "the command found something else than Python"
    for name, times in seconds.items():
        print(f"{name}: {spread(times)} s")
    ratios = (seconds["dpdist fit"] - seconds["start-up"]) / seconds["Python"]
    print(f"(command - start-up) / Python: {spread(ratios)}, {model.n_iter_} laps, {RunStore.open(run).number} commits")


if __name__ == "__main__":
    main()
