"""Millions of dense SIFT vectors in one pass: sequential variational approximation, with and without prune and merge.

SVA and SVA-PM go over the vectors of extract.py once, with two worker processes; SVA-PM also in strict sequence, one
partition after the other, to show what passing side by side costs. Reported are rows a second, K, the mean log density
of held-out vectors as the pass goes on, and the peak memory of the coordinator and of the workers over all rows and
over the first tenth of them. Each fit runs in a process of its own; peaks are the kernel's VmHWM, so
this needs Linux. Clusters are isotropic Gaussians whose variance comes from k-means on a sample.

Needs ``pip install opencv-python-headless``. Written to --out: the vectors, results.json, results.md, heldout.png, and
gallery.png with example patches of SVA-PM's clusters. ``--small`` takes two pictures at step 12, drawn ones where the
BSDS pictures are missing, one worker process, and SVA-PM only.

Source: Lin (2013), Online learning of nonparametric mixture models via sequential variational approximation, section
6.2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from extract import (
    TEST_EACH,
    TEST_STEP,
    Plan,
    extract,
    first_rows,
    has_pictures,
    opencv,
    options,
    sample,
)
from gallery import draw_model
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dpdist.execution.connecting import local_backend
from dpdist.execution.dask import DaskBackend

WORKERS, SMALL_WORKERS = 2, 1
#: What each method adds to the estimator's settings. Pruning and merging are the default.
METHODS: dict[str, dict[str, Any]] = {
    "SVA": {"merge": None, "prune": 0.0},
    "SVA-PM": {},
    "SVA-PM in sequence": {"parallel": False},
}
#: Share of the rows in the fit that shows how memory grows.
FIRST = 10
#: Vectors and clusters of the k-means that gives the variance.
VARIANCE_ROWS, VARIANCE_CLUSTERS, SMALL_CLUSTERS = 50_000, 200, 20
#: What ``--small`` takes: grid step, pictures. Drawn pictures have this height and width.
SMALL_STEP, SMALL_PICTURES, DRAWN_SHAPE = 12, 2, (160, 240)


class Stored(NamedTuple):
    """Where the vectors are: Zarr groups of training and held-out ones, and the folder of the pictures."""

    train: Path
    test: Path
    pictures: Path


class Variances(NamedTuple):
    """A column's variance within a cluster and in all, means over the 128 columns."""

    within: float
    total: float


class Task(NamedTuple):
    """One fit, as plain values: it is handed to a process of its own.

    ``part`` is the share of the rows, ``train`` and ``test`` their Zarr groups, ``result`` the file for the outcome.
    ``gallery`` is the PNG for example patches from ``pictures``; empty for none. ``workers`` is their number.
    """

    method: str
    part: str
    train: str
    test: str
    variance: float
    mean_variance: float
    pictures: str
    result: str
    gallery: str = ""
    workers: int = WORKERS


class Round(NamedTuple):
    """After a round of partitions: rows so far, K, seconds, held-out nats a row, and peaks in MB so far."""

    rows: int
    components: int
    seconds: float
    holdout: float
    coordinator: float
    worker: float


class Outcome(NamedTuple):
    """A finished fit: memory in MB of the coordinator and of the fullest worker before it, and its rounds."""

    method: str
    part: str
    coordinator_before: float
    worker_before: float
    rounds: list[Round]


def draw_pictures(folder: Path) -> Path:
    """Pictures of blurred noise in place of the real ones, as JPEG files in the same layout; their folder."""
    cv2, rng = opencv(), np.random.default_rng(0)
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number in range(SMALL_PICTURES):
            noise = cv2.GaussianBlur(rng.standard_normal(DRAWN_SHAPE), (0, 0), 2.0 + number)
            picture = np.clip(128 + 40 * noise / noise.std(), 0, 255).astype(np.uint8)
            cv2.imwrite(str(folder / part / f"{number}.jpg"), picture)
    return folder


def store_vectors(given: argparse.Namespace) -> Stored:
    """Extract the vectors, unless they are there."""
    pictures = given.data / "bsds"
    if not has_pictures(pictures):
        missing = f"there are no BSDS pictures in {pictures}; name their parent folder with --data."
        if not given.small:
            raise SystemExit(missing)
        print(f"{missing} Drawn pictures take their place.")
        pictures = draw_pictures(given.out / "drawn")
    step, most, ending = (SMALL_STEP, SMALL_PICTURES, "-small") if given.small else (given.step, None, "")
    stored = Stored(given.out / f"sift_train{ending}.zarr", given.out / f"sift_test{ending}.zarr", pictures)
    extract(pictures / "train", stored.train, Plan(step, most))
    extract(pictures / "test", stored.test, Plan(TEST_STEP, most, TEST_EACH))
    return stored


