"""Laps and time of fits with momentum and without it, and where they end.

    python workflows/benchmarks/momentum.py [--seeds 3] [--set moons circles]

Default fits of rows whose clusters overlap, so that a lap goes only a small part of the way: points on two moons, on
two circles and on a rolled sheet, clusters in the plane, Student's t with two degrees of freedom, and scikit-learn's
digits (20 principal components). Each fit is made twice one after the other, with momentum
(:mod:`dpdist.inference.mixture.momentum`) and with its weight set to zero. Seconds are those of the processor.
``--small`` makes one fit of few rows.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from common import options, print_table
from sklearn.datasets import load_digits, make_blobs, make_circles, make_moons, make_swiss_roll
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from dpdist import DPMixture
from dpdist.inference.mixture.momentum import Momentum


class Outcome(NamedTuple):
    """A fit: its laps, processor seconds, ELBO a row and K, and the largest fall of the ELBO in a lap."""

    laps: int
    seconds: float
    elbo: float
    components: int
    fall: float


def sets(rows: int) -> dict[str, np.ndarray]:
    """The rows of each set by its name."""
    return {
        "moons": make_moons(rows, noise=0.08, random_state=0)[0],
        "circles": make_circles(rows, noise=0.05, factor=0.5, random_state=0)[0],
        "roll": make_swiss_roll(rows, noise=0.3, random_state=0)[0],
        "blobs": make_blobs(rows, centers=8, random_state=0)[0],
        "student": np.random.default_rng(0).standard_t(2, size=(rows, 2)),
        "digits": PCA(20, random_state=0).fit_transform(load_digits().data[:rows]),
    }


@contextlib.contextmanager
def without_momentum(disabled: bool) -> Iterator[None]:
    """Fits whose momentum has no weight, if `disabled`."""
    weight = Momentum.weight
    Momentum.weight = 0.0 if disabled else weight  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Momentum.weight = weight  # type: ignore[method-assign]


def fit(rows: np.ndarray, seed: int, plain: bool) -> Outcome:
    """One default fit."""
    began = time.process_time()
    with without_momentum(plain), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = DPMixture(random_state=seed).fit(rows)
    elbo = model.history_["elbo"].to_numpy() / len(rows)
    fall = float(max(0.0, -np.diff(elbo).min(initial=0.0)))
    return Outcome(model.n_iter_, time.process_time() - began, float(elbo[-1]), model.n_components_, fall)


def main() -> None:
    """Run all fits and print their table."""
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", nargs="*", help="names of sets; all by default")
    given = parser.parse_args()
    found = sets(100 if given.small else given.rows)
    lines = []
    for name in ["blobs"] if given.small else given.set or found:
        for seed in range(1 if given.small else given.seeds):
            plain, further = (fit(found[name], seed, disabled) for disabled in (True, False))
            assert further.fall <= 1e-9, "the ELBO fell"
            ratio = f"{further.seconds / plain.seconds:.2f}"
            lines.append([name, seed, plain.laps, further.laps, ratio, f"{further.elbo - plain.elbo:+.4f}"])
            lines[-1] += [plain.components, further.components]
    print_table(["data", "seed", "laps", "with momentum", "seconds", "ELBO/row", "K", "with momentum"], lines)


if __name__ == "__main__":
    main()
