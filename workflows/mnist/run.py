"""Unlabelled MNIST digits: how many clusters are found, and how good are they?

Raw pixels are written to Zarr as floats from 0 to 1. dpdist performs the PCA, the fit from one cluster and, for
comparison, batch and stochastic inference from k-means++ starts. Bounds are nats per row in the coordinates of the
principal components. The digits' labels are used for the purity only. Settings: mnist.toml beside this file.

Written to --out: digits.zarr, results.json, results.md, traces.png, and gallery.png of the first seed's clusters.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits

from dpdist import DPMixture
from dpdist.data import as_source
from dpdist.execution import SerialBackend
from dpdist.inference.schedules import Memoized, Stochastic
from dpdist.runs.methods.mixture import MemoizedMixture
from dpdist.runs.preparing import NOWHERE, prepare
from dpdist.runs.specs import MixtureSpec

sys.path.append(str(Path(__file__).resolve().parents[1]))
from results import options, purity

HERE = Path(__file__).resolve().parent
CHUNK = 1024
#: What ``--small`` changes.
SMALL_ROWS, SMALL_LAPS, SMALL_PCA, SMALL_COMPONENTS = 3000, 10, 20, 20
METHODS = ("from one cluster", "batch", "stochastic")


class Digits(NamedTuple):
    """Labelled pictures: ``images`` (N, side, side) in [0, 1] float32, ``labels`` (N,)."""

    images: np.ndarray
    labels: np.ndarray


class Run(NamedTuple):
    """One fit and what became of it; ``elbo`` in nats a row, traces by lap."""

    method: str
    seed: int
    elbo: float
    components: int
    purity: float
    seconds: float
    elbo_trace: list[float]
    component_trace: list[int]


def read_digits(data: Path, most: int | None) -> Digits:
    """The first MNIST digits, or scikit-learn's small ones where MNIST is not there."""
    path = data / "mnist" / "mnist_train60k.npz"
    if path.exists():
        stored = np.load(path)
        images, labels = stored["images"][:most] / np.float32(255), stored["labels"][:most]
    else:
        bunch = load_digits()
        images, labels = bunch.images[:most].astype(np.float32) / 16, bunch.target[:most]
    return Digits(images, labels)


def read_settings(small: bool) -> dict[str, Any]:
    """The settings in mnist.toml, reduced if asked for."""
    settings = tomllib.loads((HERE / "mnist.toml").read_text())
    if small:
        settings["seeds"] = settings["seeds"][:1]
        settings["baselines"]["components"] = SMALL_COMPONENTS
        settings["fit"]["max_laps"] = SMALL_LAPS
        settings["fit"]["row_transform"]["pca"] = SMALL_PCA
        settings["fit"]["family"]["degrees_of_freedom"] = SMALL_PCA + 2
    return settings


def store(digits: Digits, path: Path) -> str:
    """Write the pixels to Zarr, a row a picture."""
    rows = digits.images.reshape(len(digits.images), -1)
    array = zarr.create_array(
        str(path), shape=rows.shape, dtype=rows.dtype, chunks=(CHUNK, rows.shape[1]), overwrite=True
    )
    array[:] = rows
    return str(path)


def spec_of(method: str, settings: dict[str, Any], seed: int) -> MixtureSpec:
    """What a method is asked for; baselines start from as many components as the settings say."""
    spec = MixtureSpec.from_table({**settings["fit"], "random_state": seed})
    if method == "from one cluster":
        return spec
    return replace(
        spec,
        initial="k-means++",
        initial_components=settings["baselines"]["components"],
        schedule=Memoized(batches=1) if method == "batch" else Stochastic(),
        moves=(),
    )


def fit(method: str, seed: int, path: str, labels: np.ndarray, settings: dict[str, Any]) -> tuple[Run, np.ndarray]:
    """One fit of the digits at `path`; the run, and the cluster of each row."""
    model, spec, began = DPMixture(), spec_of(method, settings, seed), time.perf_counter()
    fitting = prepare(MemoizedMixture(), spec, as_source(path), spec.limits, SerialBackend(), NOWHERE)
    infos = [info for _, info in model.follow(fitting)]
    seconds = time.perf_counter() - began
    found = model.predict(path)
    elbos = [info.elbo / info.rows for info in infos]
    sizes = [info.n_components for info in infos]
    return Run(method, seed, elbos[-1], sizes[-1], purity(found, labels), seconds, elbos, sizes), found


