"""Documents by their proportions of topics: how many kinds there are, in one pass, with Dirichlet observations.

The rows are topic proportions of blog entries; a cluster is a Dirichlet about a mean, which has no conjugate prior, so
that the pass moves point estimates by gradients. SVA opens clusters only; SVA-PM prunes rare ones too and merges those
that share their rows. Reported are K, the clusters of more than a hundredth of the rows, and the mean log density of
held-out rows in nats, beside that of one Dirichlet fitted to all rows by its moments.

Written to --out: results.json, results.md, clusters.md with the topics and words of SVA-PM's clusters, and means.png.

Source: Lin (2013), Online learning of nonparametric mixture models via sequential variational approximation, section
6.3.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.stats import dirichlet

#: The shared data folder where neither ``--data`` nor ``DPDIST_SHARED`` names one: beside the repository.
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
#: Rows held out, and rows in all with ``--small``.
HELD_OUT, SMALL = 630, 1800
#: What each method sets. Two clusters are one if their responsibilities differ by less than 0.7 of their weight.
METHODS: dict[str, dict[str, Any]] = {
    "SVA": {"merge": None, "prune": 0.0},
    "SVA-PM": {"merge": "distance", "merge_threshold": 0.7, "prune": 1e-4},
}
#: Share of all rows from which a cluster counts as large; clusters shown; topics and words named for each.
LARGE, SHOWN, TOPICS, WORDS = 0.01, 30, 3, 4


class Documents(NamedTuple):
    """``train`` and ``test`` (n, D), rows on the simplex; ``topics``, the words of each topic."""

    train: np.ndarray
    test: np.ndarray
    topics: list[str]


class Fit(NamedTuple):
    """A finished pass: weights (K,) and means (K, D), largest first, and the mean log density of the test rows."""

    method: str
    weights: np.ndarray
    means: np.ndarray
    holdout: float
    seconds: float

    @property
    def large(self) -> int:
        """Clusters of more than a hundredth of all rows."""
        return int((self.weights > LARGE).sum())


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("DPDIST_SHARED", SHARED))
    out = Path("build") / "workflows" / "sva_documents"
    parser.add_argument("--data", type=Path, default=shared, help="folder of the shared data sets")
    parser.add_argument("--out", type=Path, default=out, help="folder for results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="orders in which rows are passed")
    parser.add_argument("--small", action="store_true", help="a reduced size that runs in seconds and checks results")
    return parser.parse_args()


def read_proportions(folder: Path) -> tuple[np.ndarray, list[str]]:
    """Topic proportions (N, D) and each topic's words, or drawn proportions where there are none."""
    stored = folder / "topic_props" / "kos_theta_k30.npz"
    if not stored.exists():
        print(f"there are no topic proportions in {stored.parent}; drawn ones take their place.")
        return draw_proportions(seed=0), [f"topic {d}" for d in range(30)]
    lines = stored.with_name("kos_theta_k30_topwords.txt").read_text().splitlines()
    return np.load(stored)["theta"], [line.partition(":")[2].strip() for line in lines]


def draw_proportions(seed: int, rows: int = 3430, columns: int = 30, kinds: int = 20) -> np.ndarray:
    """Rows about the means of a few kinds of documents, (rows, columns)."""
    rng = np.random.default_rng(seed)
    means = rng.dirichlet(np.full(columns, 0.1), kinds) + 0.01
    gammas = rng.standard_gamma(25.0 * means[rng.integers(kinds, size=rows)]) + 1e-6
    return gammas / gammas.sum(axis=1, keepdims=True)


