"""A lap of dpdist against an iteration of scikit-learn's BayesianGaussianMixture, on one thread each.

Both fit a Dirichlet-process mixture of full-covariance Gaussians to the same rows from the same k-means++ start,
without moves. An iteration is what scikit-learn's own loop repeats: E-step, M-step, lower bound.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import alternate, digits, draw_clusters, options, print_table, spread
from sklearn.cluster import kmeans_plusplus
from sklearn.metrics import pairwise_distances_argmin
from sklearn.mixture import BayesianGaussianMixture
from threadpoolctl import threadpool_limits

from dpdist import DPMixture
from dpdist.execution import SerialBackend
from dpdist.inference.schedules import Memoized


class Size(NamedTuple):
    """How large the benchmark is."""

    rows: int
    columns: int
    components: int
    rounds: int


FULL, SMALL = Size(60_000, 50, 100, 5), Size(3_000, 8, 6, 3)


def read(size: Size, data: Path) -> np.ndarray:
    """The digits if they are there, else drawn clusters."""
    real = None if size is SMALL else digits(data, size.columns)
    if real is not None:
        return real[: size.rows]
    return draw_clusters(size.rows, size.columns, size.components, seed=0, apart=1.0)[0]


def first_labels(x: np.ndarray, components: int) -> np.ndarray:
    """Each row's nearest of `components` k-means++ seeds, (N,)."""
    seeds, _ = kmeans_plusplus(x, components, random_state=0)
    return pairwise_distances_argmin(x, seeds)


def our_lap(x: np.ndarray, labels: np.ndarray, batches: int | None, dtype: str) -> Callable[[], float]:
    """A function that runs one more lap each time and gives the ELBO."""
    model = DPMixture(
        initial=labels,
        schedule=Memoized(batches=batches),
        moves=[],
        compute_dtype=dtype,
        tolerance=0.0,
        max_laps=None,
        random_state=0,
    )
    run = model.iter_fit(x, backend=SerialBackend())
    return lambda: next(run)[1].elbo


def their_iteration(x: np.ndarray, labels: np.ndarray) -> Callable[[], float]:
    """A function that runs one more iteration of scikit-learn's loop each time and gives its bound."""
    components = int(labels.max()) + 1
    model = BayesianGaussianMixture(n_components=components, weight_concentration_prior_type="dirichlet_process")
    model._check_parameters(x)
    model._initialize(x, np.eye(components, dtype=x.dtype)[labels])

    def iterate() -> float:
        log_norm, log_resp = model._e_step(x)
        model._m_step(x, log_resp)
        return float(model._compute_lower_bound(log_resp, log_norm))

    return iterate


def actions(x: np.ndarray, components: int) -> dict[str, Callable[[], float]]:
    """What is timed, by name."""
    labels = first_labels(x, components)
    ours = {
        f"dpdist {dtype} batches={batches}": our_lap(x, labels, batches, dtype)
        for dtype in ("float64", "float32")
        for batches in (1, 20)
    }
    single = x.astype(np.float32)
    return {"sklearn float64": their_iteration(x, labels), "sklearn float32": their_iteration(single, labels), **ours}


def check(timed: dict[str, Callable[[], float]]) -> None:
    """Bounds rise from lap to lap, theirs and ours, as far as the products' precision goes."""
    for name, action in timed.items():
        before, after = action(), action()
        slack = 1e-5 if "float32" in name else 1e-9
        assert after >= before - slack * abs(before), f"{name}: the bound fell from {before} to {after}"


def main() -> None:
    """Run the benchmark and print its table."""
    given = options(__doc__).parse_args()
    size = SMALL if given.small else FULL
    x = read(size, given.data)
    with threadpool_limits(1):
        timed = actions(x, size.components)
        if given.small:
            check(timed)
        seconds = alternate(timed, size.rounds)
    print(f"N={len(x)} D={size.columns} K={size.components}, {size.rounds} rounds, one thread")
    theirs = seconds["sklearn float64"], seconds["sklearn float32"]
    table = [[name, spread(own, 3), *(spread(other / own) for other in theirs)] for name, own in seconds.items()]
    print_table(["lap or iteration", "seconds", "sklearn float64 / it", "sklearn float32 / it"], table)


if __name__ == "__main__":
    main()
