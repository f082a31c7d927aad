"""MNIST: births from one cluster compared with a hundred clusters under batch, memoized and stochastic inference.

After Hughes & Sudderth (2013), section 5: digits in their first 50 principal components, Gaussians with full
covariance. Of 60,000 digits in random order, 50,000 are fitted, also by the components; 10,000 are held out. Each start
is a hundred k-means++ seeds with the digits nearest to them: the same for memoized inference with all moves and without
any, for batch inference, and for stochastic inference at every rate (tau + t)^-kappa. From one cluster, a start is the
seed of the moves' draws. All methods have at most 60 laps, fewer if the ELBO per row settles to 1e-5; products are
float32. All other settings are the defaults, and nothing was chosen on these data.

Reported for each run: the ELBO per digit, with all constants, and the ELBO after a further lap of batch inference,
because the noise of the last steps of stochastic inference lowers its reported ELBO; K; the share of digits that are
the most frequent digit of their cluster; the adjusted Rand index of clusters and digits; the mean log density of
held-out digits; laps; processor seconds.

If MNIST is not available, scikit-learn's digits in 20 components are used.

Written to --out: results, one file per run, which are not repeated; table.csv, table.txt and boxes.png of all results
so far, from any call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from shared import Fields, Kept, follow, options, purity, spread, write_table
from sklearn.cluster import kmeans_plusplus
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from dpdist import DPMixture
from dpdist.data.arrays import ArraySource
from dpdist.inference.schedules import Memoized, Schedule, Stochastic
from dpdist.models.families import Gaussian

COLUMNS, FEW_COLUMNS = 50, 20
#: Share of the digits that are held out.
HELD_OUT = 1 / 6
#: From one cluster, from a hundred, and all at once, as tables name them.
ONE, MANY, BATCH = "from one, moves", "from many, moves", "batch"
#: How names of methods begin.
KINDS = ("from one", "from many", "memoized", BATCH, "stochastic")


class Size(NamedTuple):
    """How large the comparison is."""

    starts: int
    clusters: int
    batches: tuple[int, ...]
    delays: tuple[float, ...]
    powers: tuple[float, ...]
    laps: int  # at most


FULL = Size(10, 100, (20, 100), (1.0, 10.0, 100.0), (0.5, 0.6, 0.75, 0.9), 60)
SMALL = Size(1, 20, (5, 10), (1.0, 100.0), (0.5, 0.9), 10)


class Digits(NamedTuple):
    """Principal components of digits, ``train`` (N, D) and ``test`` (H, D), and the digits of the first, (N,)."""

    train: np.ndarray
    test: np.ndarray
    labels: np.ndarray


class Way(NamedTuple):
    """A method: where it starts, how summaries become the total, which moves; the parameters of the estimator."""

    name: str
    batches: int
    told: dict[str, Any]


class Start:
    """A hundred clusters to begin with, found when they are first asked for."""

    def __init__(self, x: np.ndarray, clusters: int, seed: int) -> None:
        self._x, self._clusters, self._seed = x, clusters, seed

    @cached_property
    def labels(self) -> np.ndarray:
        """The nearest of the seeds, (N,)."""
        seeds, _ = kmeans_plusplus(self._x, self._clusters, random_state=self._seed)
        return np.asarray(((seeds**2).sum(axis=1) - 2 * self._x @ seeds.T).argmin(axis=1))


def read_digits(data: Path, small: bool) -> Digits:
    """MNIST, or scikit-learn's digits, in principal components of what is fitted."""
    path = data / "mnist" / "mnist_train60k.npz"
    if path.exists() and not small:
        stored = np.load(path)
        pixels, labels, columns = stored["images"].reshape(-1, 784) / 255, stored["labels"], COLUMNS
    else:
        stored = load_digits()
        pixels, labels, columns = stored.data / 16, stored.target, FEW_COLUMNS
    order = np.random.default_rng(0).permutation(len(pixels))
    pixels, labels = pixels[order], labels[order]
    train = len(pixels) - int(HELD_OUT * len(pixels))
    mean = pixels[:train].mean(axis=0)
    axes = np.linalg.eigh(np.cov(pixels[:train].T))[1][:, ::-1][:, :columns]
    rows = (pixels - mean) @ axes
    return Digits(rows[:train], rows[train:], labels[:train].astype(int))


def ways(size: Size, batches: int, start: Start) -> Iterator[Way]:
    """The methods with so many batches; batch inference has one, and is named once."""
    many = {"initial": start.labels, "moves": []}
    yield Way(ONE, batches, {"schedule": Memoized(batches)})
    yield Way(MANY, batches, {"initial": start.labels, "schedule": Memoized(batches)})
    yield Way("memoized", batches, {**many, "schedule": Memoized(batches)})
    if batches == size.batches[0]:
        yield Way(BATCH, 1, {**many, "schedule": Memoized(1)})
    for delay in size.delays:
        for power in size.powers:
            schedule: Schedule = Stochastic(batches, 0, delay, power)
            yield Way(f"stochastic {delay:g}, {power:g}", batches, {**many, "schedule": schedule})


def model(**told: Any) -> DPMixture:
    """What all methods are."""
    return DPMixture(Gaussian(), compute_dtype="float32", **told)


