"""The sequential pass of isotropic Gaussians: in blocks by matrix products, compared with a tuned loop over rows.

Both start from the same components and pass over the same rows, alternately, with statistics summed in float64. The
loop over rows holds means in float32 and computes each distance directly, vectorised by the compiler. The table also
shows the time of the two matrix products of a block alone, X M^T and X X^T, which is a lower bound of the blocked pass.
Rows are SIFT vectors if available, else drawn. One thread.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from common import alternate, draw_clusters, options, print_table, spread

from dpdist.core.threads import one_thread
from dpdist.inference.sva import Conjugate, OpeningRule
from dpdist.inference.sva.conjugate import BLOCK
from dpdist.kernels.jit import jit, jit_reassociated
from dpdist.kernels.sequential import Law, share_row
from dpdist.models.families import IsotropicGaussian

DIMENSION = 128
#: Share of the total variance that is the known variance of a component.
SHARE = 0.3


@jit_reassociated
def _distance(row: np.ndarray, mean: np.ndarray) -> float:
    total = np.float32(0.0)
    for d in range(row.shape[0]):
        gap = row[d] - mean[d]
        total += gap * gap
    return total


@jit
def _add_row(stats: np.ndarray, row: np.ndarray, weight: float) -> None:
    square, linear = 0.0, stats[1:-1]
    for d in range(row.shape[0]):
        linear[d] += weight * row[d]
        square += row[d] * row[d]
    stats[0] += weight * square
    stats[-1] += weight


@jit
def pass_by_rows(
    rows: np.ndarray, law: Law, variance: float, precision: float, means: np.ndarray, stats: np.ndarray
) -> None:
    """The pass with prior mean zero, one row after the other, no component opened; means and statistics change."""
    count, dimension = means.shape
    weights = stats[:, -1]
    scores, shares = np.empty(count + 1), np.empty(count + 1)
    levels, halves = np.empty(count), np.empty(count)
    active, single = np.empty(count + 1, np.int64), np.empty(dimension, np.float32)
    for k in range(count):
        spread = variance + 1 / (precision + weights[k] / variance)
        levels[k], halves[k] = np.log(weights[k]) - 0.5 * dimension * np.log(2 * np.pi * spread), 0.5 / spread
    for n in range(rows.shape[0]):
        row = rows[n]
        for d in range(dimension):
            single[d] = row[d]
        for k in range(count):
            scores[k] = levels[k] - halves[k] * _distance(single, means[k])
        found, _ = share_row(scores, count, law, shares, active)
        for a in range(found):
            k = active[a]
            gain = np.float32(shares[a] / (variance * precision + weights[k] + shares[a]))
            mean = means[k]
            for d in range(dimension):
                mean[d] += gain * (single[d] - mean[d])
            _add_row(stats[k], row, shares[a])
            spread = variance + 1 / (precision + weights[k] / variance)
            levels[k], halves[k] = np.log(weights[k]) - 0.5 * dimension * np.log(2 * np.pi * spread), 0.5 / spread


def read_rows(data: Path, count: int) -> np.ndarray:
    """(count, 128) float64 about their mean."""
    path = data / "sift_bsds" / "sift_bsds_train_200k.npz"
    if path.exists():
        rows = np.load(path)["sift"][:count].astype(np.float64)
    else:
        rows = 30 * draw_clusters(count, DIMENSION, 300, seed=0, apart=0.3)[0]
    return rows - rows.mean(axis=0)


def compare(rows: np.ndarray, components: int, rounds: int) -> list[str]:
    """A line of the table: rows a second, ratio to the loop over rows, ratio to the matrix products alone."""
    total = rows.var(axis=0).mean()
    family = IsotropicGaussian(SHARE * total, total, np.zeros(DIMENSION))
    learner, rule = Conjugate(family, DIMENSION), OpeningRule(max_components=components)
    first, rest = rows[: len(rows) // 3], rows[len(rows) // 3 :]
    going = learner.begin(np.zeros((0, learner.width)), rule, np.float32, None, 0.0)
    going.advance(first, np.ones(len(first)))
    table, weights, single = going.table, np.ones(len(rest)), rest.astype(np.float32)
    means = family.describe(table)["mean"][1].astype(np.float32)
    law = Law(np.log(rule.concentration), rule.threshold, np.log(rule.floor), len(table))
    results = {}

    def blocked() -> None:
        begun = learner.begin(table, rule, np.float32, None, 0.0)
        begun.advance(rest, weights)
        results["blocked"] = begun.table[:, -1]

    def by_rows() -> None:
        moving, held = means.copy(), table.copy()
        pass_by_rows(rest, law, float(family.variance), 1 / float(family.mean_variance), moving, held)
        results["rows"] = held[:, -1]

    def products() -> None:
        for start in range(0, len(single), BLOCK):
            part = single[start : start + BLOCK]
            part @ means.T
            part @ part.T

    seconds = alternate({"blocked": blocked, "rows": by_rows, "products": products}, rounds)
    gap = np.abs(results["blocked"] - results["rows"]).sum() / len(rest)
    assert gap < 0.05, f"the two passes differ by {gap:.3f} of the rows' weight"
    return [
        str(len(table)),
        f"{len(rest) / np.median(seconds['blocked']):.0f}",
        spread(seconds["rows"] / seconds["blocked"]),
        spread(seconds["blocked"] / seconds["products"]),
    ]


def main() -> None:
    """Print the table."""
    arguments = options(__doc__).parse_args()
    count, rounds = (6000, 1) if arguments.small else (120_000, 7)
    rows = read_rows(arguments.data, count)
    with one_thread():
        lines = [
            compare(rows, components, rounds) for components in ((20,) if arguments.small else (100, 200, 400, 1000))
        ]
    print("float32, D=128; ratios are medians of rounds taken in turn (smallest to largest)")
    print_table(["K", "rows/s", "by rows / blocked", "blocked / products alone"], lines)


if __name__ == "__main__":
    main()
