"""The demo: cluster handwritten digits on a local Dask cluster, starting from one cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

from dpdist.core.errors import OutputExistsError
from dpdist.data import as_source
from dpdist.estimators.opening import load
from dpdist.execution import Backend
from dpdist.report import plot
from dpdist.report.page import write_page
from dpdist.report.reading import figures_of
from dpdist.runs.config import parse_config
from dpdist.runs.events import Event, Pace, event_of_step

#: Names of the files in the folder.
WRITTEN = ("digits.zarr", "run.zarr", "report.html", "trace.png", "clusters.png")


class DemoResult(NamedTuple):
    """The result of the demo.

    Parameters
    ----------
    rows : for each cluster, by size: id, number of digits, most frequent digit, its share
    purity : share of digits that equal the most frequent digit of their cluster
    folder : of data, run and pictures
    """

    rows: list[tuple[int, int, int, float]]
    purity: float
    folder: Path


def run_demo(
    folder: Path, backend: Backend, seed: int, show: Callable[[Event], None], overwrite: bool = False
) -> DemoResult:
    """Write the digits to Zarr, fit them, label them, draw them.

    Parameters
    ----------
    folder : receives ``digits.zarr``, ``run.zarr`` and ``report.html``, ``trace.png`` and ``clusters.png``
    backend : where to run
    seed : of the fit
    show : called with every event
    overwrite : whether to replace existing files

    Raises
    ------
    OutputExistsError
        If one of these exists and `overwrite` is false.
    """
    there = [name for name in WRITTEN if (folder / name).exists()]
    if there and not overwrite:
        raise OutputExistsError(
            f"{folder / there[0]} exists; choose another folder with out=PATH, or replace it with overwrite=True."
        )
    digits = load_digits()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "digits.zarr"
    stored = zarr.create_array(path, shape=digits.data.shape, dtype="uint8", chunks=(128, 64), overwrite=True)
    stored[...] = digits.data.astype(np.uint8)
    tables = {"data": str(path), "random_state": seed, "row_transform": {"pca": 20}, "schedule": {"batches": 2}}
    fit = parse_config("fit", tables).prepare(as_source(path), folder / "run.zarr", True, backend)
    pace = Pace.of(fit)
    for step in fit:
        show(event_of_step(fit.method, step, pace))
    return _describe(folder, digits.target)


def _describe(folder: Path, truth: np.ndarray) -> DemoResult:
    model = load(folder / "run.zarr")
    labels = model.predict(str(folder / "digits.zarr"))
    present = [k for k in range(model.n_components_) if (labels == k).any()]
    tallies = {k: np.bincount(truth[labels == k], minlength=10) for k in present}
    rows = [
        (int(model.component_ids_[k]), int(t.sum()), int(t.argmax()), float(t.max() / t.sum()))
        for k, t in tallies.items()
    ]
    figures = figures_of(folder / "run.zarr", image_shape="8x8")
    write_page(figures, folder / "report.html")
    for name, draw in (("clusters", plot.clusters), ("trace", plot.trace)):
        picture = Figure(figsize=(8, 4), layout="constrained")
        draw(figures, picture.subplots())
        picture.savefig(folder / f"{name}.png")
    return DemoResult(rows, sum(int(t.max()) for t in tallies.values()) / len(truth), folder)
