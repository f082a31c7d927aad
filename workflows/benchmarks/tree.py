"""Cost of a merge tree compared with laps of the fit, and whether clusters that were cut in two are merged again.

The 20 Gaussians of `recovery.py`, each cut in two along its first column: a model of 40 clusters makes laps without
moves and with default moves, and its tree is grown from the same rows. Processor seconds, alternately. The tree is then
cut at 20 clusters, and the ELBO of its levels is compared with that of rows whose responsibilities are added up and
summarised again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from common import alternate, draw_clusters, options, print_table, spread
from sklearn.metrics import adjusted_rand_score

from dpdist import DPMixture
from dpdist.data import ArraySource
from dpdist.inference.hierarchy.shares import FLOOR
from dpdist.models.sufficient_statistics import Summary


class Size(NamedTuple):
    """How large the benchmark is."""

    rows: int
    columns: int
    rounds: int


FULL, SMALL = (Size(100_000, 16, 3), Size(1_000_000, 16, 3)), (Size(2_000, 16, 1),)
CLUSTERS, LAPS = 20, 4


def halves(size: Size) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, their clusters, and the halves of these."""
    x, owners = draw_clusters(size.rows, size.columns, CLUSTERS, 0)
    middle = np.array([np.median(x[owners == k, 0]) for k in range(CLUSTERS)])
    return x, owners, 2 * owners + (x[:, 0] > middle[owners])


def largest_error(model: DPMixture, x: np.ndarray) -> float:
    """By how much of itself the ELBO of any level differs from that of its own responsibilities."""
    predictor, tree = model._predictor.uncut, model.tree_
    rows = predictor.preparation.apply(x)
    family, resp = predictor.model.family, model.predict_proba(x)
    resp[resp < FLOOR] = 0.0
    resp /= resp.sum(axis=1, keepdims=True)
    features, base = family.features(rows), float(family.log_base_measure(rows).sum())
    errors = []
    for level in range(1, len(tree) + 1):
        summed = resp @ np.eye(level)[tree.groups(level)]
        stats, shares = summed.T @ features, np.where(summed > 0, summed, 1.0)
        order = np.argsort(-stats[:, -1])
        entropy = -(summed * np.log(shares)).sum(axis=0)
        found = predictor.model.elbo(Summary(stats[order], entropy[order], base))
        errors.append(abs(found / tree.elbo[len(tree) - level] - 1))
    return max(errors)


def measured(size: Size) -> tuple[object, ...]:
    """A line of the table; the halves have to come back."""
    x, owners, cut_in_two = halves(size)
    source = ArraySource(x)

    def fit(laps: int, moves: list[str] | None) -> DPMixture:
        asked = {"initial": cut_in_two, "moves": moves, "max_laps": laps, "tolerance": 0.0, "random_state": 0}
        return DPMixture(**asked).fit(source)

    model = fit(LAPS, [])
    actions: dict[str, Callable[[], object]] = {"tree": lambda: model.tree(source)}
    for name, moves in (("bare", []), ("moving", None)):
        for laps in (1, LAPS):
            actions[f"{name} {laps}"] = partial(fit, laps, moves)
    seconds = alternate(actions, size.rounds, time.process_time)
    bare, moving = ((seconds[f"{name} {LAPS}"] - seconds[f"{name} 1"]) / (LAPS - 1) for name in ("bare", "moving"))
    labels, tree = model.cut(CLUSTERS).predict(x), seconds["tree"]
    assert len({*zip(labels.tolist(), owners.tolist(), strict=True)}) == CLUSTERS, "halves did not come back"
    laps = [spread(each) for each in (bare, moving, tree, tree / bare, tree / moving)]
    return (*size[:2], *laps, f"{adjusted_rand_score(owners, labels):.4f}", f"{largest_error(model, x):.1e}")


def main() -> None:
    """Run the benchmark and print its table."""
    given = options(__doc__).parse_args()
    columns = ("rows", "columns", "bare lap, s", "lap, s", "tree, s", "in bare laps", "in laps", "Rand at 20", "error")
    print_table(columns, [measured(size) for size in (SMALL if given.small else FULL)])


if __name__ == "__main__":
    main()
