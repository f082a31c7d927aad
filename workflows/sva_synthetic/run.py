"""Nine overlapping Gaussian clusters in the plane: one sequential pass compared with two samplers and stochastic
inference.

After section 6.1 of Lin (2013). SVA and SVA-PM pass once over 10,000 rows. SVA-PM prunes, and merges clusters if this
raises the evidence; or, as in the paper, if their responsibilities differ little, d_rho < epsilon, where d_rho is the
mean of |rho_a - rho_b| over all rows; or relative to the weight of both. Collapsed Gibbs sampling, split-merge sampling
and truncation-free variational inference run until they have converged: the mean scores of the last quarter of the time
and of the quarter before differ by at most 0.0005 nats per row, and the number of clusters above 1 percent was constant
in that time. All methods know the model: unit variance, means from N(0, 100^2 I), concentration 1.

The score is the mean log predictive density of 2,000 held-out rows, in nats; scoring and compilation do not count in
the time. For a sampler it is the mean over the states of the last half of its time. All methods have the same data for
each seed. Several epsilons of d_rho are shown because no suitable value was known; they were not chosen on other data.

Written to --out: results.jsonl, which is continued after an interruption; table.csv, table.txt; traces.csv, heldout.png
and components.png of the first seed. ``--small`` uses two seeds, gives the baselines less time, and also compares the
samplers with all partitions of a few rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from clusters import Model, Statistics
from data import CLUSTERS, Data, Snapshot, draw_data, follow, true_score
from exact import size_frequency, size_posterior
from gibbs import gibbs
from pictures import draw_components, draw_holdout
from split_merge import split_merge
from truncation_free import truncation_free

from dpdist import SVA
from dpdist.models.families import IsotropicGaussian

sys.path.append(str(Path(__file__).resolve().parents[1]))
from results import options, spread

MODEL = Model()
EVIDENCE = "SVA-PM by evidence"
#: What each sequential method adds to the estimator's settings.
SEQUENTIAL: dict[str, dict[str, Any]] = {
    "SVA": {"merge": None, "prune": 0.0},
    EVIDENCE: {"merge": "evidence"},
    **{
        f"SVA-PM by d_rho < {most}": {"merge": "absolute distance", "merge_threshold": most}
        for most in (0.01, 0.02, 0.05, 0.1, 0.2)
    },
    **{
        f"SVA-PM by relative d_rho < {most}": {"merge": "distance", "merge_threshold": most} for most in (0.5, 0.8, 0.9)
    },
}
BASELINES: dict[str, Callable[[np.ndarray, Model, int], Iterator[Statistics]]] = {
    "Gibbs": gibbs,
    "split-merge": split_merge,
    "truncation-free": truncation_free,
}
METHODS = (*SEQUENTIAL, *BASELINES)
#: Methods in pictures.
SHOWN = ("SVA", EVIDENCE, "SVA-PM by d_rho < 0.05", *BASELINES)
#: Rows on which methods are compiled.
WARM_ROWS = 50
#: A baseline's score stands still within so many nats a row, and a run is near its own end within so many.
STILL, NEAR = 0.0005, 0.001
#: Share of rows above which a cluster is counted whatever the method.
LARGE = 0.01
#: In the small run: rows whose partitions are all visited, draws, and how far a probability may be off.
FEW, DRAWS, OFF = 6, 20_000, 0.03


class Size(NamedTuple):
    """How large the comparison is."""

    rows: int
    holdout: int
    least: float  # seconds of each baseline
    most: float
    spacing: float = 5.0  # of the grid of means, in standard deviations

    def draw(self, seed: int) -> Data:
        """The data of a seed."""
        return draw_data(seed, self.rows, self.holdout, self.spacing)


class Run(NamedTuple):
    """What one method did on one seed's data; traces are by the time of each score."""

    method: str
    seed: int
    seconds: list[float]
    scores: list[float]
    sizes: list[int]
    large: list[int]
    score: float
    converged: bool
    weights: list[float]  # (K,) at the end
    means: list[list[float]]  # (K, 2) at the end
    truth: float  # score of the distribution that the rows come from


