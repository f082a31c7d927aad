"""One sequential pass compared with a fit, for each Gaussian family, on held-out rows.

Of every data set, four fifths are fitted, in a random order, and the rest are scored. The table shows the number of
clusters and the mean log density of held-out rows, in nats, for the pass, and for fits of the same family from one
component with all moves. The fits use the prior from the data's moments and, for families that learn covariances, also
the prior from clusters of a sample.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from common import digits, draw_clusters, leading_components, options, print_table
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning

from dpdist import SVA, DPMixture
from dpdist.models.families import DiagonalGaussian, Family, Gaussian, IsotropicGaussian

FAMILIES: dict[str, type[Family]] = {
    "gaussian": Gaussian,
    "diagonal": DiagonalGaussian,
    "isotropic": IsotropicGaussian,
}
LAPS, FEW_LAPS = 40, 12
#: Nats a row by which a pass may be worse than a fit at the reduced size.
NEAR = 0.5


def data_sets(data: Path, small: bool) -> dict[str, np.ndarray]:
    """What is learned from, by name."""
    if small:
        return {"clusters": draw_clusters(400, 4, 5, seed=0, apart=3.0)[0]}
    found = {
        "iris": load_iris().data,
        "wine": load_wine().data,
        "breast cancer": load_breast_cancer().data,
        "digits": load_digits().data,
        "digits, 20 components": leading_components(load_digits().data, 20),
        "clusters": draw_clusters(10_000, 10, 30, seed=0, apart=0.8)[0],
    }
    leading = digits(data, 40)
    if leading is not None:
        found["MNIST, 40 components"] = leading[:7_000]
    path = data / "sift_bsds" / "sift_bsds_train_200k.npz"
    if path.exists():
        found["SIFT, 32 components"] = leading_components(np.load(path)["sift"][:10_000].astype(float), 32)
    return found


def main() -> None:
    """Learn everything twice and print a table, a row as soon as it is known."""
    parser = options(__doc__)
    parser.add_argument("--set", action="append", help="name of a data set; all by default")
    given = parser.parse_args()
    laps = FEW_LAPS if given.small else LAPS
    for name, x in data_sets(given.data, given.small).items():
        if given.set and name not in given.set:
            continue
        rows = np.random.default_rng(0).permutation(x)
        learned, held_out = np.split(rows, [len(rows) * 4 // 5])
        table = []
        for label, family in FAMILIES.items():
            passed = SVA(family(), random_state=0).fit(learned)
            priors = ("data", "clusters") if family.spreads else ("data",)
            fits = [DPMixture(family(), prior=prior, random_state=0, max_laps=laps).fit(learned) for prior in priors]
            scores = [float(np.mean(each.score_samples(held_out))) for each in (passed, *fits)]
            cells = zip((passed, *fits), scores, strict=True)
            row = [name, label, *(told for model, score in cells for told in (model.n_components_, f"{score:.3f}"))]
            table.append(row + ["-"] * (8 - len(row)))
            if given.small and label == "gaussian":
                assert scores[0] > scores[1] - NEAR, f"the pass scores {scores[0]:.3f}, the fit {scores[1]:.3f}"
        columns = [
            f"{told} of a {what}" for what in ("pass", "fit", "fit, prior of clusters") for told in ("K", "score")
        ]
        print_table(["data", "family", *columns], table)


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    main()
