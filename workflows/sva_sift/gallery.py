"""Example patches of clusters of SIFT vectors: a line of pictures a cluster, as a PNG.

Shown are the largest clusters, and some drawn at random from the others. A cluster's examples are the vectors of a
sample with the highest responsibilities. Where these are equal, as they often are in 128 dimensions, chance decides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from extract import SIDE, Vectors, read_picture, sample
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

#: Clusters shown, patches of each, and vectors of the sample.
LARGEST, DRAWN, EXAMPLES, SAMPLE = 20, 10, 12, 100_000
#: White pixels between patches.
GAP = 2


class Assignment(NamedTuple):
    """The best cluster of each row: ``cluster`` (n,) position, ``responsibility`` (n,)."""

    cluster: np.ndarray
    responsibility: np.ndarray


def choose_clusters(weights: np.ndarray, sizes: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The clusters of largest weight, and some drawn from the others that have rows in the sample.

    Parameters
    ----------
    weights : (K,) of the clusters
    sizes : (K,) rows of the sample in each

    Returns
    -------
    largest : (at most 20,) positions, by weight
    drawn : (at most 10,) positions, by weight
    """
    order = np.argsort(-weights, kind="stable")
    largest, others = order[:LARGEST], order[LARGEST:]
    others = others[sizes[others] > 0]
    places = np.random.default_rng(seed).choice(len(others), min(DRAWN, len(others)), replace=False)
    return largest, others[np.sort(places)]


def examples(assigned: Assignment, cluster: int, seed: int) -> np.ndarray:
    """Rows of the sample with the highest responsibilities of a cluster, at most 12; ties in random order."""
    members = np.flatnonzero(assigned.cluster == cluster)
    members = np.random.default_rng([seed, cluster]).permutation(members)
    order = np.argsort(-assigned.responsibility[members], kind="stable")
    return members[order[:EXAMPLES]]


def cut_patch(folder: Path, vectors: Vectors, row: int) -> np.ndarray:
    """The patch that a vector describes, (32, 32) uint8."""
    picture = read_picture(folder / f"{vectors.image[row]}.jpg")
    top, left = int(vectors.y[row]) - SIDE // 2, int(vectors.x[row]) - SIDE // 2
    return picture[top : top + SIDE, left : left + SIDE]


def patch_line(patches: list[np.ndarray]) -> np.ndarray:
    """Patches side by side on white, with room for 12."""
    line = np.full((SIDE, EXAMPLES * (SIDE + GAP) - GAP), 255, np.uint8)
    for place, patch in enumerate(patches):
        start = place * (SIDE + GAP)
        line[:, start : start + SIDE] = patch
    return line


def draw_gallery(
    vectors: Vectors, assigned: Assignment, weights: np.ndarray, folder: Path, path: Path, seed: int = 0
) -> None:
    """Write the PNG: the largest clusters on the left, others on the right.

    Parameters
    ----------
    vectors : the sample
    assigned : its clusters
    weights : (K,) of the clusters
    folder : of the pictures
    path : where the PNG goes
    seed : of the clusters drawn and of the order among equal examples
    """
    sizes = np.bincount(assigned.cluster, minlength=len(weights))
    columns = choose_clusters(weights, sizes, seed)
    figure = Figure(figsize=(13, 0.5 * LARGEST), layout="constrained")
    axes = figure.subplots(LARGEST, 2)
    for axis in axes.flat:
        axis.axis("off")
    for title, clusters, column in zip(("largest clusters", "others, drawn"), columns, axes.T, strict=True):
        column[0].set_title(title, fontsize=9)
        for axis, cluster in zip(column, clusters, strict=False):
            rows = examples(assigned, cluster, seed)
            axis.imshow(patch_line([cut_patch(folder, vectors, row) for row in rows]), cmap="gray", vmin=0, vmax=255)
            axis.text(-6, SIDE / 2, f"{weights[cluster]:.2%}", ha="right", va="center", fontsize=8)
    FigureCanvasAgg(figure).print_png(str(path))


def draw_model(model: Any, train: Path, folder: Path, path: Path, seed: int = 0) -> None:
    """The gallery of a fitted mixture, with examples from the rows that it was fitted to."""
    vectors = sample(train, SAMPLE, seed)
    cluster, responsibility = model.predict_top(vectors.rows, 1)
    assigned = Assignment(np.asarray(cluster)[:, 0], np.asarray(responsibility)[:, 0])
    draw_gallery(vectors, assigned, np.asarray(model.weights_), folder, path, seed)
