"""Mixtures of zero-mean Gaussians for patches of photographs, from one cluster and from other starts.

After Hughes & Sudderth (2013), section 5: the 8x8 patches at stride 4 of the 200 training pictures of BSDS300, minus
their means (see pictures.py for the coordinates), 1,880,200 in all or, with --rows, a random part of them. Starts: one
cluster, 200 clusters of k-means++, and a sequential pass, all with default moves and with either prior; and 200 of
k-means++ without moves. Bounds compare between methods of the same prior. ``denoising.py`` evaluates the results on
pictures that were not fitted.

Runs are stored in --out and continued by further calls, for --seconds of wall time per method.

Written to --out: a run for each method; table.csv, table.txt, traces.png, and of the first method samples.png and
eigenvectors.png.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from pictures import BASIS, SIDE, store_patches, training_pictures
from shared import options, write_table

import dpdist
from dpdist.models.families import ZeroMeanGaussian

MANY = 200
#: What a start is called with the prior of clusters of a sample.
OF_CLUSTERS = {
    "one": "prior of clusters",
    "k-means++": "k-means++, prior of clusters",
    "sva": "sva, prior of clusters",
}


class Size(NamedTuple):
    """How large the comparison is."""

    pictures: int | None
    many: int  # clusters of k-means++
    laps: int  # at most


FULL, SMALL = Size(None, MANY, 1000), Size(1, 6, 4)


def settings(size: Size) -> dict[str, dict[str, Any]]:
    """What each method adds to the defaults."""
    many = {"initial": "k-means++", "initial_components": size.many}
    starts: dict[str, dict[str, Any]] = {"one": {}, "k-means++": many, "sva": {"initial": "sva"}}
    by_clusters = {OF_CLUSTERS[start]: {**added, "prior": "clusters"} for start, added in starts.items()}
    return {**starts, "without moves": {**many, "moves": []}, **by_clusters}


def fitted(method: str, rows: str, out: Path, size: Size, seconds: float | None) -> dpdist.DPMixture:
    """The model of a method, its run begun or gone on with."""
    path = run_path(out, method)
    if path.exists():
        return dpdist.resume(path, rows, max_laps=size.laps, max_time=seconds)
    model = dpdist.DPMixture(
        ZeroMeanGaussian(), compute_dtype="float32", max_laps=size.laps, max_time=seconds, **settings(size)[method]
    )
    for _, info in model.iter_fit(rows, checkpoint_path=path):
        told = f"ELBO a row {info.elbo / info.rows:.4f}, K {info.n_components}, {info.seconds:.0f} s"
        print(f"{method}, lap {info.lap}: {told}", flush=True)
    return model


def run_path(out: Path, method: str) -> Path:
    """Where the run of a method is kept."""
    return out / f"{method.replace(',', '').replace(' ', '_')}.zarr"


def line(method: str, model: dpdist.DPMixture) -> list[object]:
    """What a method reached so far."""
    history = model.history_
    rows, hours = float(history.rows[-1]), float(history.seconds.sum()) / 3600
    numbers = [f"{model.elbo_ / rows:.4f}", model.n_components_, model.n_iter_, f"{hours:.2f}"]
    return [method, f"{rows:.0f}", *numbers, model.stop_reason_]


def draw_traces(models: dict[str, dpdist.DPMixture], path: Path) -> None:
    """ELBO a row by hours and by laps, and K by laps."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.5), layout="constrained")
    for method, model in models.items():
        history = model.history_
        elbo, hours = history.elbo / history.rows, np.cumsum(history.seconds) / 3600
        for axis, x, y in zip(axes, (hours, history.lap, history.lap), (elbo, elbo, history.n_components), strict=True):
            axis.plot(x, y, label=method)
    best = max(float((model.history_.elbo / model.history_.rows)[-1]) for model in models.values())
    for axis, name in zip(axes, ("hours", "laps", "laps"), strict=True):
        axis.set(xlabel=name, ylabel="clusters" if axis is axes[2] else "ELBO per row (nats)")
    for axis in axes[:2]:
        axis.set_ylim(best - 15, best + 1)
    axes[0].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_patches(rows: np.ndarray, path: Path, columns: int) -> None:
    """Patches of coordinates (n, 63), each by its own range, `columns` a line."""
    figure, axes = plt.subplots(
        -(-len(rows) // columns), columns, figsize=(0.6 * columns, 0.65 * len(rows) / columns), layout="constrained"
    )
    for axis in axes.flat:
        axis.axis("off")
    for axis, row in zip(axes.flat, rows, strict=False):
        axis.imshow((BASIS @ row).reshape(SIDE, SIDE), cmap="gray")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_eigenvectors(model: dpdist.DPMixture, path: Path, components: int = 12, vectors: int = 12) -> None:
    """The leading eigenvectors of the largest covariances, by trace, among clusters that hold most rows; one a line."""
    common = np.argsort(-model.weights_)[: 4 * components]
    sizes = np.trace(model.covariances_[common], axis1=1, axis2=2)
    largest = common[np.argsort(-sizes)[:components]]
    leading = [np.linalg.eigh(model.covariances_[k])[1].T[::-1][:vectors] for k in largest]
    draw_patches(np.concatenate(leading), path, vectors)


def main() -> None:
    """Run the comparison."""
    parser = options(__doc__, "image_patches")
    parser.add_argument("--methods", nargs="+", choices=list(settings(FULL)), default=list(settings(FULL)))
    parser.add_argument("--rows", type=int, help="of the patches, drawn at random; all by default")
    parser.add_argument("--seconds", type=float, help="of each method in this call; none by default")
    parser.add_argument("--laps", type=int, help="of each method at most; default 1000, small 4")
    given = parser.parse_args()
    size = SMALL if given.small else FULL
    size = size._replace(laps=given.laps or size.laps)
    given.out.mkdir(parents=True, exist_ok=True)
    rows = store_patches(training_pictures(given.data, size.pictures), given.out / "patches.zarr", given.rows)
    models = {method: fitted(method, rows, given.out, size, given.seconds) for method in given.methods}
    lines = [line(method, model) for method, model in models.items()]
    write_table(["start", "rows", "ELBO a row", "K", "laps", "hours", "end"], lines, given.out)
    first = models[given.methods[0]]
    draw_traces(models, given.out / "traces.png")
    draw_patches(first.sample(144)[0], given.out / "samples.png", 16)
    draw_eigenvectors(first, given.out / "eigenvectors.png")
    if given.small:
        grown, still = models["one"].elbo_, models["without moves"].elbo_
        assert grown > still, f"from one cluster {grown:.0f} nats, from many without moves {still:.0f}"


if __name__ == "__main__":
    main()
