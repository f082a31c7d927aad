"""Example patches of clusters of SIFT vectors: one row of pictures per cluster, as a PNG.

It shows the largest clusters, and some drawn at random from the others. Examples of a cluster are the vectors of a
sample with the highest responsibilities, rotated to the orientation of their keypoints. Ties, which are frequent in 128
dimensions, are broken at random.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from views import SIDE, Collection, patch

#: Clusters shown, patches of each, and vectors of the sample.
LARGEST, DRAWN, EXAMPLES, SAMPLE = 20, 10, 12, 100_000
#: White pixels between patches.
GAP = 2


class Assignment(NamedTuple):
    """The best cluster of some rows: their numbers ``row`` (n,), ``cluster`` (n,) position, ``responsibility`` (n,)."""

    row: np.ndarray
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
    """Numbers of the rows with the highest responsibilities of a cluster, at most 12; ties in random order."""
    members = np.flatnonzero(assigned.cluster == cluster)
    members = np.random.default_rng([seed, cluster]).permutation(members)
    order = np.argsort(-assigned.responsibility[members], kind="stable")
    return assigned.row[members[order[:EXAMPLES]]]


def patch_line(patches: list[np.ndarray]) -> np.ndarray:
    """Patches side by side on white, with room for 12."""
    line = np.full((SIDE, EXAMPLES * (SIDE + GAP) - GAP), 255, np.uint8)
    for place, cut in enumerate(patches):
        start = place * (SIDE + GAP)
        line[:, start : start + SIDE] = cut
    return line


def draw_gallery(collection: Collection, assigned: Assignment, weights: np.ndarray, path: Path, seed: int = 0) -> None:
    """Write the PNG: the largest clusters on the left, others on the right.

    Parameters
    ----------
    collection : the pictures that the rows are of
    assigned : a sample of the rows with their clusters
    weights : (K,) of the clusters
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
            patches = [patch(collection, int(row)) for row in examples(assigned, cluster, seed)]
            axis.imshow(patch_line(patches), cmap="gray", vmin=0, vmax=255)
            axis.text(-6, SIDE / 2, f"{weights[cluster]:.2%}", ha="right", va="center", fontsize=8)
    FigureCanvasAgg(figure).print_png(str(path))


def draw_model(model: Any, rows: Path, collection: Collection, path: Path, seed: int = 0) -> None:
    """The gallery of a fitted mixture, with examples from the rows of a collection that it was fitted to."""
    drawn, values = sample(rows, SAMPLE, seed)
    cluster, responsibility = model.predict_top(values, 1)
    assigned = Assignment(drawn, np.asarray(cluster)[:, 0], np.asarray(responsibility)[:, 0])
    draw_gallery(collection, assigned, np.asarray(model.weights_), path, seed)


def sample(path: Path, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (n,) of rows drawn from an array without replacement, in order, and the rows (n, 128) uint8.

    They are of at most 64 chunks, so that only these are read.
    """
    array, rng = zarr.open_array(path, mode="r"), np.random.default_rng(seed)
    rows, chunk = array.shape[0], array.chunks[0]
    chunks = np.sort(rng.permutation(-(-rows // chunk))[:64])
    near = np.concatenate([np.arange(each * chunk, min((each + 1) * chunk, rows)) for each in chunks])
    drawn = np.sort(rng.choice(near, min(count, len(near)), replace=False))
    return drawn, np.concatenate(
        [array[each * chunk : (each + 1) * chunk][drawn[drawn // chunk == each] % chunk] for each in chunks]
    )
