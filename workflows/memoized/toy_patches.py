"""Toy patches: are eight models of 5x5 pixels found from one cluster, and what does inference reach without births?

After the toy data of Hughes & Sudderth (2013). Each of eight zero-mean Gaussians is a strong edge through the middle of
the patch, at angles that differ by 22.5 degrees. Pixels on one side of the edge share a level with variance 1, and have
noise of standard deviation 0.1. 100,000 patches are drawn with equal weights, anew for each seed.

From one cluster, with default moves, inference is memoized with 1, 10, 50 and 100 batches. From 25 clusters of
k-means++ it is batch, memoized and, at several rates (tau + t)^-kappa, stochastic, without moves; and memoized with
merges and deletes only; 50 laps each, three seeds. A model counts as found if a cluster holds more than half of its
patches, and these are more than half of the cluster. All other settings are the defaults; nothing was chosen on these
data.

Written to --out: results, one file per run, which are not repeated; table.csv, table.txt, traces.png, models.png.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from shared import Fields, Kept, fixed_schedules, follow, options, spread, write_table

from dpdist import Delete, DPMixture, Merge
from dpdist.data.arrays import ArraySource
from dpdist.inference.schedules import Memoized
from dpdist.models.families import ZeroMeanGaussian

SIDE, MODELS, START = 5, 8, 25
NOISE = 0.1


class Size(NamedTuple):
    """How large the comparison is."""

    rows: int
    seeds: int  # from one cluster
    fixed_seeds: int  # from 25
    batches: tuple[int, ...]
    laps: int  # at most, where the number of clusters stays


#: Laps at most from one cluster; all end sooner.
LAPS = 100
FULL, SMALL = Size(100_000, 10, 3, (1, 10, 50, 100), 50), Size(5_000, 1, 1, (1, 10), 10)


def edges() -> np.ndarray:
    """On which side of its edge each pixel of a model is: (8, 25), 0 or 1."""
    middle = np.arange(SIDE) - (SIDE - 1) / 2
    y, x = (grid.ravel() for grid in np.meshgrid(middle, middle, indexing="ij"))
    angles = np.arange(MODELS)[:, None] * np.pi / MODELS
    return (np.cos(angles) * x + np.sin(angles) * y > 1e-9).astype(int)


def draw_patches(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Patches (rows, 25), and the model of each."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(MODELS, size=rows)
    levels = rng.standard_normal((rows, 2))
    x = np.take_along_axis(levels, edges()[labels], axis=1)
    return x + NOISE * rng.standard_normal(x.shape), labels


def models_found(found: np.ndarray, labels: np.ndarray) -> int:
    """Models of which a cluster holds most patches, and most of whose patches are the model's."""
    table = np.zeros((found.max() + 1, MODELS), dtype=int)
    np.add.at(table, (found, labels), 1)
    both = np.maximum(table.sum(axis=1, keepdims=True), table.sum(axis=0, keepdims=True))
    return int((table > both / 2).sum())


def estimators(size: Size, seed: int) -> dict[str, DPMixture]:
    """What is compared, by name."""

    def model(**given: object) -> DPMixture:
        return DPMixture(ZeroMeanGaussian(), random_state=seed, **given)

    most = size.batches[-1]
    start = {"initial": "k-means++", "initial_components": START, "max_laps": size.laps}
    grown = {f"from one, {number} batches": model(max_laps=LAPS, schedule=Memoized(number)) for number in size.batches}
    fixed = {
        f"from {START}, {name}": model(**start, schedule=way, moves=[]) for name, way in fixed_schedules(most).items()
    }
    fewer = model(**start, schedule=Memoized(most), moves=[Merge(), Delete()])
    if seed >= size.fixed_seeds:
        return grown
    return {**grown, **fixed, f"from {START}, merges and deletes": fewer}


def run(model: DPMixture, x: np.ndarray, labels: np.ndarray, batches: int) -> Fields:
    """One fit, and how many models it found."""
    source = ArraySource(x, partition_rows=-(-len(x) // batches))
    fitted = follow(model, source)
    return {"found": models_found(model.predict(source), labels), **fitted}


def run_all(size: Size, kept: Kept) -> list[Fields]:
    """Every method with every seed."""
    runs = []
    for seed in range(size.seeds):
        x, labels = draw_patches(size.rows, seed)
        for name, model in estimators(size, seed).items():
            key = {"method": name, "seed": seed, "rows": size.rows, "laps at most": model.max_laps}
            runs.append(kept.once(key, partial(run, model, x, labels, size.batches[-1])))
    return runs


def of_method(runs: list[Fields], name: str) -> list[Fields]:
    """The runs of a method."""
    return [run for run in runs if run["method"] == name]


def table(runs: list[Fields]) -> list[list[object]]:
    """A line a method."""
    rows = []
    for name in dict.fromkeys(run["method"] for run in runs):
        mine = of_method(runs, name)
        exact = sum(run["components"] == run["found"] == MODELS for run in mine)
        columns = (("elbo", 4), ("components", 0), ("found", 0), ("laps", 0), ("seconds", 1))
        told = [spread([run[column] for run in mine], digits) for column, digits in columns]
        rows.append([name, f"{exact} of {len(mine)}", *told])
    return rows


def draw_traces(runs: list[Fields], path: Path) -> None:
    """ELBO a row and K by lap, of the first seed."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    first = [run for run in runs if run["seed"] == runs[0]["seed"]]
    for run in first:
        laps, style = np.arange(1, run["laps"] + 1), "-" if run["method"].startswith("from one") else "--"
        left.plot(laps, run["elbo_trace"], style, label=run["method"])
        right.plot(laps, run["component_trace"], style)
    left.set(xlabel="lap", ylabel="ELBO per row (nats)", xscale="log")
    left.set_ylim(bottom=min(run["elbo"] for run in first) - 1)
    right.set(xlabel="lap", ylabel="clusters", xscale="log")
    left.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_models(size: Size, path: Path) -> None:
    """Three patches of each true model above three of each cluster found from one."""
    x, labels = draw_patches(size.rows, 0)
    found = next(iter(estimators(size, 0).values())).fit_predict(x)
    kinds = [("true", labels, MODELS), ("found", found, int(found.max()) + 1)]
    columns = max(count for *_, count in kinds)
    figure, axes = plt.subplots(6, columns, figsize=(columns, 6.4), layout="constrained")
    for axis in axes.flat:
        axis.axis("off")
    for above, (name, of, count) in zip((0, 3), kinds, strict=True):
        for k in range(count):
            for i, patch in enumerate(x[of == k][:3]):
                axes[above + i, k].imshow(patch.reshape(SIDE, SIDE), cmap="gray", vmin=-2, vmax=2)
            axes[above, k].set_title(f"{name} {k}", fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Run the comparison."""
    parser = options(__doc__, "toy_patches")
    parser.add_argument("--seeds", type=int, help="how many; default 10, small 1")
    given = parser.parse_args()
    size = SMALL if given.small else FULL
    size = size._replace(seeds=given.seeds or size.seeds)
    runs = run_all(size, Kept(given.out))
    lines = table(runs)
    write_table(["method", "8 of 8, none else", "ELBO a row", "K", "found", "laps", "seconds"], lines, given.out)
    draw_traces(runs, given.out / "traces.png")
    draw_models(size, given.out / "models.png")
    for name, exact, *_ in lines:
        if str(name).startswith("from one"):
            assert exact == f"{size.seeds} of {size.seeds}", f"{name}: all eight models, and no others, {exact} times"


if __name__ == "__main__":
    main()