FULL, SMALL = Size(10_000, 2_000, 2.0, 600.0), Size(10_000, 2_000, 1.0, 60.0)
#: How many data sets.
SEEDS, FEW_SEEDS = 10, 2


def run_sequential(method: str, seed: int, size: Size) -> Run:
    """One sequential pass, scored after every partition of the rows."""
    data = size.draw(seed)
    estimator = sequential(method)
    infos = [info for _, info in estimator.iter_fit(data.x, holdout=data.holdout)]
    seconds = np.cumsum([info.seconds for info in infos]).tolist()
    scored = [i for i, info in enumerate(infos) if np.isfinite(info.score)]
    scores, sizes = [infos[i].score for i in scored], [infos[i].n_components for i in scored]
    large = [int((infos[i].counts > LARGE * infos[i].rows).sum()) for i in scored]
    means = estimator.components_["mean"].values.tolist()
    traces = [seconds[i] for i in scored], scores, sizes, large
    weights = estimator.weights_.tolist()
    return Run(method, seed, *traces, scores[-1], True, weights, means, true_score(data, MODEL))


def sequential(method: str) -> SVA:
    """The estimator of a sequential method."""
    family = IsotropicGaussian(MODEL.variance, MODEL.mean_variance, 0.0)
    return SVA(family, concentration=MODEL.concentration, parallel=False, shuffle=False, **SEQUENTIAL[method])


def run_baseline(method: str, seed: int, size: Size) -> Run:
    """A baseline until it has converged, or its time is up."""
    data, found = size.draw(seed), list[Snapshot]()
    for snapshot in follow(BASELINES[method](data.x, MODEL, seed), data.holdout, MODEL):
        found.append(snapshot)
        converged = snapshot.seconds >= size.least and stands_still(found)
        if converged or snapshot.seconds >= size.most:
            break
    last = found[-1]
    traces = [one.seconds for one in found], [one.score for one in found], [len(one.counts) for one in found]
    score = float(np.mean([one.score for one in found if one.seconds > last.seconds / 2]))
    weights = (last.counts / last.counts.sum()).tolist()
    large = [large_clusters(one) for one in found]
    return Run(method, seed, *traces, large, score, converged, weights, last.means.tolist(), true_score(data, MODEL))


def large_clusters(snapshot: Snapshot) -> int:
    """Clusters of more than one percent of the rows."""
    return int((snapshot.counts > LARGE * snapshot.counts.sum()).sum())


def stands_still(found: Sequence[Snapshot]) -> bool:
    """Whether score and large clusters are those of the quarter of the time before the last."""
    end = found[-1].seconds
    before, after = ([one for one in found if start < one.seconds / end <= start + 0.25] for start in (0.5, 0.75))
    if not before or len({large_clusters(one) for one in (*before, *after)}) > 1:
        return False
    gained = np.mean([one.score for one in after]) - np.mean([one.score for one in before])
    return abs(float(gained)) < STILL


def warm_up(methods: Sequence[str]) -> None:
    """Compile what the methods need."""
    x = SMALL.draw(0).x[:WARM_ROWS]
    for method in methods:
        if method in SEQUENTIAL:
            sequential(method).fit(x)
        else:
            list(islice(BASELINES[method](x, MODEL, 0), 3))


def run_all(methods: Sequence[str], seeds: int, size: Size, out: Path) -> list[Run]:
    """Every method on every seed's data, less what is in results.jsonl already."""
    path = out / "results.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(run["method"], run["seed"]): Run(**run) for of, run in lines if Size(*of) == size}
    for seed in range(seeds):
        for method in methods:
            if (method, seed) in done:
                continue
            run = (run_sequential if method in SEQUENTIAL else run_baseline)(method, seed, size)
            done[method, seed] = run
            with path.open("a") as file:
                file.write(json.dumps([size, run._asdict()]) + "\n")
            print(f"{method}, seed {seed}: held-out {run.score:.4f}, K {run.sizes[-1]}", flush=True)
    return [done[method, seed] for method in methods for seed in range(seeds)]


