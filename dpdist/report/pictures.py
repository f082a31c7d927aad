"""Pictures of a run: the trace of its laps and a gallery of its components."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dpdist.storage.history import History


def draw_trace(history: History, rows: float, path: str | os.PathLike[str]) -> None:
    """Write a PNG of the ELBO a row and of K against laps."""
    laps = [row.lap for row in history.laps]
    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(laps, [row.elbo / rows for row in history.laps], marker=".")
    left.set(xlabel="lap", ylabel="ELBO per row (nats)")
    right.plot(laps, [row.n_components for row in history.laps], marker=".", drawstyle="steps-post")
    right.set(xlabel="lap", ylabel="components")
    _save(figure, path)


def draw_gallery(
    images: np.ndarray, titles: Sequence[str], path: str | os.PathLike[str], columns: int = 10, title: str = ""
) -> None:
    """Write a PNG of images (K, height, width), each under its title."""
    lines = -(-len(images) // columns)
    figure = Figure(figsize=(columns, 1.25 * lines + 0.4), layout="constrained")
    for place, (image, caption) in enumerate(zip(images, titles, strict=True)):
        axes = figure.add_subplot(lines, columns, place + 1)
        axes.imshow(image, cmap="gray_r")
        axes.set_title(caption, fontsize=7)
        axes.set_axis_off()
    figure.suptitle(title, fontsize=9)
    _save(figure, path)


def _save(figure: Figure, path: str | os.PathLike[str]) -> None:
    FigureCanvasAgg(figure).print_png(os.fspath(path))