def measure_variances(train: Path, clusters: int) -> Variances:
    """The variance within the clusters of k-means on a sample, and the sample's total variance.

    The first is the known variance of a cluster's isotropic Gaussian, the second the prior variance of its mean. The
    number of clusters thus sets how fine a clustering is asked for, but not K.
    """
    from sklearn.cluster import MiniBatchKMeans

    rows = sample(train, VARIANCE_ROWS, seed=0).rows.astype(np.float32)
    means = MiniBatchKMeans(clusters, batch_size=4096, n_init=1, max_iter=20, random_state=0).fit(rows)
    return Variances(-float(means.score(rows)) / rows.size, float(rows.var(axis=0, dtype=np.float64).mean()))


def megabytes(process: int, field: str) -> float:
    """An entry of a process's status in the kernel, such as VmHWM, in MB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"the kernel gives no {field} for process {process}; run this on Linux")


def estimator(task: Task) -> Any:
    """The estimator of a task."""
    from dpdist import SVA
    from dpdist.models.families import IsotropicGaussian

    family = IsotropicGaussian(variance=task.variance, mean_variance=task.mean_variance)
    return SVA(family, concentration=1.0, compute_dtype="float32", random_state=0, **METHODS[task.method])


def fit(task: Task) -> None:
    """Make the fit of a task in this process; write its outcome, and its gallery if one is wanted."""
    model, backend = estimator(task), local_backend(task.workers)
    try:
        outcome = follow(task, model, backend)
    finally:
        backend.close()
    Path(task.result).write_text(json.dumps(outcome))
    if task.gallery:
        draw_model(model, Path(task.train), Path(task.pictures), Path(task.gallery))


def follow(task: Task, model: Any, backend: DaskBackend) -> Outcome:
    """The rounds of a fit, printed as they end, with the memory of its processes."""
    holdout = zarr.open_group(task.test, mode="r")["rows"][:]
    workers = list(backend.client.run(os.getpid).values())

    def memory(field: str) -> tuple[float, float]:
        return megabytes(os.getpid(), field), max(megabytes(worker, field) for worker in workers)

    outcome = Outcome(task.method, task.part, *memory("VmRSS"), [])
    seconds = 0.0
    for _, info in model.iter_fit(task.train, holdout=holdout, backend=backend):
        seconds += info.seconds
        numbers = int(info.rows), int(info.n_components), seconds, float(info.score)
        outcome.rounds.append(Round(*numbers, *memory("VmHWM")))
        print(f"{task.method}, {task.part}: " + "{} rows, K {}, {:.1f} s, {:.3f} nats".format(*numbers), flush=True)
    return outcome


def in_own_process(task: Task) -> Outcome:
    """The outcome of a task, from a fresh interpreter."""
    subprocess.run([sys.executable, __file__, "--task", json.dumps(task)], check=True)
    *facts, rounds = json.loads(Path(task.result).read_text())
    return Outcome(*facts, [Round(*numbers) for numbers in rounds])


def plan_fits(stored: Stored, variances: Variances, methods: list[str], out: Path, workers: int) -> list[Task]:
    """Each method over the first tenth of the rows and over all of them."""
    tenth = stored.train.with_name(f"{stored.train.stem}-tenth.zarr")
    first_rows(stored.train, tenth, max(1, count_rows(stored.train) // FIRST))
    tasks = []
    for method in methods:
        for part, train in (("tenth", tenth), ("all", stored.train)):
            task = Task(
                method,
                part,
                train=str(train.resolve()),
                test=str(stored.test.resolve()),
                variance=variances.within,
                mean_variance=variances.total,
                pictures=str(stored.pictures / "train"),
                result=str(out / f"fit-{method.replace(' ', '-')}-{part}.json"),
                gallery=str(out / "gallery.png") if (method, part) == ("SVA-PM", "all") else "",
                workers=workers,
            )
            tasks.append(task)
    return tasks


def count_rows(path: Path) -> int:
    """Number of vectors in a stored group."""
    return int(zarr.open_group(path, mode="r")["rows"].shape[0])


def table(outcomes: list[Outcome]) -> list[str]:
    """The fits as a Markdown table."""
    columns = ["method", "rows", "K", "seconds", "rows/s", "held-out nats/row", "coordinator MB", "fullest worker MB"]
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *map(_line, outcomes)]


def _line(one: Outcome) -> str:
    last = one.rounds[-1]
    facts = f"{one.method} | {last.rows} | {last.components} | {last.seconds:.1f} | {last.rows / last.seconds:.0f}"
    coordinator = f"{one.coordinator_before:.0f}, peak {last.coordinator:.0f}"
    worker = f"{one.worker_before:.0f}, peak {last.worker:.0f}"
    return f"| {facts} | {last.holdout:.3f} | {coordinator} | {worker} |"


def growth(outcomes: list[Outcome]) -> list[str]:
    """A sentence a method on how the peaks grow from the first tenth of the rows to all."""
    last = {(one.method, one.part): one.rounds[-1] for one in outcomes}
    sentences = []
    for method in dict.fromkeys(one.method for one in outcomes):
        tenth, whole = last[method, "tenth"], last[method, "all"]
        ratios = whole.coordinator / tenth.coordinator, whole.worker / tenth.worker
        sentences.append(f"{method}, peak over all rows / peak over a tenth: coordinator %.2f, worker %.2f." % ratios)
    return sentences


def draw_holdout(outcomes: list[Outcome], path: Path) -> None:
    """Held-out score against seconds and against rows, as a PNG."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for one in (one for one in outcomes if one.part == "all"):
        rounds = [entry for entry in one.rounds if np.isfinite(entry.holdout)]
        scores = [entry.holdout for entry in rounds]
        left.plot([entry.seconds for entry in rounds], scores, marker=".", label=one.method)
        right.plot([entry.rows for entry in rounds], scores, marker=".", label=one.method)
    left.set(xlabel="seconds", xscale="log", ylabel="mean held-out log density (nats a row)")
    right.set(xlabel="rows", xscale="log")
    left.legend()
    FigureCanvasAgg(figure).print_png(str(path))


