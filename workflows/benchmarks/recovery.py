"""How often a fit from one cluster finds the true number of clusters, and how good its ELBO is.

Drawn clusters: 100,000 rows in 16 dimensions from 20 Gaussians of equal weight, with means drawn from N(0, 5^2 I) and
covariances from a Wishart with 2D degrees of freedom and mean I, so that means are about 28 standard deviations apart.
Each seed draws its own data and fits them with the library's defaults.

Digits reference: the data and the prior of a batch run by an independent program (1,797 x 20; its ELBO from a given
start with 15 clusters is in the same file), fitted from one cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import draw_clusters, options, print_table, spread
from sklearn.metrics import adjusted_rand_score

from dpdist import DPMixture
from dpdist.models.families import Gaussian


class Size(NamedTuple):
    """How large the benchmark is."""

    rows: int
    columns: int
    clusters: int
    seeds: int
    oracle_seeds: int


class Outcome(NamedTuple):
    """One fit."""

    seed: int
    clusters: int
    elbo: float
    rand: float  # adjusted Rand index against the truth, NaN where there is none
    laps: int
    seconds: float


FULL, SMALL = Size(100_000, 16, 20, 10, 5), Size(4_000, 8, 6, 2, 0)
#: Median bound that the runs on the oracle's data should reach, in nats.
ORACLE_TARGET = -102_900.0


def fit_timed(model: DPMixture, x: np.ndarray, truth: np.ndarray | None) -> Outcome:
    """Fit a model and see what came out."""
    began = time.perf_counter()
    model.fit(x)
    seconds = time.perf_counter() - began
    rand = float("nan") if truth is None else adjusted_rand_score(truth, model.predict(x))
    return Outcome(model.random_state, model.n_components_, model.elbo_, rand, model.n_iter_, seconds)


def recover(seed: int, size: Size) -> Outcome:
    """Draw clusters and look for them."""
    x, truth = draw_clusters(size.rows, size.columns, size.clusters, seed)
    prior = Gaussian(mean=0.0, mean_precision=1e-4, degrees_of_freedom=size.columns + 2, scale=1.0)
    return fit_timed(DPMixture(prior, concentration=1.0, random_state=seed), x, truth)


def fit_oracle(path: Path) -> Callable[[int], Outcome]:
    """A function from a seed to a fit of the oracle's data under its prior."""
    with np.load(path) as stored:
        x, concentration = stored["X"], float(stored["t0_gamma0"])
        mean_precision, degrees = float(stored["t0_prior_kappa"]), float(stored["t0_prior_nu"])
        prior = Gaussian(stored["t0_prior_m"], mean_precision, degrees, stored["t0_prior_B"])
    return lambda seed: fit_timed(DPMixture(prior, concentration=concentration, random_state=seed), x, None)


def print_outcomes(title: str, outcomes: list[Outcome]) -> None:
    """A table of fits."""
    print(title)
    columns = ["seed", "clusters", "ELBO", "Rand", "laps", "seconds"]
    print_table(columns, [_line(outcome) for outcome in outcomes])


def _line(outcome: Outcome) -> list[str]:
    seed, clusters, elbo, rand, laps, seconds = outcome
    known = "-" if np.isnan(rand) else f"{rand:.4f}"
    return [str(seed), str(clusters), f"{elbo:.1f}", known, str(laps), f"{seconds:.1f}"]


def report_recovery(size: Size) -> int:
    """Fit the drawn clusters with every seed; how many fits found the number of clusters."""
    outcomes = [recover(seed, size) for seed in range(size.seeds)]
    print_outcomes(f"{size.rows} x {size.columns}, {size.clusters} clusters", outcomes)
    exact = sum(outcome.clusters == size.clusters for outcome in outcomes)
    print(f"exactly {size.clusters} clusters: {exact} of {size.seeds} seeds")
    return exact


def report_oracle(path: Path, seeds: int) -> None:
    """Fit the oracle's data with every seed."""
    if not seeds or not path.exists():
        print(f"digits oracle: skipped, {'its file is not there' if seeds else 'at this size'}")
        return
    one_seed = fit_oracle(path)
    outcomes = [one_seed(seed) for seed in range(seeds)]
    print_outcomes("digits oracle, from one cluster", outcomes)
    print(f"median ELBO: {spread((o.elbo for o in outcomes), 1)}; target {ORACLE_TARGET:.0f} or above")


def main() -> None:
    """Run the benchmark and print its tables."""
    given = options(__doc__).parse_args()
    size = SMALL if given.small else FULL
    exact = report_recovery(size)
    report_oracle(given.data.parent / "oracles" / "vb_digits20_covdata.npz", size.oracle_seeds)
    if given.small:
        assert exact == size.seeds, f"only {exact} of {size.seeds} seeds found all clusters"


if __name__ == "__main__":
    main()