def split(proportions: np.ndarray, topics: list[str], small: bool) -> Documents:
    """Rows in a fixed random order, the last of them held out."""
    rows = proportions[np.random.default_rng(0).permutation(len(proportions))].astype(np.float64)
    rows = rows[:SMALL] if small else rows
    held = min(HELD_OUT, len(rows) // 4)
    return Documents(rows[:-held], rows[-held:], topics)


def fit(method: str, seed: int, documents: Documents) -> Fit:
    """One pass."""
    from dpdist import SVA
    from dpdist.models.likelihoods import Dirichlet

    model, began = SVA(Dirichlet(), concentration=1.0, random_state=seed, **METHODS[method]), time.perf_counter()
    model.fit(documents.train)
    seconds = time.perf_counter() - began
    order = np.argsort(-model.weights_, kind="stable")
    means = np.asarray(model.components_["probability"])[order]
    return Fit(method, model.weights_[order], means, float(model.score(documents.test)), seconds)


def one_dirichlet(documents: Documents) -> float:
    """Mean log density of the test rows under one Dirichlet with the moments of the training rows."""
    mean, variance = documents.train.mean(axis=0), documents.train.var(axis=0)
    precision = (mean * (1 - mean)).sum() / variance.sum() - 1
    rows = documents.test / documents.test.sum(axis=1, keepdims=True)
    return float(np.mean(dirichlet.logpdf(rows.T, precision * mean)))


def table(fits: list[Fit], single: float) -> list[str]:
    """The methods as a Markdown table: medians over seeds, with the smallest and the largest."""
    lines = ["| method | K | K above 1 % | held-out nats a row | seconds |", "|---|---|---|---|---|"]
    lines.append(f"| one Dirichlet | 1 | 1 | {single:.2f} | |")
    for method in METHODS:
        own = [one for one in fits if one.method == method]
        columns = [[len(one.weights) for one in own], [one.large for one in own], [one.holdout for one in own]]
        cells = [spread(column, digits) for column, digits in zip(columns, (0, 0, 2), strict=True)]
        lines.append(f"| {method} | {' | '.join(cells)} | {spread([one.seconds for one in own], 2)} |")
    return lines


def spread(values: list[Any], digits: int) -> str:
    """The median of some values, with the smallest and the largest."""
    return f"{np.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def describe(found: Fit, topics: list[str]) -> list[str]:
    """The largest clusters as a Markdown table: weight, and the topics that make up most of their mean."""
    lines = ["| weight | topics of the mean, with their share and first words |", "|---|---|"]
    for weight, mean in zip(found.weights[:SHOWN], found.means, strict=False):
        parts = [f"{mean[d]:.2f} {' '.join(topics[d].split()[:WORDS])}" for d in np.argsort(-mean)[:TOPICS]]
        lines.append(f"| {weight:.3f} | {'; '.join(parts)} |")
    return lines


def draw_means(found: Fit, topics: list[str], path: Path) -> None:
    """Means of the largest clusters, a row each, weights at the left and topics' first words below."""
    means = found.means[:SHOWN]
    figure = Figure(figsize=(0.32 * means.shape[1] + 2, 0.24 * len(means) + 2.5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    picture = axis.imshow(means, aspect="auto", cmap="magma_r", vmin=0)
    names = [" ".join(topic.split()[:2]) for topic in topics]
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axis.set_yticks(range(len(means)), [f"{weight:.3f}" for weight in found.weights[:SHOWN]], fontsize=7)
    axis.set(ylabel="weight of the cluster", title=f"Means of clusters: {found.method}")
    figure.colorbar(picture, ax=axis, label="share of the topic")
    figure.savefig(path, dpi=120)


def check(fits: list[Fit], single: float) -> None:
    """Clusters are found and worth having, means lie on the simplex, and SVA-PM leaves fewer clusters."""
    for one in fits:
        assert one.large >= 5, f"{one.method}: {one.large} large clusters"
        assert one.holdout > single + 1, f"{one.method}: {one.holdout:.2f} nats, one Dirichlet {single:.2f}"
        np.testing.assert_allclose(one.means.sum(axis=1), 1.0)
    grown, tidied = fits
    assert len(tidied.weights) < len(grown.weights), "nothing was pruned or merged"


def main() -> None:
    """Run the workflow."""
    given = options()
    given.out.mkdir(parents=True, exist_ok=True)
    documents = split(*read_proportions(given.data), given.small)
    single = one_dirichlet(documents)
    seeds = given.seeds[:1] if given.small else given.seeds
    fits = [fit(method, seed, documents) for method in METHODS for seed in seeds]
    lines = table(fits, single)
    print("\n".join(lines))
    (given.out / "results.md").write_text("\n".join(lines) + "\n")
    runs = [
        {"method": one.method, "weights": one.weights.tolist(), "holdout": one.holdout, "seconds": one.seconds}
        for one in fits
    ]
    sizes = {"train": len(documents.train), "test": len(documents.test), "seeds": seeds, "one_dirichlet": single}
    (given.out / "results.json").write_text(json.dumps({**sizes, "runs": runs}, indent=1) + "\n")
    best = next(one for one in fits if one.method == "SVA-PM")
    (given.out / "clusters.md").write_text("\n".join(describe(best, documents.topics)) + "\n")
    draw_means(best, documents.topics, given.out / "means.png")
    if given.small:
        check(fits, single)


if __name__ == "__main__":
    main()
