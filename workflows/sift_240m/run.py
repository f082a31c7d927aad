"""240 million dense SIFT vectors: written by workers, clustered in one pass, refined, killed, extended, labelled.

    vectors    written to Zarr by workers, every pixel of 200 pictures at three scales and six rotations
    pass       SVA-PM, one pass
    refine     memoized inference with moves from that model, isotropic Gaussians in 128 columns; all its processes are
               killed in the middle (SIGKILL), and it is resumed on another number of workers
    covariance the same start with full covariances after PCA to 32 columns
    twin       as `refine` on fewer rows, killed and undisturbed: the same bits?
    extend     the refined model is extended with vectors of pictures that it was not fitted to
    labels     of all rows, written to Zarr by workers
    methods    SVA, SVA-PM and truncation-free inference on fewer rows: held-out score against time

Each stage is a command of dpdist (except the first and the last), in its own processes, whose memory is followed.
Finished stages are stored in --out and not repeated, and an interrupted stage continues, so the whole workflow may be
run in several parts. Held-out vectors are of test pictures, other than those of the extension. Clusters have the
variance that k-means finds within 200 clusters of a sample. `--rows` takes the first of the vectors, which are of all
pictures in random order; if the disk is too small for them, as many as fit.

Needs ``pip install opencv-python-headless``. Written to --out: table.txt, table.csv, traces.png, methods.png,
gallery.png with example patches, runs and logs. ``--small`` uses drawn pictures and a thousandth of the rows.

Source: Lin (2013), Online learning of nonparametric mixture models via sequential variational approximation, section
6.2; Hughes & Sudderth (2013), Memoized online variational inference for Dirichlet process mixture models.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import methods
import numpy as np
import zarr
from commands import Attempt, Fields, found_in, has_run, once, run, together
from gallery import draw_model, sample
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from views import Collection, collect, draw_pictures, has_pictures, opencv, rows_in
from writing import rows_that_fit, write_rows

import dpdist
from dpdist.execution.connecting import local_backend

#: The shared data folder where neither ``--data`` nor ``DPDIST_SHARED`` names one: beside the repository.
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
OUT = Path("build") / "workflows" / "sift_240m"


#: What comes after the vectors.
STAGES = ("pass", "refine", "twin", "extend", "labels", "methods", "covariance")


class Size(NamedTuple):
    """How large the workflow is.

    Parameters
    ----------
    laps : of refinements at most
    workers, other_workers : processes, and how many a killed run is resumed on
    kill_after : laps before the kill
    most_components : bound on K
    pca : columns of full covariances
    variance_rows, variance_clusters : of the k-means that gives the variance
    heldout : vectors held out
    new_share : rows that the model is extended with, as a share of all
    twin_rows, method_rows : of these stages, at most
    method_seconds : that truncation-free inference gets
    piece : rows of a piece of a view
    """

    laps: int
    workers: int
    other_workers: int
    kill_after: int
    most_components: int
    pca: int
    variance_rows: int
    variance_clusters: int
    heldout: int
    new_share: float
    twin_rows: int
    method_rows: int
    method_seconds: float
    piece: int


FULL = Size(10, 2, 1, 3, 2000, 32, 50_000, 200, 20_480, 1 / 24, 1_000_000, 200_000, 300.0, 4096)
SMALL = Size(2, 1, 2, 1, 24, 8, 2_000, 8, 512, 0.25, 2_000, 2_000, 0.5, 128)
#: Rows in all, and of the reduced size, whose pictures are drawn: so many a part, of this height and width.
ROWS, SMALL_ROWS, DRAWN, DRAWN_SHAPE = 240_000_000, 240_000, 5, (96, 128)
#: Rows a piece of held-out vectors: few, so that they are of many views.
HELDOUT_PIECE = 64


class Stored(NamedTuple):
    """Arrays of rows to fit, of new rows and of those held out, and the collection of the first."""

    rows: Path
    new: Path
    heldout: Path
    collection: Collection


def vectors(given: argparse.Namespace, size: Size) -> tuple[Stored, Fields]:
    """Write what is not there yet."""
    opencv()
    pictures = given.data / "bsds"
    if given.small:
        pictures = draw_pictures(given.out / "drawn", DRAWN, DRAWN_SHAPE)
    elif not has_pictures(pictures):
        raise SystemExit(f"there are no BSDS pictures in {pictures}; name their parent folder with --data.")
    train = collect(pictures / "train", piece=size.piece)
    half = len(list((pictures / "test").glob("*.jpg"))) // 2
    heldout = collect(pictures / "test", last=half, piece=HELDOUT_PIECE)
    new = collect(pictures / "test", first=half, piece=size.piece)
    stored = Stored(given.out / "rows.zarr", given.out / "new.zarr", given.out / "heldout.zarr", train)

    def write() -> Fields:
        rows = rows_that_fit(given.rows, rows_in(train), given.out, int(given.leave * 1e9))
        backend, began = local_backend(size.workers), time.perf_counter()
        try:
            write_rows(train, rows, stored.rows, backend)
            seconds = time.perf_counter() - began
            write_rows(heldout, size.heldout, stored.heldout, backend)
            write_rows(new, max(1, int(size.new_share * rows)), stored.new, backend)
        finally:
            backend.close()
        stored_bytes = sum(each.stat().st_size for each in stored.rows.rglob("*") if each.is_file())
        return {"rows": rows, "seconds": round(seconds, 2), "bytes": stored_bytes}

    return stored, once(given.out / "stages" / "vectors.json", {"rows": given.rows}, write)


def variances(rows: Path, size: Size) -> Fields:
    """The variance of a column within the clusters of k-means on a sample, and in all of the sample, with the mean.

    The first is the known variance of a cluster's isotropic Gaussian, the second the prior variance of its mean. The
    number of clusters thus sets how fine a clustering is asked for, but not K.
    """
    from sklearn.cluster import MiniBatchKMeans

    values = sample(rows, size.variance_rows, seed=0)[1].astype(np.float32)
    how: dict[str, Any] = {"batch_size": 4096, "n_init": 1, "max_iter": 20, "random_state": 0}
    means = MiniBatchKMeans(size.variance_clusters, **how).fit(values)
    return {
        "within": -float(means.score(values)) / values.size,
        "total": float(values.var(axis=0, dtype=np.float64).mean()),
    }


class Runs:
    """The commands of a workflow of one size, over rows that are there."""

    def __init__(self, given: argparse.Namespace, size: Size, stored: Stored, rows: int) -> None:
        self.out, self.size, self.stored, self.rows = given.out, size, stored, rows
        self.heldout = zarr.open_array(stored.heldout, mode="r")[:]
        found = once(self.out / "stages" / "variances.json", {"rows": rows}, lambda: variances(stored.rows, size))
        self.within, self.total = found["within"], found["total"]
        isotropic = (
            f'compute_dtype = "float32"\n\n[family]\nname = "isotropic_gaussian"\nvariance = {self.within!r}\n'
            f"mean_variance = {self.total!r}\n"
        )
        bounded = f"max_laps = {size.laps}\nmax_components = {size.most_components}\n"
        self._config("pass", isotropic)
        self._config("refine", bounded + isotropic)
        self._config(
            "covariance",
            f'{bounded}compute_dtype = "float32"\nfamily = "gaussian"\n\n[row_transform]\npca = {size.pca}\n',
        )

    def stage(self, name: str, rows: int, begin: Sequence[object], kill_after: int | None = None) -> Fields:
        """A command that writes the run NAME.zarr, or goes on with it, and what it came to."""
        path, size = self.out / f"{name}.zarr", self.size

        def make() -> Fields:
            attempts = list[Attempt]()
            if not has_run(path):
                command = [*begin, "--out", path, "--workers", size.workers, "--overwrite"]
                attempts.append(run(command, self._log(name), kill_after))
            if not attempts or attempts[-1].killed:
                attempts.append(run(["resume", path, "--workers", size.other_workers], self._log(name)))
            return {"rows": rows, **together(attempts), **found_in(path, self.heldout)}

        return once(self.out / "stages" / f"{name}.json", {"rows": rows, "laps": size.laps}, make)

    def passed(self) -> Fields:
        """SVA-PM over all rows."""
        how = ["--config", self.out / "pass.toml", "--holdout", self.stored.heldout]
        return self.stage("pass", self.rows, ["sva", self.stored.rows, *how])

    def refined(self, name: str, config: str, rows: Path, kill_after: int | None) -> Fields:
        """Memoized inference from the pass."""
        how = ["--config", self.out / f"{config}.toml", "--initial", self.out / "pass.zarr"]
        count = int(zarr.open_array(rows, mode="r").shape[0])
        return self.stage(name, count, ["fit", rows, *how], kill_after)

    def twins(self) -> Fields:
        """Two refinements of the first rows, one of which is killed; their digests."""
        rows, count = self.out / "twin_rows.zarr", min(self.rows, self.size.twin_rows)
        backend = local_backend(self.size.workers)
        try:
            write_rows(self.stored.collection, count, rows, backend)
        finally:
            backend.close()
        self.refined("twin_undisturbed", "refine", rows, None)
        killed = self.refined("twin_killed", "refine", rows, self.size.kill_after)
        undisturbed = found_in(self.out / "twin_undisturbed.zarr", self.heldout)
        return {**killed, "same_bits": killed["bits"] == undisturbed["bits"]}

    def extended(self) -> Fields:
        """The refined model after new rows."""
        count = int(zarr.open_array(self.stored.new, mode="r").shape[0])
        return self.stage("extend", count, ["extend", self.out / "refine.zarr", self.stored.new])

    def labels(self) -> Fields:
        """Labels of all rows, written by workers."""
        path = self.out / "labels.zarr"

        def make() -> Fields:
            command = ["predict", self.out / "refine.zarr", self.stored.rows, "--out", path, "--overwrite"]
            attempt = run([*command, "--workers", self.size.workers], self._log("labels"))
            label = zarr.open_group(path, mode="r")["label"]
            stored = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
            return {"rows": int(label.shape[0]), **together([attempt]), "bytes": stored}

        return once(self.out / "stages" / "labels.json", {"rows": self.rows}, make)

    def compared(self) -> dict[str, dict[str, list[float]]]:
        """Courses of the methods on the first rows, by name."""
        count = min(self.rows, self.size.method_rows)
        x = zarr.open_array(self.stored.rows, mode="r")[:count].astype(np.float64)
        x, origin = np.random.default_rng(0).permutation(x), x.mean(axis=0)
        model = methods.Model(self.within, self.total, 1.0)
        holdout = self.heldout - origin
        return {
            method: once(
                self.out / "stages" / f"method {method}.json",
                {"rows": count, "seconds": self.size.method_seconds},
                lambda method=method: methods.course(method, x - origin, holdout, model, self.size.method_seconds),
            )
            for method in methods.METHODS
        }

    def _config(self, name: str, text: str) -> None:
        (self.out / f"{name}.toml").write_text(text)

    def _log(self, name: str) -> Path:
        return self.out / f"{name}.log"


#: Columns of the table, and how an entry is written.
COLUMNS = {
    "rows": "{}",
    "rows/s": "{:.0f}",
    "seconds": "{:.0f}",
    "processor": "{:.0f}",
    "laps": "{}",
    "components": "{}",
    "heldout": "{:.3f}",
    "coordinator": "{} MB",
    "worker": "{} MB",
    "bytes": "{:.3g}",
    "checkpoint_share": "{:.1%}",
    "kills": "{}",
}


def report(stages: dict[str, Fields], out: Path) -> None:
    """Print the table of the stages, and write it as text and CSV."""
    lines = [["stage", *COLUMNS]]
    for name, found in stages.items():
        seconds = sum(found["course"]["seconds"]) if "course" in found else found["seconds"]
        laps = found["laps"] if name not in ("pass", "extend") and "laps" in found else 1
        entries = {**found, "rows/s": found["rows"] * laps / seconds}
        lines.append([name, *(form.format(entries[key]) if key in entries else "" for key, form in COLUMNS.items())])
    with (out / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = ["  ".join(entry.rjust(width) for entry, width in zip(line, widths, strict=True)) for line in lines]
    (out / "table.txt").write_text("\n".join(text) + "\n")
    print(*text, sep="\n", flush=True)


def draw_traces(stages: dict[str, Fields], path: Path) -> None:
    """Held-out score of the pass against rows; ELBO and K of the refinements against seconds."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    scores, elbos, sizes = figure.subplots(1, 3)
    course = stages["pass"]["course"]
    scores.plot(course["rows"], course["holdout_score"], marker=".")
    scores.set(xlabel="rows passed", xscale="log", ylabel="held-out log density (nats a row)", title="pass")
    for name in ("refine", "covariance"):
        course = stages[name]["course"]
        seconds = np.cumsum(course["seconds"])
        elbo = np.array(course["elbo"]) / stages[name]["rows"]
        elbos.plot(seconds, elbo - elbo[0], marker=".", label=name)
        sizes.plot(seconds, course["n_components"], marker=".", label=name)
    elbos.set(xlabel="seconds", ylabel="ELBO above that of the first lap (nats a row)")
    sizes.set(xlabel="seconds", ylabel="clusters")
    elbos.legend()
    FigureCanvasAgg(figure).print_png(str(path))