def fit_all(
    path: str, labels: np.ndarray, settings: dict[str, Any], methods: Sequence[str]
) -> Iterator[tuple[Run, np.ndarray]]:
    """Each of some methods with every seed, methods in turn."""
    for seed in settings["seeds"]:
        for method in methods:
            run, found = fit(method, seed, path, labels, settings)
            print(
                f"{method}, seed {seed}: ELBO/row {run.elbo:.4f}, K {run.components}, {run.seconds:.1f} s", flush=True
            )
            yield run, found


def table(runs: list[Run]) -> list[str]:
    """The runs as a Markdown table, grouped by method."""
    lines = ["| method | seed | ELBO/row | K | purity | laps | seconds |", "|---|---|---|---|---|---|---|"]
    for run in sorted(runs, key=lambda run: METHODS.index(run.method)):
        numbers = f"{run.elbo:.4f} | {run.components} | {run.purity:.4f} | {len(run.elbo_trace)} | {run.seconds:.1f}"
        lines.append(f"| {run.method} | {run.seed} | {numbers} |")
    return lines


def draw_traces(runs: list[Run], path: Path) -> None:
    """ELBO a row and K by lap."""
    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(7, 7), layout="constrained")
    for run in runs:
        laps, colour = np.arange(1, len(run.elbo_trace) + 1), f"C{METHODS.index(run.method)}"
        label = run.method if run.seed == runs[0].seed else None
        upper.plot(laps, run.elbo_trace, colour, label=label)
        lower.plot(laps, run.component_trace, colour)
    # The first lap from one cluster lies far below all others.
    upper.set_ylim(bottom=min(min(run.elbo_trace[len(run.elbo_trace) // 10 :]) for run in runs))
    upper.set(ylabel="ELBO per row (nats)")
    lower.set(xlabel="lap", ylabel="clusters")
    lower.yaxis.get_major_locator().set_params(integer=True)
    upper.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_gallery(images: np.ndarray, found: np.ndarray, path: Path, columns: int = 12) -> None:
    """The mean picture of each cluster with its size, largest first."""
    names, sizes = np.unique(found, return_counts=True)
    order = np.argsort(-sizes, kind="stable")
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(columns, 1.25 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, k in zip(axes.flat, order, strict=False):
        axis.imshow(images[found == names[k]].mean(axis=0), cmap="gray_r", vmin=0, vmax=1)
        axis.set_title(f"{sizes[k]}", fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = options(__doc__, "mnist")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="which fits to make")
    return parser.parse_args()


def check(runs: list[Run]) -> None:
    """From one cluster, moves reach more than one, and the bound never falls."""
    grown, batch, _ = runs
    assert grown.components > 1, "no split was accepted"
    for run in (grown, batch):
        assert np.diff(run.elbo_trace).min() > -1e-6, f"{run.method}: the bound fell"


def main() -> None:
    """Run the workflow."""
    given = parsed()
    given.out.mkdir(parents=True, exist_ok=True)
    digits, settings = read_digits(given.data, SMALL_ROWS if given.small else None), read_settings(given.small)
    path = store(digits, given.out / "digits.zarr")
    results = list(fit_all(path, digits.labels, settings, given.methods))
    runs = [run for run, _ in results]
    lines = table(runs)
    print("\n".join(lines))
    (given.out / "results.md").write_text("\n".join(lines) + "\n")
    written = {"rows": len(digits.labels), "settings": settings, "runs": [run._asdict() for run in runs]}
    (given.out / "results.json").write_text(json.dumps(written, indent=1) + "\n")
    draw_traces(runs, given.out / "traces.png")
    draw_gallery(digits.images, results[0][1], given.out / "gallery.png")
    if given.small:
        check(runs)


if __name__ == "__main__":
    main()