def report(outcomes: list[Outcome], variances: Variances, out: Path, workers: int) -> None:
    """Print the table and write the results."""
    lines = [f"Variance of a column within clusters {variances.within:.1f}, in all {variances.total:.1f}.", ""]
    lines += [*table(outcomes), "", *growth(outcomes)]
    print("\n".join(lines))
    (out / "results.md").write_text("\n".join(lines) + "\n")
    fits = [{**one._asdict(), "rounds": [entry._asdict() for entry in one.rounds]} for one in outcomes]
    written = {"variances": variances._asdict(), "workers": workers, "methods": METHODS, "fits": fits}
    (out / "results.json").write_text(json.dumps(written, indent=1) + "\n")
    draw_holdout(outcomes, out / "heldout.png")


def check(outcomes: list[Outcome]) -> None:
    """SVA-PM scores the held-out rows and keeps a cluster at least."""
    for one in outcomes:
        if one.method == "SVA-PM":
            last = one.rounds[-1]
            assert np.isfinite(last.holdout), f"the held-out score is {last.holdout}"
            assert last.components >= 1, "no cluster is left"


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--small", action="store_true", help="a reduced size that runs in seconds and checks results")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), help="which fits to make")
    parser.add_argument("--task", help="make one fit in this process (the workflow calls itself)")
    given = parser.parse_args()
    given.methods = given.methods or (["SVA-PM"] if given.small else list(METHODS))
    return given


def main() -> None:
    """Run the workflow."""
    given = read_options()
    if given.task:
        fit(Task(*json.loads(given.task)))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    stored = store_vectors(given)
    print(f"{count_rows(stored.train)} vectors, {count_rows(stored.test)} held out", flush=True)
    variances = measure_variances(stored.train, SMALL_CLUSTERS if given.small else VARIANCE_CLUSTERS)
    print(f"variance of a column within clusters {variances.within:.1f}, in all {variances.total:.1f}", flush=True)
    workers = SMALL_WORKERS if given.small else WORKERS
    outcomes = [in_own_process(task) for task in plan_fits(stored, variances, given.methods, given.out, workers)]
    report(outcomes, variances, given.out, workers)
    if given.small:
        check(outcomes)


if __name__ == "__main__":
    main()