def fit(digits: Digits, way: Way, seed: int, size: Size) -> Fields:
    """One run, and what is told of it."""
    x = ArraySource(digits.train, partition_rows=-(-len(digits.train) // max(size.batches)))
    fitted = model(random_state=seed, max_laps=size.laps, **way.told)
    told = follow(fitted, x)
    after = model(initial=fitted, schedule=Memoized(1), moves=[], max_laps=1).fit(x)
    found = fitted.predict(x)
    return {
        "after": after.elbo_ / len(digits.train),
        "accuracy": purity(found, digits.labels),
        "rand": adjusted_rand_score(digits.labels, found),
        "held_out": float(fitted.score(digits.test)),
        **told,
    }


def run_all(digits: Digits, size: Size, numbers: list[int], kinds: Sequence[str], kept: Kept) -> None:
    """The methods of some kinds with every start, and some numbers of batches."""
    for seed in range(size.starts):
        start = Start(digits.train, size.clusters, seed)
        for batches in numbers:
            for way in ways(size, batches, start):
                if not way.name.startswith(tuple(kinds)):
                    continue
                key = {"method": way.name, "batches": way.batches, "start": seed, "rows": len(digits.train)}
                kept.once({**key, "laps at most": size.laps}, partial(fit, digits, way, seed, size))


def grouped(runs: list[Fields], size: Size) -> dict[tuple[str, int], list[Fields]]:
    """Runs by method and batches, in the order in which methods are named."""
    start = Start(np.eye(2), 1, 0)
    keys = [(way.name, way.batches) for batches in size.batches for way in ways(size, batches, start)]
    found = {key: [run for run in runs if (run["method"], run["batches"]) == key] for key in keys}
    return {key: mine for key, mine in found.items() if mine}


#: What is told of a run, with its digits after the point and the name of its column.
TOLD = (
    ("elbo", 3, "ELBO a row"),
    ("after", 3, "after a batch lap"),
    ("components", 0, "K"),
    ("accuracy", 3, "commonest digit"),
    ("rand", 3, "adjusted Rand"),
    ("held_out", 3, "held-out"),
    ("laps", 0, "laps"),
    ("seconds", 0, "seconds"),
)


def table(groups: dict[tuple[str, int], list[Fields]]) -> list[list[object]]:
    """A line a method."""
    return [
        [method, batches, len(mine), *(spread([run[name] for run in mine], digits) for name, digits, _ in TOLD)]
        for (method, batches), mine in groups.items()
    ]


def draw_boxes(groups: dict[tuple[str, int], list[Fields]], path: Path) -> None:
    """ELBO, ELBO after a batch lap and held-out log density: a box a method, a dot a run."""
    names = [f"{method}, {batches} batches" if batches > 1 else method for method, batches in groups]
    figure, axes = plt.subplots(1, 3, sharey=True, figsize=(13, 1 + 0.27 * len(names)), layout="constrained")
    places = np.arange(len(names), 0, -1)
    for axis, column in zip(axes, ("elbo", "after", "held_out"), strict=True):
        values = [[run[column] for run in mine] for mine in groups.values()]
        axis.boxplot(values, positions=places, orientation="horizontal", widths=0.6)
        axis.plot(np.concatenate(values), np.repeat(places, [len(mine) for mine in values]), "C0.")
        axis.axvline(np.median(values[0]), color="C3", linewidth=0.8)
        best = max(map(max, values))
        axis.set_xlim(best - 6, best + 0.3)
        axis.set_xlabel({title: name for title, _, name in TOLD}[column] + " (nats)")
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(places, names)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def check(groups: dict[tuple[str, int], list[Fields]], size: Size) -> None:
    """From one cluster the median is above the best run of a fixed number of clusters."""
    moving = (ONE, MANY)
    fixed = {key: max(run["elbo"] for run in mine) for key, mine in groups.items() if key[0] not in moving}
    for (method, batches), mine in groups.items():
        median, best = np.median([run["elbo"] for run in mine]), max(fixed, key=fixed.__getitem__, default=None)
        if method == ONE and best is not None:
            assert median > fixed[best], f"{batches} batches from one: {median:.3f} nats, {best} {fixed[best]:.3f}"


def main() -> None:
    """Run the comparison."""
    parser = options(__doc__, "memoized_mnist")
    parser.add_argument("--starts", type=int, help="how many; default 10, small 1")
    parser.add_argument("--batches", type=int, nargs="+", choices=FULL.batches, help="default 20 and 100, small 5, 10")
    parser.add_argument("--methods", nargs="+", choices=KINDS, default=KINDS, help="which to run; default all")
    parser.add_argument("--delays", type=float, nargs="+", help="tau of stochastic inference; default 1, 10, 100")
    parser.add_argument("--powers", type=float, nargs="+", help="kappa; default 0.5, 0.6, 0.75, 0.9")
    given = parser.parse_args()
    size = SMALL if given.small else FULL
    rates = {name: tuple(told) for name in ("delays", "powers") if (told := getattr(given, name))}
    asked = size._replace(starts=given.starts or size.starts, **rates)
    digits, kept = read_digits(given.data, given.small), Kept(given.out)
    run_all(digits, asked, given.batches or list(size.batches), given.methods, kept)
    groups = grouped(kept.everything(), size)
    write_table(["method", "batches", "starts", *(name for *_, name in TOLD)], table(groups), given.out)
    draw_boxes(groups, given.out / "boxes.png")
    check(groups, size)


if __name__ == "__main__":
    main()
