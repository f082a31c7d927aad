"""Outliers without a given rate: precision and recall of ``predict(x, outliers=True)`` for several shares of scattered
rows.

Drawn clusters: 10,000 rows of 20 Gaussians with unit covariance in 2, 5 and 10 dimensions, with means at least four
standard deviations apart, and of the 20 Gaussians of `recovery.py` in 16. A share of the rows is moved to uniform
places between the minimum and maximum of each column. The results are compared with those of the true densities and the
true share, which are optimal, and with a fit with a background.

Real rows: scikit-learn's digits and, if available, tiny pictures, MNIST and SIFT vectors, on their first ten principal
components, with rows scattered in the same way. Some real rows are outliers themselves, which counts as an error in
precision. The column "in order" measures the ranking by ``decision_function(x)``: the average precision, and the
precision among the lowest rows, as many as were moved, which equals their recall.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import draw_clusters, options, print_table
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.metrics import average_precision_score

from dpdist import DPMixture


class Size(NamedTuple):
    """How large the benchmark is."""

    rows: int
    columns: tuple[int, ...]
    shares: tuple[float, ...]
    seeds: int
    laps: int


FULL = Size(10_000, (2, 5, 10), (0.0, 0.001, 0.01, 0.05), 3, 60)
SMALL = Size(1_500, (5,), (0.0, 0.02), 1, 12)
#: Clusters that are drawn, the least distance of their means, and half the width of the box of means.
CLUSTERS, APART, WIDTH = 20, 4.0, {2: 50.0, 5: 10.0, 10: 10.0}
#: Rows of a real set from which principal components are made.
MOST = 20_000
#: Of the tables.
COLUMNS = (
    "rows, share",
    "seed",
    "clusters",
    "precision, recall",
    "true densities",
    "in order",
    "K beside background",
    "precision, recall",
)
#: Share of rows that belong to no cluster, as a background is told; not the true one.
BACKGROUND = 0.02


class Case(NamedTuple):
    """Rows, which of them are scattered, and which of them the true densities tell, where they are known."""

    name: str
    x: np.ndarray
    scattered: np.ndarray
    told: np.ndarray | None


def scatter(x: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of which a share is moved to anywhere, and which."""
    moved = rng.choice(len(x), round(share * len(x)), replace=False)
    x[moved] = rng.uniform(x.min(axis=0), x.max(axis=0), size=(len(moved), x.shape[1]))
    return x, np.isin(np.arange(len(x)), moved)


def drawn(size: Size, columns: int, share: float, seed: int) -> Case:
    """Rows of clusters."""
    rng, means = np.random.default_rng([seed, columns]), np.empty((0, columns))
    while len(means) < CLUSTERS:
        mean = rng.uniform(-WIDTH[columns], WIDTH[columns], size=columns)
        if not len(means) or np.linalg.norm(means - mean, axis=1).min() > APART:
            means = np.vstack([means, mean])
    x, scattered = scatter(
        means[rng.integers(CLUSTERS, size=size.rows)] + rng.normal(size=(size.rows, columns)), share, rng
    )
    squares = ((x[:, None] - means) ** 2).sum(axis=2)
    clusters = logsumexp(-0.5 * squares, axis=1) - 0.5 * columns * np.log(2 * np.pi) - np.log(CLUSTERS)
    return Case(f"{columns}-D, {share:g}", x, scattered, likelier(x, clusters, share))


def likelier(x: np.ndarray, clusters: np.ndarray, share: float) -> np.ndarray:
    """Rows that are likelier scattered in a box than of clusters of these log densities (N,)."""
    with np.errstate(divide="ignore"):
        beyond = np.log(share) - np.log(np.ptp(x, axis=0)).sum()
    return np.asarray(beyond > clusters + np.log1p(-share))


def recovered(size: Size, share: float, seed: int) -> Case:
    """Rows of the 20 Gaussians of `recovery.py`, whose densities are those of their own rows before any is moved."""
    x, labels = draw_clusters(size.rows, 16, CLUSTERS, seed)
    own = [x[labels == k] for k in range(CLUSTERS)]
    shapes = [multivariate_normal(rows.mean(axis=0), np.cov(rows.T)) for rows in own]
    shares = np.log([len(rows) / len(x) for rows in own])
    x, scattered = scatter(x, share, np.random.default_rng([seed, 16]))
    clusters = logsumexp(np.stack([shape.logpdf(x) for shape in shapes], axis=1) + shares, axis=1)
    return Case(f"16-D, {share:g}", x, scattered, likelier(x, clusters, share))