def check(stages: dict[str, Fields], compared: dict[str, dict[str, list[float]]]) -> None:
    """What must hold at any size."""
    elbo = stages["refine"]["course"]["elbo"]
    assert stages["twin"]["kills"] == 1, "the twin was not killed"
    assert stages["twin"]["same_bits"], "a killed run and its undisturbed twin differ"
    assert all(after >= before - 1e-9 * abs(before) for before, after in pairwise(elbo)), elbo
    assert stages["refine"]["heldout"] > stages["pass"]["heldout"], "laps made the held-out score worse"
    assert stages["labels"]["rows"] == stages["vectors"]["rows"], "some rows have no label"
    assert all(np.isfinite(one["heldout"][-1]) for one in compared.values()), "a held-out score is not finite"


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("DPDIST_SHARED", SHARED))
    parser.add_argument("--data", type=Path, default=shared, help="folder of the shared data sets")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for vectors, runs and results")
    parser.add_argument("--rows", type=int, help="vectors to cluster; default 240,000,000, small 240,000")
    parser.add_argument("--leave", type=float, default=20.0, help="GB of the disk to leave free")
    parser.add_argument("--workers", type=int, help="worker processes; killed runs are resumed on half as many")
    parser.add_argument("--laps", type=int, help="of a refinement at most; default 10")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES, help="which to make; default all")
    parser.add_argument("--small", action="store_true", help="a reduced size that runs in seconds and checks results")
    given = parser.parse_args()
    given.rows = given.rows or (SMALL_ROWS if given.small else ROWS)
    given.out = given.out.resolve()
    return given


