"""Cost per row with many components if only candidates are evaluated, and the loss of ELBO.

Full Gaussians on SIFT in 32 principal components, and zero-mean Gaussians on 8x8 patches minus their mean (D = 64),
from a k-means++ start without moves. For each: processor time per row of a dense lap with 100 components, and of laps
with candidates and dense ones with 1000; nats per row by which the ELBO under the last posterior is lower with
candidates than dense ("lost"); and the ELBO per row after a number of laps, with one of ten dense and with all dense.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import draw_clusters, leading_components, options, print_table

from dpdist import Candidates, DPMixture
from dpdist.data import ArraySource
from dpdist.data.base import Source
from dpdist.execution import SerialBackend
from dpdist.inference.mixture.engine import laps
from dpdist.inference.mixture.local_step import LocalStepTask, visit
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.state import State
from dpdist.models.families import Family, Gaussian, ZeroMeanGaussian
from dpdist.models.mixture import Posterior
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.methods.mixture import MemoizedMixture


class Size(NamedTuple):
    """How large the benchmark is."""

    rows: int
    partition_rows: int
    few: int
    many: int
    laps: int


FULL, SMALL = Size(200_000, 25_000, 100, 1000, 24), Size(3_000, 1_000, 10, 40, 6)


class Case(NamedTuple):
    """Rows and the family that is fitted to them."""

    name: str
    rows: np.ndarray
    family: Family


class Trace(NamedTuple):
    """Laps of a fit.

    Parameters
    ----------
    elbos : nats a row
    dense, narrow : processor seconds a row of laps in which every row is looked at for all components, and of others
    problem, before, state : the run, the state before the last lap, and after it
    """

    elbos: list[float]
    dense: list[float]
    narrow: list[float]
    problem: Problem
    before: State
    state: State


def patches(path: Path, count: int) -> np.ndarray:
    """Patches of 8x8 pixels at stride 4, each less its mean, (count, 64) drawn from all."""
    pictures = np.load(path)
    windows = [
        np.lib.stride_tricks.sliding_window_view(pictures[name], (8, 8), axis=(1, 2))[:, ::4, ::4].reshape(-1, 64)
        for name in ("landscape", "portrait")
    ]
    rows = np.concatenate(windows)
    chosen = rows[np.random.default_rng(0).permutation(len(rows))[:count]].astype(np.float64)
    return np.asarray(chosen - chosen.mean(axis=1, keepdims=True))


def cases(size: Size, data: Path, small: bool) -> Iterator[Case]:
    """The data sets that are there; drawn clusters at the reduced size."""
    if small:
        yield Case("drawn clusters", draw_clusters(size.rows, 4, size.many, seed=0, apart=2.0)[0], Gaussian())
        return
    pictures, sift = data / "bsds" / "train_gray_u8.npz", data / "sift_bsds" / "sift_bsds_train_200k.npz"
    if sift.exists():
        rows = leading_components(np.load(sift)["sift"].astype(np.float64), 32)
        yield Case("SIFT, 32 components", rows[: size.rows], Gaussian())
    if pictures.exists():
        yield Case("8x8 patches", patches(pictures, size.rows), ZeroMeanGaussian())


def fit(case: Case, size: Size, components: int, candidates: Candidates) -> Trace:
    """So many laps."""
    model = DPMixture(
        case.family,
        initial="k-means++",
        initial_components=components,
        moves=[],
        candidates=candidates,
        tolerance=0.0,
        random_state=0,
    )
    source, backend = ArraySource(case.rows, partition_rows=size.partition_rows), SerialBackend()
    problem, state = MemoizedMixture().begin(model.spec(), source, backend)
    elbos, dense, narrow, before, began = list[float](), list[float](), list[float](), state, time.process_time()
    for following, info in islice(laps(problem, source, state, backend), size.laps):
        (dense if state.candidates is None else narrow).append((time.process_time() - began) / len(case.rows))
        elbos.append(info.elbo / len(case.rows))
        before, state, began = state, following, time.process_time()
    return Trace(elbos, dense, narrow, problem, before, state)


def lost(trace: Trace, source: Source) -> float:
    """Nats a row by which the bound under the last posterior is lower by candidates than by all components."""
    problem, state = trace.problem, trace.state
    total = reduce(add, state.batch_summaries)
    posterior = problem.model.posterior(total.summary, problem.precision)
    assert trace.before.candidates is not None, "the last lap is by candidates"
    bounds = [
        problem.model.elbo(summed(problem, source, state, posterior, candidates), total.summary)
        for candidates in (None, trace.before.candidates)
    ]
    return float(bounds[0] - bounds[1]) / source.shape[0]


def summed(
    problem: Problem, source: Source, state: State, posterior: Posterior, candidates: np.ndarray | None
) -> Summary:
    """The summary of all rows under a posterior, each looked at for the candidates of its owner, or for everything."""
    components = posterior.coefficients.shape[1]
    task = LocalStepTask(posterior, (), np.zeros(components), most=0, seed=0, lap=0, candidates=candidates)
    batches, seen = len(state.batch_summaries), list[Summary]()
    for batch, kept in enumerate(state.batch_summaries):
        partitions = source.partitions[batch::batches]
        assert kept.owners is not None, "the last visit found the owners of rows"
        owners = np.split(kept.owners, np.cumsum([each.rows for each in partitions])[:-1])
        visits = [visit(each, problem.preparation, task, own) for each, own in zip(partitions, owners, strict=True)]
        seen += [each.batch_summary.summary for each in visits]
    return reduce(add, seen)


def measure(case: Case, size: Size, beside_dense: bool) -> list[str]:
    """One line of the table, with or without a fit of all dense laps."""
    few = fit(case, size._replace(laps=4), size.few, Candidates(every=1))
    many = fit(case, size, size.many, Candidates(components=min(200, size.many)))
    base, narrow, dense = (
        1e6 * float(np.median(each)) for each in (few.dense[1:], many.narrow, many.dense[1:] or many.dense)
    )
    plain = f"{fit(case, size, size.many, Candidates(every=1)).elbos[-1]:.4f}" if beside_dense else "-"
    missed = lost(many, ArraySource(case.rows, partition_rows=size.partition_rows))
    assert -1e-9 < missed < 1e-2, f"{case.name}: {missed} nats a row are lost by candidates"
    return [
        case.name,
        f"{base:.1f}",
        f"{narrow:.1f}",
        f"{dense:.1f}",
        f"{narrow / base:.2f}",
        f"{dense / base:.2f}",
        f"{missed:.1e}",
        f"{many.elbos[-1]:.4f}",
        plain,
    ]


def main() -> None:
    """Run the benchmark and print its table."""
    parser = options(__doc__)
    parser.add_argument("--set", default="", help="how the name of a data set begins; all by default")
    parser.add_argument("--rows", type=int, default=FULL.rows, help="at most; there are 1,880,200 patches")
    parser.add_argument("--without-dense", action="store_true", help="leave out the fit whose laps are all dense")
    given = parser.parse_args()
    size = SMALL if given.small else FULL._replace(rows=given.rows)
    chosen = (case for case in cases(size, given.data, given.small) if case.name.startswith(given.set))
    table = [measure(case, size, not given.without_dense) for case in chosen]
    few, many = f"K={size.few}", f"K={size.many}"
    heads = ["rows of", few, f"{many} by candidates", f"{many} dense", f"/ {few}", f"dense / {few}"]
    print(f"{size.rows} rows in partitions of {size.partition_rows}, {size.laps} laps; microseconds of a core a row")
    print_table([*heads, "lost", "ELBO", "dense ELBO"], table)


if __name__ == "__main__":
    main()
