"""Tiny colour images: from one cluster, from a hundred, and from a hundred without moves.

After Hughes & Sudderth (2013), on the 50,000 training images of CIFAR-10 (32x32 pixels, three colours) in 50 principal
components, with full-covariance Gaussians and default settings, except for products in float32. If the images are not
available, scikit-learn's digits in 20 components are used.

Written to --out: results and a run for each method and seed, which are not repeated; table.csv, table.txt, traces.png,
and gallery.png with the mean and the nearest pictures of the largest clusters of the fit from one cluster.
"""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from PIL import Image
from shared import Fields, Kept, follow, options, spread, write_table
from sklearn.datasets import load_digits

import dpdist
from dpdist.models.families import Gaussian

#: Clusters drawn, pictures of each, and laps at most.
SHOWN, NEAREST = 24, 9
LAPS, FEW_LAPS = 150, 25


class Images(NamedTuple):
    """Pictures by their principal components.

    Attributes
    ----------
    rows : (N, D) float64
    mean, components : (P,), (D, P); pixels are mean + rows @ components, from 0 to 1
    shape : of a picture
    jpegs : the pictures themselves, compressed, if they are
    """

    rows: np.ndarray
    mean: np.ndarray
    components: np.ndarray
    shape: tuple[int, ...]
    jpegs: list[bytes] | None

    def approximate(self, rows: np.ndarray) -> np.ndarray:
        """The picture that principal components (D,) stand for."""
        return np.clip((self.mean + rows @ self.components).reshape(self.shape), 0, 1)

    def picture(self, i: int) -> np.ndarray:
        """A picture."""
        if self.jpegs is None:
            return self.approximate(self.rows[i])
        return np.asarray(Image.open(io.BytesIO(self.jpegs[i])))


def read_images(data: Path, most: int | None) -> Images:
    """The first tiny images, or digits."""
    folder = data / "tiny_cifar10"
    if not folder.exists():
        return digits(most)
    with np.load(folder / "cifar10_train50k_pca50.npz") as stored:
        rows, mean, components = stored["z"][:most].astype(float), stored["mean"] / 255, stored["components"] / 255
    with np.load(folder / "cifar10_train50k_jpeg.npz") as stored:
        everything, offsets = stored["jpeg"].tobytes(), stored["offsets"]
    jpegs = [everything[offsets[i] : offsets[i + 1]] for i in range(len(rows))]
    return Images(rows, mean, components, (32, 32, 3), jpegs)


def digits(most: int | None) -> Images:
    """The first of scikit-learn's digits in 20 principal components."""
    pixels = load_digits().data[:most] / 16
    mean = pixels.mean(axis=0)
    _, axes = np.linalg.eigh(np.cov(pixels.T))
    components = axes[:, ::-1][:, :20].T
    return Images((pixels - mean) @ components.T, mean, components, (8, 8), None)


def settings(many: int) -> dict[str, dict[str, Any]]:
    """What each method adds to the defaults."""
    start = {"initial": "k-means++", "initial_components": many}
    return {"from one": {}, f"from {many}": start, f"from {many}, no moves": {**start, "moves": []}}


def fit(x: np.ndarray, given: dict[str, Any], seed: int, path: Path, laps: int) -> Fields:
    """One fit, whose run is kept."""
    model = dpdist.DPMixture(Gaussian(), compute_dtype="float32", random_state=seed, max_laps=laps, **given)
    return follow(model, x, checkpoint_path=path, overwrite=True)


def table(runs: list[Fields]) -> list[list[object]]:
    """A line a method."""
    columns = (("elbo", 3), ("components", 0), ("laps", 0), ("seconds", 0))
    methods = dict.fromkeys(run["method"] for run in runs)
    grouped = {name: [run for run in runs if run["method"] == name] for name in methods}
    return [
        [name, len(mine), *(spread([run[column] for run in mine], digits) for column, digits in columns)]
        for name, mine in grouped.items()
    ]


def draw_traces(runs: list[Fields], path: Path) -> None:
    """ELBO a row and K by seconds."""
    methods = list(dict.fromkeys(run["method"] for run in runs))
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for run in runs:
        colour = f"C{methods.index(run['method'])}"
        label = run["method"] if run["seed"] == runs[0]["seed"] else None
        for axis, trace in zip(axes, ("elbo_trace", "component_trace"), strict=True):
            axis.plot(run["second_trace"], run[trace], colour, label=label)
    best = max(run["elbo"] for run in runs)
    axes[0].set(xlabel="seconds", ylabel="ELBO per row (nats)", ylim=(best - 8, best + 0.5))
    axes[1].set(xlabel="seconds", ylabel="clusters")
    axes[1].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def nearest(model: dpdist.DPMixture, x: np.ndarray, k: int, count: int) -> np.ndarray:
    """The rows of a cluster that lie nearest to its mean, by its covariance."""
    mine = np.flatnonzero(model.predict(x) == k)
    apart = x[mine] - model.means_[k]
    distance = np.einsum("ni,ni->n", apart, np.linalg.solve(model.covariances_[k], apart.T).T)
    return mine[np.argsort(distance, kind="stable")[:count]]


def draw_gallery(model: dpdist.DPMixture, images: Images, path: Path) -> None:
    """The largest clusters, two a line: the mean, then the pictures nearest to it."""
    largest = np.argsort(-model.weights_, kind="stable")[:SHOWN]
    lines = -(-len(largest) // 2)
    wide = NEAREST + 1
    size = (2 * wide * 0.8, lines * 0.9)
    figure, axes = plt.subplots(lines, 2 * wide, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for place, k in enumerate(largest):
        mine = axes[place // 2, place % 2 * wide :][:wide]
        mine[0].imshow(images.approximate(model.means_[k]), cmap="gray")
        mine[0].set_title(f"{100 * model.weights_[k]:.1f} %", fontsize=8)
        for axis, row in zip(mine[1:], nearest(model, images.rows, k, NEAREST), strict=False):
            axis.imshow(images.picture(row), cmap="gray")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Run the comparison."""
    parser = options(__doc__, "tiny_images")
    parser.add_argument("--rows", type=int, help="the first images only; all by default")
    parser.add_argument("--seeds", type=int, default=3, help="how many; default 3")
    parser.add_argument("--laps", type=int, help=f"at most; default {LAPS}, small {FEW_LAPS}")
    parser.add_argument("--without-many", action="store_true", help="leave out the hundred with moves, the longest")
    given = parser.parse_args()
    images = read_images(given.data, 800 if given.small else given.rows)
    many = 10 if given.small else 100
    methods, kept = settings(many), Kept(given.out)
    if given.without_many:
        del methods[f"from {many}"]
    runs, laps = [], given.laps or (FEW_LAPS if given.small else LAPS)
    for seed in range(1 if given.small else given.seeds):
        for name, told in methods.items():
            path = given.out / f"{name.replace(', ', '_').replace(' ', '_')}-{seed}.zarr"
            key = {"method": name, "seed": seed, "rows": len(images.rows), "laps at most": laps}
            runs.append(kept.once(key, partial(fit, images.rows, told, seed, path, laps)))
    write_table(["start", "seeds", "ELBO a row", "K", "laps", "seconds"], table(runs), given.out)
    draw_traces(runs, given.out / "traces.png")
    draw_gallery(dpdist.load(given.out / "from_one-0.zarr"), images, given.out / "gallery.png")
    if given.small:
        grown, *_, still = (run["elbo"] for run in runs)
        assert grown > still, f"from one cluster {grown:.3f}, from many without moves {still:.3f} nats a row"


if __name__ == "__main__":
    main()
