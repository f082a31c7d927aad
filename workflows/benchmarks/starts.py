"""Which start reaches a given ELBO first: one cluster, k-means++, or a sequential pass?

The same memoized run with splits, merges and deletes from each start, on MNIST digits and SIFT vectors (full
covariance, principal components) and on zero-mean image patches, in this process on one thread. Seconds are processor
time, including the data summary and the start but not compilation: a first run of a lap on a few rows compiles. For
each data set the table gives the seconds at which each start passed several levels of the ELBO, "-" if it never did,
and its last ELBO and K. Missing data sets are left out; ``--small`` uses scikit-learn's digits instead.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import digits, leading_components, options, print_table
from sklearn.datasets import load_digits

from dpdist import DPMixture
from dpdist.models.families import Family, Gaussian, ZeroMeanGaussian

#: Starts: what each adds to the estimator's settings.
STARTS = {
    "one": {"initial": "one"},
    "k-means++": {"initial": "k-means++", "initial_components": 50},
    "sva": {"initial": "sva"},
}
SIFT_ROWS, SIFT_COLUMNS, PATCH_ROWS = 60_000, 40, 15_000


class Case(NamedTuple):
    """A data set: its rows, the likelihood, processor seconds for each start."""

    name: str
    rows: np.ndarray
    family: Family
    seconds: float


class Trace(NamedTuple):
    """A run: processor seconds, ELBO a row and K after each lap."""

    seconds: list[float]
    elbos: list[float]
    components: list[int]


def patches(path: Path, count: int) -> np.ndarray:
    """8x8 patches of pictures, each less its mean, in the 63 directions that leaves, (count, 63)."""
    pictures = np.load(path)["landscape"][:40]
    windows = np.lib.stride_tricks.sliding_window_view(pictures, (8, 8), axis=(1, 2))[:, ::5, ::5]
    rows = windows.reshape(-1, 64) / 255.0
    chosen = rows[np.random.default_rng(0).choice(len(rows), count, replace=False)]
    return leading_components(chosen - chosen.mean(axis=1, keepdims=True), 63)


def cases(data: Path, small: bool) -> list[Case]:
    """The data sets that are there."""
    if small:
        return [Case("small digits", leading_components(load_digits().data, 10), Gaussian(), 1.0)]
    found = []
    mnist = digits(data, 50)
    if mnist is not None:
        found.append(Case("MNIST, 50 components", mnist, Gaussian(), 90.0))
    sift = data / "sift_bsds" / "sift_bsds_train_200k.npz"
    if sift.exists():
        rows = leading_components(np.load(sift)["sift"][:SIFT_ROWS].astype(np.float64), SIFT_COLUMNS)
        found.append(Case("SIFT, 40 components", rows, Gaussian(), 40.0))
    pictures = data / "bsds" / "train_gray_u8.npz"
    if pictures.exists():
        found.append(Case("patches, zero mean", patches(pictures, PATCH_ROWS), ZeroMeanGaussian(), 40.0))
    return found


def run(case: Case, start: str, seed: int) -> Trace:
    """One run from one start, until a lap ends after the case's seconds."""
    model = DPMixture(case.family, random_state=seed, **STARTS[start])
    trace, began = Trace([], [], []), time.process_time()
    for _, info in model.iter_fit(case.rows):
        trace.seconds.append(time.process_time() - began)
        trace.elbos.append(info.elbo / info.rows)
        trace.components.append(info.n_components)
        if trace.seconds[-1] >= case.seconds:
            break
    return trace


def reached(trace: Trace, level: float) -> str:
    """Seconds at which a run passed a level."""
    passed = [seconds for seconds, elbo in zip(trace.seconds, trace.elbos, strict=True) if elbo >= level]
    return f"{passed[0]:.0f}" if passed else "-"


def levels_of(traces: dict[str, Trace], budget: float) -> list[float]:
    """The best ELBO of any run after a quarter, a half and all of the time that each has."""
    marks = [budget * share for share in (0.25, 0.5, 1.0)]
    pairs = [list(zip(trace.seconds, trace.elbos, strict=True)) for trace in traces.values()]
    first = min(run[0][1] for run in pairs)
    return [max([first, *(elbo for run in pairs for seconds, elbo in run if seconds <= mark)]) for mark in marks]


def compare(case: Case, seed: int) -> dict[str, Trace]:
    """All starts on one data set, their table printed."""
    for start in STARTS:
        run(case._replace(rows=case.rows[:2000], seconds=0.1), start, seed)
    traces = {start: run(case, start, seed) for start in STARTS}
    levels = levels_of(traces, case.seconds)
    print(f"{case.name}, {len(case.rows)} rows, seed {seed}", flush=True)
    lines = [
        [
            start,
            *(reached(trace, level) for level in levels),
            f"{trace.elbos[-1]:.4f} at {trace.seconds[-1]:.0f} s",
            trace.components[-1],
        ]
        for start, trace in traces.items()
    ]
    heads = [f"s to {level:.3f}" for level in levels]
    print_table(["start", *heads, "last ELBO/row", "K"], lines)
    return traces


def main() -> None:
    """Print a table a data set."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    for case in cases(arguments.data, arguments.small):
        for seed in arguments.seeds:
            traces = compare(case, seed)
            assert all(np.isfinite(trace.elbos).all() for trace in traces.values()), "an ELBO is not finite"


if __name__ == "__main__":
    main()