def main() -> None:
    """Run the workflow."""
    given = read_options()
    size = SMALL if given.small else FULL
    if given.workers:
        size = size._replace(workers=given.workers, other_workers=max(1, given.workers // 2))
    size = size._replace(laps=given.laps or size.laps)
    given.out.mkdir(parents=True, exist_ok=True)
    stored, written = vectors(given, size)
    runs = Runs(given, size, stored, written["rows"])
    make: dict[str, Callable[[], Fields]] = {
        "pass": runs.passed,
        "refine": lambda: runs.refined("refine", "refine", stored.rows, size.kill_after),
        "twin": runs.twins,
        "extend": runs.extended,
        "labels": runs.labels,
        "methods": runs.compared,
        "covariance": lambda: runs.refined("covariance", "covariance", stored.rows, None),
    }
    found = {"vectors": written, **{name: make[name]() for name in make if name in given.stages}}
    if set(given.stages) == set(STAGES):
        finish(found, stored, given)


def finish(found: dict[str, Fields], stored: Stored, given: argparse.Namespace) -> None:
    """Table, pictures, and what must hold."""
    compared = found.pop("methods")
    report(found, given.out)
    draw_traces(found, given.out / "traces.png")
    methods.draw(compared, given.out / "methods.png")
    draw_model(dpdist.load(given.out / "refine.zarr"), stored.rows, stored.collection, given.out / "gallery.png")
    check(found, compared)


if __name__ == "__main__":
    main()
