"""Plots of the comparison: held-out score by time, and the final clusters of each method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle

#: Rows shown, and panels beside each other.
DOTS, COLUMNS = 3000, 3


class Run(Protocol):
    """What is drawn of a run."""

    method: str
    seconds: list[float]
    scores: list[float]
    means: list[list[float]]
    truth: float


def draw_holdout(runs: Sequence[Run], rows: int, path: Path) -> None:
    """Joint log density of the held-out rows against seconds, a line a method; a pass ends in a dot."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.add_subplot()
    end = max(run.seconds[-1] for run in runs)
    for k, run in enumerate(runs):
        joint = rows * np.array(run.scores)
        axis.plot(run.seconds, joint, f"C{k}", label=run.method)
        axis.plot(run.seconds[-1], joint[-1], "o", color=f"C{k}")
        axis.plot([run.seconds[-1], end], [joint[-1]] * 2, f"C{k}:")
    axis.axhline(rows * runs[0].truth, color="0.5", linestyle="--", linewidth=1, label="true density")
    axis.set(xscale="log", xlabel="seconds", ylabel=f"log density of {rows:,} held-out rows (nats)")
    axis.legend(loc="lower right")
    FigureCanvasAgg(figure).print_png(path)


def draw_components(x: np.ndarray, runs: Sequence[Run], path: Path) -> None:
    """Rows (N, 2) as dots, and the clusters of each method on top."""
    lines = -(-len(runs) // COLUMNS)
    figure = Figure(figsize=(4 * COLUMNS, 4.2 * lines), layout="constrained")
    axes = figure.subplots(lines, COLUMNS, sharex=True, sharey=True, squeeze=False).ravel()
    for axis, run in zip(axes, runs, strict=False):
        axis.plot(*x[:DOTS].T, ",", color="0.6")
        axis.set(aspect="equal", title=f"{run.method}, K = {len(run.means)}")
        draw_circles(axis, np.array(run.means))
    for axis in axes[len(runs) :]:
        axis.axis("off")
    FigureCanvasAgg(figure).print_png(path)


def draw_circles(axis: Axes, means: np.ndarray) -> None:
    """Means (K, 2), with circles of one and two standard deviations."""
    axis.plot(*means.T, "C3+")
    for mean in means:
        for radius in (1, 2):
            axis.add_patch(Circle(mean, radius, fill=False, color="C3", linewidth=1.2 / radius))
