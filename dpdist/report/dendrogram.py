"""Dendrograms of merge trees, drawn by SciPy on matplotlib axes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.cluster.hierarchy import dendrogram

from dpdist.core.errors import InputError
from dpdist.inference.hierarchy.tree import Tree


def draw_dendrogram(tree: Tree, axes: Axes, n_clusters: int | None = None) -> dict[str, Any]:
    """Draw a tree, with cluster ids along x, and along y the loss of ELBO by merges, on a logarithmic scale.

    Parameters
    ----------
    tree : of two clusters or more
    axes : to draw on
    n_clusters : a cut to mark by colours and a line, or None

    Returns
    -------
    drawn : result of SciPy's ``dendrogram``, including ``leaves`` from left to right
    """
    if len(tree) < 2:
        raise InputError("a dendrogram needs a tree of at least two clusters; this tree has one.")
    heights, cut = tree.heights, None
    if n_clusters is not None:
        done = len(tree) - tree.level(n_clusters)
        below, above = (heights[place] if 0 <= place < len(heights) else None for place in (done - 1, done))
        cut = heights[-1] * 1.05 if above is None else ((below or 0.0) + above) / 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about an axis of zero length, if no merge loses anything
        drawn: dict[str, Any] = dendrogram(
            tree.linkage,
            ax=axes,
            labels=tree.ids.tolist(),
            color_threshold=0 if cut is None else cut,
            above_threshold_color="0.45",
        )
    positive = heights[heights > 0]
    axes.set_yscale("symlog", linthresh=float(positive.min()) if positive.size else 1.0)
    axes.set_ylim(0, 1.3 * float(heights[-1]) if positive.size else 1.0)
    axes.set(xlabel="cluster id", ylabel="ELBO lost (nats)")
    if cut is not None:
        axes.axhline(cut, color="0.45", linestyle="--", linewidth=0.8)
    axes.tick_params(axis="x", labelsize=float(np.clip(400 / len(tree), 3, 9)), rotation=90)
    return drawn