def seconds_to_end(run: Run) -> float:
    """Seconds until the score is first near the one it ends with."""
    return run.seconds[int(np.argmax(np.array(run.scores) > run.score - NEAR))]


def of_method(runs: Sequence[Run], method: str) -> list[Run]:
    """The runs of a method."""
    return [run for run in runs if run.method == method]


def table(runs: Sequence[Run]) -> pd.DataFrame:
    """A line a method; ranges are over seeds."""
    lines = []
    for method in dict.fromkeys(run.method for run in runs):
        mine = of_method(runs, method)
        lines.append(
            {
                "method": method,
                "just nine": f"{sum(run.sizes[-1] == CLUSTERS for run in mine)} of {len(mine)}",
                "K": spread([run.sizes[-1] for run in mine], 0),
                "above 1 %": spread([run.large[-1] for run in mine], 0),
                "below the truth": spread([run.truth - run.score for run in mine], 4),
                "seconds to its end": spread([seconds_to_end(run) for run in mine], 3),
                "seconds": spread([run.seconds[-1] for run in mine], 3),
                "converged": f"{sum(run.converged for run in mine)} of {len(mine)}",
            }
        )
    return pd.DataFrame(lines)


def trace(runs: Sequence[Run], holdout: int) -> pd.DataFrame:
    """Joint log density of the held-out rows, and clusters, against seconds."""
    return pd.concat(
        pd.DataFrame(
            {
                "method": run.method,
                "seed": run.seed,
                "seconds": run.seconds,
                "joint score": holdout * np.array(run.scores),
                "K": run.sizes,
            }
        )
        for run in runs
    )


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = options(__doc__, "sva_synthetic")
    parser.add_argument("--seconds", type=float, help="of each baseline at most; default 600, small 60")
    parser.add_argument(
        "--spacing", type=float, default=FULL.spacing, help="of means, in standard deviations; default 5"
    )
    parser.add_argument("--seeds", type=int, help="how many; default 10, small 2")
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


def check(runs: Sequence[Run], spacing: float) -> None:
    """By evidence just nine clusters are found on every seed, as near the truth as what converged; none beats it."""
    baselines = [run for run in runs if run.method in BASELINES]
    for run in runs:
        assert run.score < run.truth + 0.05, f"{run.method}, seed {run.seed}: better than the truth"
        assert run.converged, f"{run.method}, seed {run.seed}: has not converged; more --seconds?"
        if run.method == EVIDENCE and spacing == FULL.spacing:
            assert run.sizes[-1] == CLUSTERS, f"{run.method}, seed {run.seed}: K {run.sizes[-1]}"
            best = max((other.score for other in baselines if other.seed == run.seed), default=-np.inf)
            assert run.score > best - 0.02, f"{run.method}, seed {run.seed}: a baseline is better"


def main() -> None:
    """Run the workflow."""
    given = parsed()
    size = SMALL if given.small else FULL
    size = size._replace(most=given.seconds or size.most, spacing=given.spacing)
    given.out.mkdir(parents=True, exist_ok=True)
    warm_up(given.methods)
    runs = run_all(given.methods, given.seeds or (FEW_SEEDS if given.small else SEEDS), size, given.out)
    shown = [method for method in SHOWN if method in given.methods]
    first = [run for method in shown for run in of_method(runs, method) if run.seed == 0]
    draw_holdout(first, size.holdout, given.out / "heldout.png")
    draw_components(size.draw(0).x, first, given.out / "components.png")
    trace(runs, size.holdout).to_csv(given.out / "traces.csv", index=False)
    lines = table(runs)
    lines.to_csv(given.out / "table.csv", index=False)
    text = lines.to_string(index=False)
    (given.out / "table.txt").write_text(text + "\n")
    print(text)
    if given.small:
        check_samplers()
    check(runs, size.spacing)


if __name__ == "__main__":
    main()
