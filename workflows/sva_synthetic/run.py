"""Nine overlapping Gaussian clusters in the plane: one sequential pass beside two samplers and stochastic inference.

After section 6.1 of Lin (2013). SVA and SVA-PM pass once over 10,000 rows; SVA-PM merges by evidence, and in a second
form by the distance of responsibilities relative to the weight of both. Collapsed Gibbs sampling, split-merge sampling
and truncation-free variational inference each have --seconds. All know the model: unit variance, means from
N(0, 100^2 I), concentration 1. The score is the mean log predictive density of 2,000 held-out rows, in nats; time spent
on it, and on compilation, is not counted. Of the samplers it is that of the current state, not a mean over states.

The passes are repeated on data of every seed; the others, and the pictures, have the first seed's data.

Written to --out: results.json, results.md, heldout.png and components.png. ``--small`` takes 2,000 rows and 1 second,
and also compares the samplers with all partitions of a few rows.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from clusters import Model, Statistics
from data import CLUSTERS, Data, Snapshot, draw_data, follow, true_score
from exact import size_frequency, size_posterior
from gibbs import gibbs
from pictures import draw_components, draw_holdout
from split_merge import split_merge
from truncation_free import truncation_free

from dpdist import SVA
from dpdist.models.families import IsotropicGaussian

HERE = Path(__file__).resolve().parent
#: The shared data folder where neither ``--data`` nor ``DPDIST_SHARED`` names one: beside the repository.
SHARED = HERE.parents[2] / "shared" / "data"
MODEL = Model()
#: What each sequential method adds to the estimator's settings. Merging is the default.
SEQUENTIAL: dict[str, dict[str, Any]] = {
    "SVA": {"merge": None, "prune": 0.0},
    "SVA-PM": {},
    "SVA-PM by distance": {"merge": "distance"},
}
BASELINES: dict[str, Callable[[np.ndarray, Model, int], Iterator[Statistics]]] = {
    "Gibbs": gibbs,
    "split-merge": split_merge,
    "truncation-free": truncation_free,
}
METHODS = (*SEQUENTIAL, *BASELINES)
#: Rows on which methods are compiled.
WARM_ROWS = 50
#: A score is near the truth within so many nats of it.
NEAR = 0.01
#: In the small run: rows whose partitions are all visited, draws, and how far a probability may be off.
FEW, DRAWS, OFF = 6, 20_000, 0.03


class Size(NamedTuple):
    """How large the comparison is."""

    rows: int
    holdout: int
    seconds: float  # of each baseline
    spacing: float = 5.0  # of the grid of means, in standard deviations

    def draw(self, seed: int) -> Data:
        """The data of a seed."""
        return draw_data(seed, self.rows, self.holdout, self.spacing)


class Run(NamedTuple):
    """What one method did on one seed's data."""

    method: str
    seed: int
    seconds: list[float]
    scores: list[float]
    sizes: list[int]
    weights: np.ndarray  # (K,) at the end
    means: np.ndarray  # (K, 2) at the end
    truth: float  # score of the distribution that the rows come from


FULL, SMALL = Size(10_000, 2_000, 60.0), Size(2_000, 1_000, 1.0)
#: Of the data.
SEEDS, FEW_SEEDS = tuple(range(10)), (0, 1)


def run_sequential(method: str, seed: int, size: Size) -> Run:
    """One sequential pass, scored after every partition of the rows."""
    data = size.draw(seed)
    estimator = sequential(method)
    infos = [info for _, info in estimator.iter_fit(data.x, holdout=data.holdout)]
    seconds = np.cumsum([info.seconds for info in infos])
    scored = [i for i, info in enumerate(infos) if np.isfinite(info.score)]
    traces = [[float(seconds[i]) for i in scored], [infos[i].score for i in scored]]
    traces.append([infos[i].n_components for i in scored])
    means = estimator.components_["mean"].values
    return Run(method, seed, *traces, estimator.weights_, means, true_score(data, MODEL))


def sequential(method: str) -> SVA:
    """The estimator of a sequential method."""
    family = IsotropicGaussian(MODEL.variance, MODEL.mean_variance, 0.0)
    return SVA(family, concentration=MODEL.concentration, parallel=False, shuffle=False, **SEQUENTIAL[method])


def run_baseline(method: str, seed: int, size: Size) -> Run:
    """A baseline until its time is up."""
    data = size.draw(seed)
    found = list(until(size.seconds, follow(BASELINES[method](data.x, MODEL, seed), data.holdout, MODEL)))
    last = found[-1]
    sizes = [len(snapshot.counts) for snapshot in found]
    seconds, scores = [snapshot.seconds for snapshot in found], [snapshot.score for snapshot in found]
    weights = last.counts / last.counts.sum()
    return Run(method, seed, seconds, scores, sizes, weights, last.means, true_score(data, MODEL))


def until(seconds: float, snapshots: Iterator[Snapshot]) -> Iterator[Snapshot]:
    """Snapshots up to the first one after so many seconds."""
    for snapshot in snapshots:
        yield snapshot
        if snapshot.seconds >= seconds:
            return


def warm_up(methods: Sequence[str]) -> None:
    """Compile what the methods need."""
    x = SMALL.draw(0).x[:WARM_ROWS]
    for method in methods:
        if method in SEQUENTIAL:
            sequential(method).fit(x)
        else:
            list(islice(BASELINES[method](x, MODEL, 0), 3))


