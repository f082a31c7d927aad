"""Loss of accuracy by products in float32, along the original columns and along the axes that a run chooses.

Zero-mean Gaussians on 8x8 patches minus their mean, whose columns cancel in every row, and full Gaussians on MNIST
pixels without margins. A model is fitted in float64, without moves; then the log probabilities of some rows are
computed in both precisions. "error" is the largest difference in nats among components with more than 1e-8 of a row.
"flipped" is the share of rows whose best component differs, and "gap" the largest difference in nats between the two
components. "time" is the processor time of the local step in float32 relative to float64.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from candidates import patches
from common import alternate, options, print_table, spread

from dpdist import DPMixture
from dpdist.core.threads import one_thread
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.mixture.engine import laps
from dpdist.models.families import Family, Gaussian, ZeroMeanGaussian
from dpdist.models.mixture import Precision, local_step
from dpdist.runs.methods.mixture import MemoizedMixture

#: A component holds more than 1e-8 of a row if it is not further below the best.
NEAR = float(np.log(1e8))
#: Rows of which log probabilities are compared, and rounds of the timing.
COMPARED, ROUNDS = 20_000, 5


class Case(NamedTuple):
    """Rows, what is fitted to them, with how many components, and for how many laps."""

    name: str
    rows: np.ndarray
    family: Family
    components: int
    laps: int


def cases(data: Path, small: bool, count: int) -> Iterator[Case]:
    """The data sets that are there; drawn rows whose columns cancel at the reduced size."""
    if small:
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(4000, 16)) @ rng.normal(size=(16, 16)) * rng.gamma(1.0, 1.0, size=(4000, 1))
        yield Case("drawn", rows - rows.mean(axis=1, keepdims=True), ZeroMeanGaussian(), 10, 2)
        return
    pictures, digits = data / "bsds" / "train_gray_u8.npz", data / "mnist" / "mnist_train60k.npz"
    if pictures.exists():
        yield Case("8x8 patches, zero-mean", patches(pictures, count), ZeroMeanGaussian(), 100, 4)
    if digits.exists():
        images = np.load(digits)["images"][:, 4:24:2, 4:24:2].reshape(-1, 100).astype(np.float64)
        yield Case("MNIST, every other pixel, full", images, Gaussian(), 50, 4)


def measure(case: Case, dtype: str) -> list[str]:
    """A line of the table, of a run whose products are of `dtype`."""
    start = DPMixture(
        case.family,
        initial="k-means++",
        initial_components=case.components,
        moves=[],
        tolerance=0.0,
        compute_dtype=dtype,
        random_state=0,
    )
    source, backend = ArraySource(case.rows), SerialBackend()
    problem, state = MemoizedMixture().begin(start.spec(), source, backend)
    exact = replace(problem, precision=Precision())
    *_, (_, info) = islice(laps(exact, source, state, backend), case.laps)
    model, rows = problem.model, problem.preparation.apply(case.rows[:COMPARED])
    posteriors = [model.posterior(info.total, Precision(each)) for each in (np.float64, np.float32)]
    long, short = (
        np.asarray(each.logits(model.family.features(rows, each.precision.dtype)), dtype=np.float64)
        for each in posteriors
    )
    error = np.abs(short - long)[long > long.max(axis=1, keepdims=True) - NEAR].max()
    flipped, best = long.argmax(axis=1) != short.argmax(axis=1), np.sort(long, axis=1)
    gap = (best[:, -1] - best[:, -2])[flipped].max(initial=0.0)
    part, weights = rows[:4096], np.ones(min(4096, len(rows)))
    with one_thread():
        seconds = alternate(
            {
                str(each.precision.dtype): lambda each=each: local_step(
                    each, model.family.features(part, each.precision.dtype), weights
                )
                for each in posteriors
            },
            ROUNDS,
            time.process_time,
        )
    long_seconds, short_seconds = seconds.values()
    along = "the run's axes" if dtype == "float32" else "columns"
    figures = [f"{error:.4f}", f"{100 * flipped.mean():.3f} %", f"{gap:.4f}", spread(short_seconds / long_seconds)]
    return [case.name, str(len(case.rows)), str(case.components), along, *figures]


def main() -> None:
    """Run the benchmark and print its table."""
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="patches the statistics are of; there are 1,880,200")
    given = parser.parse_args()
    found = cases(given.data, given.small, given.rows)
    table = [measure(case, dtype) for case in found for dtype in ("float64", "float32")]
    if given.small:
        assert float(table[1][4]) < 0.01, "along its own axes a run keeps what counts"
    print_table(["rows", "n", "K", "along", "error", "flipped", "gap", "time"], table)


if __name__ == "__main__":
    main()