def real(data: Path, size: Size, share: float, seed: int) -> Iterator[Case]:
    """Rows of data sets that are at hand."""
    sets = {"digits": load_digits().data}
    pictures, digits = data / "tiny_cifar10/cifar10_train50k_pca50.npz", data / "mnist/mnist_train60k.npz"
    vectors = data / "sift_bsds/sift_bsds_train_200k.npz"
    for name, path in (("tiny pictures", pictures), ("MNIST", digits), ("SIFT", vectors)):
        if path.exists() and size.rows == FULL.rows:
            with np.load(path) as stored:
                sets[name] = max((stored[key] for key in stored.files), key=lambda each: each.size).astype(float)
    for name, every in sets.items():
        rng, rows = np.random.default_rng(seed), every[:: max(1, len(every) // MOST)].reshape(-1, every[0].size)
        plane = PCA(10, random_state=0).fit_transform(rows)
        yield Case(f"{name}, {share:g}", *scatter(plane[rng.permutation(len(plane))[: size.rows]], share, rng), None)


def rates(found: np.ndarray, truth: np.ndarray) -> str:
    """Precision and recall, or where nothing is scattered how many rows are found."""
    if not truth.any():
        return f"{found.sum()} rows"
    both = (found & truth).sum()
    return f"{both / max(found.sum(), 1):.3f} {both / truth.sum():.3f}"


def in_order(margins: np.ndarray, truth: np.ndarray) -> str:
    """Average precision of the lowest rows, and the precision of as many as are scattered."""
    if not truth.any():
        return "-"
    lowest = truth[np.argsort(margins, kind="stable")[: truth.sum()]]
    return f"{average_precision_score(truth, -margins):.3f} {lowest.mean():.3f}"


def line(case: Case, size: Size, seed: int) -> list[object]:
    """A fit of a case."""
    model = DPMixture(random_state=seed, max_laps=size.laps).fit(case.x)
    background = DPMixture(random_state=seed, max_laps=size.laps, background=BACKGROUND).fit(case.x)
    beyond, margins = background.predict(case.x, outliers=True) == -1, model.decision_function(case.x)
    found = margins < 0
    best = "-" if case.told is None else rates(case.told, case.scattered)
    clusters = int((~model.scattered_).sum())
    return [
        case.name,
        seed,
        clusters,
        rates(found, case.scattered),
        best,
        in_order(margins, case.scattered),
        background.n_components_,
        rates(beyond, case.scattered),
    ]


def least(told: Iterable[object]) -> str:
    """Of rates as :func:`rates` tells them the least, each by itself."""
    return " ".join(map(min, zip(*(str(each).split() for each in told), strict=True)))


def print_least(lines: list[list[object]]) -> None:
    """The least precision and recall of all seeds beside those of the true densities."""
    names = {str(entry[0]): [each for each in lines if each[0] == entry[0]] for entry in lines}
    print_table(
        ("rows, share", "seeds", "least precision, recall", "true densities"),
        [
            (name, len(same), least(each[3] for each in same), least(each[4] for each in same))
            for name, same in names.items()
            if not name.endswith(", 0")
        ],
    )


def main() -> None:
    """Run the benchmark and print a table of each seed and share."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, help="how many seeds")
    parser.add_argument("--shares", type=float, nargs="+", help="shares of the rows that are moved")
    given = parser.parse_args()
    size = SMALL if given.small else FULL
    size = size._replace(seeds=given.seeds or size.seeds, shares=tuple(given.shares or size.shares))
    lines: list[list[object]] = []
    for seed in range(size.seeds):
        for share in size.shares:
            cases = [drawn(size, columns, share, seed) for columns in size.columns]
            cases += [recovered(size, share, seed)] if size.rows == FULL.rows else []
            cases += real(given.data, size, share, seed)
            found = [line(case, size, seed) for case in cases]
            print_table(COLUMNS, found)
            lines += found
    print_least(lines)
    if given.small:
        clusters = [entry[2] for entry in lines if str(entry[0]).startswith("5-D")]
        assert clusters == [CLUSTERS] * len(clusters), f"clusters found: {clusters}"


if __name__ == "__main__":
    main()