def run_all(methods: Sequence[str], seeds: Sequence[int], size: Size) -> tuple[list[Run], list[Run]]:
    """Every method on the first seed's data, and the sequential ones on every seed's."""
    compared = []
    for method in methods:
        run = run_sequential if method in SEQUENTIAL else run_baseline
        compared.append(run(method, seeds[0], size))
        print(f"{method}: held-out {compared[-1].scores[-1]:.4f}, K {compared[-1].sizes[-1]}", flush=True)
    repeated = [run_sequential(method, seed, size) for seed in seeds for method in methods if method in SEQUENTIAL]
    return compared, repeated


def near_truth(run: Run) -> str:
    """Seconds until the score is first near the truth."""
    near = np.flatnonzero(np.array(run.scores) > run.truth - NEAR)
    return f"{run.seconds[near[0]]:.3f}" if len(near) else "never"


def comparison_table(runs: list[Run]) -> list[str]:
    """The methods as a Markdown table."""
    lines = [
        f"| method | held-out, nats/row | below the truth | seconds | to within {NEAR} | K | clusters above 1 % |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        score, large = run.scores[-1], int((run.weights > 0.01).sum())
        numbers = f"{score:.4f} | {run.truth - score:.4f} | {run.seconds[-1]:.3f} | {near_truth(run)}"
        lines.append(f"| {run.method} | {numbers} | {run.sizes[-1]} | {large} |")
    return lines


def seeds_table(runs: list[Run]) -> list[str]:
    """The sequential passes over every seed's data as a Markdown table."""
    lines = ["| method | seed | K | held-out, nats/row | below the truth | seconds |", "|---|---|---|---|---|---|"]
    for run in sorted(runs, key=lambda run: METHODS.index(run.method)):
        score = run.scores[-1]
        numbers = f"{run.sizes[-1]} | {score:.4f} | {run.truth - score:.4f} | {run.seconds[-1]:.4f}"
        lines.append(f"| {run.method} | {run.seed} | {numbers} |")
    return lines


def as_written(run: Run) -> dict[str, Any]:
    """A run as JSON takes it."""
    return {name: np.asarray(value).tolist() for name, value in run._asdict().items()}


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared, out = Path(os.environ.get("DPDIST_SHARED", SHARED)), Path("build") / "workflows" / "sva_synthetic"
    parser.add_argument("--data", type=Path, default=shared, help="folder of the shared data sets; none is read")
    parser.add_argument("--out", type=Path, default=out, help="folder for results")
    parser.add_argument("--small", action="store_true", help="a reduced size that runs in seconds and checks results")
    parser.add_argument("--seconds", type=float, help="of each baseline; default 60, small 1")
    parser.add_argument(
        "--spacing", type=float, default=FULL.spacing, help="of means, in standard deviations; default 5"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="of the data; default 0 to 9, small 0 and 1")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="which to run")
    return parser.parse_args()


def check_samplers() -> None:
    """Both samplers visit numbers of clusters as often as the sum over all partitions says."""
    model = Model(variance=1.0, mean_variance=9.0, concentration=1.0)
    x = 2 * np.random.default_rng(0).standard_normal((FEW, 2))
    exact = size_posterior(x, model)
    for method, sampler in (("Gibbs", gibbs), ("split-merge", split_merge)):
        off = np.abs(size_frequency(sampler(x, model, 0), FEW, DRAWS) - exact).max()
        assert off < OFF, f"{method}: a number of clusters is visited {off:.3f} too often or too rarely"


def check_small(runs: list[Run]) -> None:
    """No score beats the truth by more than chance, and SVA-PM is not behind the worst baseline."""
    check_samplers()
    scores = {run.method: run.scores[-1] for run in runs}
    for run in runs:
        assert run.scores[-1] < run.truth + 0.05, f"{run.method}: better than the truth"
    baselines = [scores[method] for method in BASELINES if method in scores]
    if baselines and "SVA-PM" in scores:
        assert scores["SVA-PM"] > min(baselines) - 0.05, "SVA-PM scores worse than every baseline"


def check_full(runs: list[Run]) -> None:
    """SVA-PM finds as many clusters as there are, on every seed."""
    for run in runs:
        assert run.method != "SVA-PM" or run.sizes[-1] == CLUSTERS, f"SVA-PM, seed {run.seed}: K {run.sizes[-1]}"


def write(out: Path, size: Size, x: np.ndarray, compared: list[Run], repeated: list[Run]) -> None:
    """Tables and pictures."""
    lines = [*comparison_table(compared), "", *seeds_table(repeated)]
    print("\n".join(lines))
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.md").write_text("\n".join(lines) + "\n")
    written = {"size": size._asdict(), "compared": [as_written(run) for run in compared]}
    written["repeated"] = [as_written(run) for run in repeated]
    (out / "results.json").write_text(json.dumps(written, indent=1) + "\n")
    draw_holdout(compared, size.holdout, out / "heldout.png")
    draw_components(x, compared, out / "components.png")


def main() -> None:
    """Run the workflow."""
    given = options()
    size = SMALL if given.small else FULL
    size = size._replace(seconds=given.seconds or size.seconds, spacing=given.spacing)
    warm_up(given.methods)
    seeds = given.seeds or (FEW_SEEDS if given.small else SEEDS)
    compared, repeated = run_all(given.methods, seeds, size)
    write(given.out, size, size.draw(seeds[0]).x, compared, repeated)
    if given.small:
        check_small(compared)
    elif given.spacing == FULL.spacing:
        check_full(repeated)


if __name__ == "__main__":
    main()
