"""The local step compared with the time of its matrix products alone.

One visit (features, logits, softmax, truncation, entropies, statistics) is compared with its two products, (block x
F)(F x K) and (K x block)(block x F), on blocks of the same size, on one thread. A ratio of 1 is the speed of BLAS
itself. It can exceed 1 because the second product uses only the few responsibilities above zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import alternate, digits, draw_clusters, options, print_table, spread

from dpdist import DPMixture
from dpdist.core.threads import one_thread
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.blocks import block_rows
from dpdist.inference.mixture.engine import laps
from dpdist.inference.mixture.local_step import LocalStepTask, Visit, visit
from dpdist.inference.mixture.problem import Problem
from dpdist.models.mixture import Precision, local_step
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.methods.mixture import MemoizedMixture

LAPS = 5  # before the posterior counts as that of a fit under way


class Case(NamedTuple):
    """Rows and the statistics of a model of them."""

    name: str
    rows: np.ndarray
    problem: Problem
    summary: Summary


class Size(NamedTuple):
    """How large the benchmark is."""

    rows: int
    columns: int
    components: int
    blocks: int
    rounds: int


FULL, SMALL = Size(60_000, 50, 100, 40, 15), Size(5_000, 8, 5, 1, 3)


def concentrated(name: str, rows: np.ndarray, components: int) -> Case:
    """A model as it is a few laps after a k-means++ start."""
    model = DPMixture(initial="k-means++", initial_components=components, moves=[], random_state=0)
    source, backend = ArraySource(rows), SerialBackend()
    problem, state = MemoizedMixture().begin(model.spec(), source, backend)
    *_, (_, info) = islice(laps(problem, source, state, backend), LAPS)
    return Case(name, rows, problem, info.total)


def dense(rows: np.ndarray, components: int) -> Case:
    """A model whose components are all but the same, so that no responsibility is small."""
    shares = np.random.default_rng(1).dirichlet(np.full(components, 50.0), size=len(rows))
    problem, state = MemoizedMixture().begin(
        DPMixture(initial=shares, random_state=0).spec(), ArraySource(rows), SerialBackend()
    )
    assert state.start is not None, "responsibilities were given"
    return Case("dense", rows, problem, state.start.summary)


def cases(size: Size, data: Path) -> Iterator[Case]:
    """Drawn clusters, the digits if they are there, and a model without structure."""
    drawn, _ = draw_clusters(size.rows, size.columns, size.components, seed=0, apart=0.5)
    yield concentrated("drawn clusters", drawn, size.components)
    real = None if size is SMALL else digits(data, size.columns)
    if real is not None:
        yield concentrated("MNIST digits", real, size.components)
    yield dense(drawn, size.components)


def step_of(case: Case, dtype: type, count: int) -> tuple[Callable[[], Visit], float]:
    """The visit of `count` blocks of rows, and the share of responsibilities above zero in the first."""
    posterior = case.problem.model.posterior(case.summary, Precision(dtype))
    taken = count * block_rows(case.summary.stats.shape[1])
    assert taken <= len(case.rows), "the step works through as many blocks as the products"
    partition = ArraySource(case.rows[:taken], partition_rows=taken).partitions[0]
    task = LocalStepTask(posterior, (), np.zeros(len(case.summary.entropy)), most=0, seed=0, lap=1)
    rows = case.problem.preparation.apply(case.rows[: block_rows(case.summary.stats.shape[1])])
    resp, _ = local_step(posterior, posterior.family.features(rows, dtype), np.ones(len(rows)))
    return lambda: visit(partition, case.problem.preparation, task), float((resp > 0).mean())


def products_of(case: Case, dtype: type, count: int) -> tuple[Callable[[], None], float]:
    """The two matrix products of `count` blocks, and their flops."""
    components, columns = case.summary.stats.shape
    height = block_rows(columns)
    rng = np.random.default_rng(2)
    features, coefficients, resp = (
        rng.standard_normal(shape).astype(dtype)
        for shape in ((height, columns), (columns, components), (height, components))
    )
    logits, stats = np.empty((height, components), dtype), np.empty((components, columns), dtype)

    def multiply() -> None:
        with one_thread():
            for _ in range(count):
                np.matmul(features, coefficients, out=logits)
                np.matmul(resp.T, features, out=stats)

    return multiply, 4.0 * count * height * columns * components


def measure(case: Case, dtype: type, size: Size) -> list[str]:
    """One line of the table."""
    step, active = step_of(case, dtype, size.blocks)
    multiply, flops = products_of(case, dtype, size.blocks)
    seconds = alternate({"products": multiply, "step": step}, size.rounds)
    speed = flops / np.median(seconds["products"]) / 1e9
    ratio = spread(seconds["products"] / seconds["step"])
    return [case.name, np.dtype(dtype).name, f"{100 * active:.1f} %", f"{speed:.0f}", ratio]


def check(case: Case, size: Size) -> None:
    """A visit shares out every row, in either precision."""
    for dtype in (np.float64, np.float32):
        step, _ = step_of(case, dtype, size.blocks)
        counts = step().batch_summary.summary.counts
        expected = min(len(case.rows), size.blocks * block_rows(case.summary.stats.shape[1]))
        assert np.isclose(counts.sum(), expected), f"{case.name}: {counts.sum()} of {expected} rows shared out"


def main() -> None:
    """Run the benchmark and print its table."""
    given = options(__doc__).parse_args()
    size = SMALL if given.small else FULL
    table = []
    for case in cases(size, given.data):
        if given.small:
            check(case, size)
        table += [measure(case, dtype, size) for dtype in (np.float64, np.float32)]
    print(f"D={size.columns} K={size.components}, {size.rounds} pairs, one thread")
    print_table(["responsibilities", "products in", "above zero", "GFLOP/s", "product time / step time"], table)


if __name__ == "__main__":
    main()
