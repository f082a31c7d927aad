"""Outliers without a guess: precision and recall of ``predict(x, outliers=True)`` at several shares of scattered rows.

Drawn clusters: 10,000 rows of 20 Gaussians of unit covariance in 2, 5 and 10 dimensions, means at least four standard
deviations apart, a share of the rows moved to anywhere between the least and the largest of each column. Beside them
what the true densities and the true share tell, which nothing does better, and the clusters of a fit with a background.

Real rows: scikit-learn's digits and, where they are at hand, tiny pictures and MNIST, on their first ten principal
components, with rows scattered likewise. Real rows may be odd by themselves, so that precision counts them as wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import options, print_table
from scipy.special import logsumexp
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from dpdist import DPMixture


class Size(NamedTuple):
    """How large the benchmark is."""

    rows: int
    columns: tuple[int, ...]
    shares: tuple[float, ...]
    seeds: int
    laps: int


FULL = Size(10_000, (2, 5, 10), (0.0, 0.001, 0.01, 0.05), 3, 60)
SMALL = Size(2_000, (5,), (0.0, 0.02), 1, 30)
#: Clusters that are drawn, the least distance of their means, and half the width of the box of means.
CLUSTERS, APART, WIDTH = 20, 4.0, {2: 50.0, 5: 10.0, 10: 10.0}
#: Of the tables.
COLUMNS = (
    "rows, share",
    "seed",
    "clusters",
    "precision, recall",
    "at best",
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
    with np.errstate(divide="ignore"):
        beyond = np.log(share) - np.log(np.ptp(x, axis=0)).sum()
    return Case(f"{columns}-D, {share:g}", x, scattered, beyond > clusters + np.log1p(-share))


def real(data: Path, size: Size, share: float, seed: int) -> Iterator[Case]:
    """Rows of data sets that are at hand."""
    sets = {"digits": load_digits().data}
    pictures, digits = data / "tiny_cifar10/cifar10_train50k_pca50.npz", data / "mnist/mnist_train60k.npz"
    for name, path in (("tiny pictures", pictures), ("MNIST", digits)):
        if path.exists() and size is FULL:
            with np.load(path) as stored:
                sets[name] = max((stored[key] for key in stored.files), key=lambda each: each.size).astype(float)
    for name, rows in sets.items():
        rng, plane = np.random.default_rng(seed), PCA(10, random_state=0).fit_transform(rows.reshape(len(rows), -1))
        yield Case(f"{name}, {share:g}", *scatter(plane[rng.permutation(len(plane))[: size.rows]], share, rng), None)


def rates(found: np.ndarray, truth: np.ndarray) -> str:
    """Precision and recall, or where nothing is scattered how many rows are found."""
    if not truth.any():
        return f"{found.sum()} rows"
    both = (found & truth).sum()
    return f"{both / max(found.sum(), 1):.3f} {both / truth.sum():.3f}"


def line(case: Case, size: Size, seed: int) -> list[object]:
    """A fit of a case."""
    model = DPMixture(random_state=seed, max_laps=size.laps).fit(case.x)
    background = DPMixture(random_state=seed, max_laps=size.laps, background=BACKGROUND).fit(case.x)
    found, beyond = (each.predict(case.x, outliers=True) == -1 for each in (model, background))
    best = "-" if case.told is None else rates(case.told, case.scattered)
    clusters = int((~model.scattered_).sum())
    return [
        case.name,
        seed,
        clusters,
        rates(found, case.scattered),
        best,
        background.n_components_,
        rates(beyond, case.scattered),
    ]


def main() -> None:
    """Run the benchmark and print a table of each seed and share."""
    given = options(__doc__).parse_args()
    size = SMALL if given.small else FULL
    lines: list[list[object]] = []
    for seed in range(size.seeds):
        for share in size.shares:
            cases = [drawn(size, columns, share, seed) for columns in size.columns]
            found = [line(case, size, seed) for case in (*cases, *real(given.data, size, share, seed))]
            print_table(COLUMNS, found)
            lines += found
    if given.small:
        clusters = [entry[2] for entry in lines if str(entry[0]).startswith("5-D")]
        assert clusters == [CLUSTERS] * len(clusters), f"clusters found: {clusters}"


if __name__ == "__main__":
    main()
