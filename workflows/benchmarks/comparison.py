"""Vectors: dpdist compared with other clustering programs, each with its defaults, in its own process on one core.

Of every data set, four fifths are fitted, in a random order, and the rest are scored. scikit-learn's mixtures are given
several numbers of components, and the one with the lowest BIC is taken; the seconds include all of them. Its Bayesian
mixture gets an upper bound. k-means, of scikit-learn and faiss, is given the number that dpdist found. The table shows
processor seconds, number of clusters, mean log density of held-out rows in nats, agreement of the fitted rows' labels
with known classes (adjusted Rand index), and the share of rows without a label. Programs that are not installed
(``dpdist[comparison]``) are left out, and those that take too long are stopped; the table says so.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import digits, draw_clusters, leading_components, options, print_table
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from threadpoolctl import threadpool_limits

import dpdist

COLUMNS = ["data", "method", "seconds", "K", "held out", "Rand", "unlabelled"]
#: Numbers of components among which BIC chooses.
NUMBERS = (2, 5, 10, 20, 40, 80)
#: Components at most of the Bayesian mixture.
CAP = 50


class Data(NamedTuple):
    """Rows to learn from, rows to score, and classes of the former where they are known."""

    learned: np.ndarray
    held_out: np.ndarray
    classes: np.ndarray | None


class Found(NamedTuple):
    """What a method found: a label of each learned row, -1 for none, and a held-out row's log density if it has one."""

    labels: np.ndarray
    score: float | None = None


def by_dpdist(data: Data, known: int, **settings: Any) -> Found:
    """A Dirichlet-process mixture."""
    model = dpdist.DPMixture(random_state=0, **settings).fit(data.learned)
    return Found(model.labels_, model.score(data.held_out))


def by_pass(data: Data, known: int) -> Found:
    """One sequential pass."""
    model = dpdist.SVA(dpdist.families.Gaussian(), random_state=0).fit(data.learned)
    return Found(model.labels_, model.score(data.held_out))


def by_bic(data: Data, known: int) -> Found:
    """Expectation maximisation at several numbers of components."""
    models = [GaussianMixture(number, random_state=0).fit(data.learned) for number in NUMBERS]
    best = min(models, key=lambda model: model.bic(data.learned))
    return Found(best.predict(data.learned), best.score(data.held_out))


def by_bayes(data: Data, known: int) -> Found:
    """scikit-learn's variational mixture; components that no row belongs to most are not counted."""
    model = BayesianGaussianMixture(n_components=CAP, max_iter=200, random_state=0).fit(data.learned)
    return Found(model.predict(data.learned), model.score(data.held_out))


def by_hdbscan(data: Data, known: int) -> Found:
    """Clusters of density, of 15 rows or more."""
    import hdbscan

    return Found(hdbscan.HDBSCAN(min_cluster_size=15, core_dist_n_jobs=1).fit_predict(data.learned))


def by_k_means(data: Data, known: int) -> Found:
    """scikit-learn's k-means, one start."""
    return Found(KMeans(known, n_init=1, random_state=0).fit_predict(data.learned))


def by_faiss(data: Data, known: int) -> Found:
    """faiss' k-means."""
    import faiss

    faiss.omp_set_num_threads(1)
    rows = np.ascontiguousarray(data.learned, dtype=np.float32)
    model = faiss.Kmeans(rows.shape[1], known, seed=1)
    model.train(rows)
    return Found(model.index.search(rows, 1)[1][:, 0])


def by_default(data: Data, known: int) -> Found:
    """By default."""
    return by_dpdist(data, known)


def by_clusters(data: Data, known: int) -> Found:
    """With a prior of clusters."""
    return by_dpdist(data, known, prior="clusters")


#: By the name in the table: the method, and the module that it needs beside those of the package.
METHODS: dict[str, tuple[Callable[[Data, int], Found], str]] = {
    "dpdist": (by_default, "numpy"),
    "dpdist, prior of clusters": (by_clusters, "numpy"),
    "dpdist SVA": (by_pass, "numpy"),
    "GaussianMixture by BIC": (by_bic, "sklearn"),
    f"BayesianGaussianMixture {CAP}": (by_bayes, "sklearn"),
    "HDBSCAN": (by_hdbscan, "hdbscan"),
    "k-means, dpdist's K": (by_k_means, "sklearn"),
    "faiss k-means, dpdist's K": (by_faiss, "faiss"),
}


def data_sets(data: Path, small: bool) -> Iterator[tuple[str, Data]]:
    """What is learned from, by name."""
    if small:
        yield "clusters", split(*draw_clusters(400, 4, 6, seed=0))
        return
    yield "20 Gaussians, 20,000 x 8", split(*draw_clusters(25_000, 8, 20, seed=0))
    found = load_digits()
    yield "digits, 1,438 x 20", split(leading_components(found.data, 20), found.target)
    path = data / "sift_bsds" / "sift_bsds_train_200k.npz"
    if path.exists():
        rows = np.load(path)["sift"][:50_000].astype(float)
        yield "SIFT, 40,000 x 32", split(leading_components(rows, 32), None)
    leading = digits(data, 50)
    if leading is not None:
        classes = np.load(data / "mnist" / "mnist_train60k.npz")["labels"]
        yield "MNIST, 48,000 x 50", split(leading, classes)


def split(x: np.ndarray, classes: np.ndarray | None) -> Data:
    """Four fifths and the rest, in a random order."""
    order = np.random.default_rng(0).permutation(len(x))
    first, rest = np.split(order, [len(x) * 4 // 5])
    return Data(x[first], x[rest], None if classes is None else classes[first])


def work(method: Callable[[Data, int], Found], data: Data, known: int, out: Connection) -> None:
    """In a process of its own: what was found, in how many seconds."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        began = time.process_time()
        found = method(data, known)
    out.send((found, time.process_time() - began))


def measured(method: Callable[[Data, int], Found], data: Data, known: int, limit: float) -> tuple[Found, float] | None:
    """What a method found, and its seconds; None if it took more than `limit` seconds by the clock."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(method, data, known, theirs))
    process.start()
    theirs.close()
    answer = ours.recv() if ours.poll(limit) else None
    process.terminate()
    process.join()
    return answer


def row(name: str, label: str, data: Data, answer: tuple[Found, float] | None, limit: float) -> list[object]:
    """A line of the table."""
    if answer is None:
        return [name, label, f"> {limit:.0f}", *["-"] * 4]
    found, seconds = answer
    labelled = found.labels >= 0
    score = "-" if found.score is None else f"{found.score:.3f}"
    rand = "-" if data.classes is None else f"{adjusted_rand_score(data.classes, found.labels):.3f}"
    count = len(np.unique(found.labels[labelled]))
    return [name, label, f"{seconds:.1f}", count, score, rand, f"{1 - labelled.mean():.0%}"]


def main() -> None:
    """Compare, and print a table a data set."""
    parser = options(__doc__)
    parser.add_argument("--set", action="append", help="how the name of a data set begins; all by default")
    parser.add_argument("--seconds", type=float, default=900.0, help="of each method at most, by the clock")
    given = parser.parse_args()
    missing = sorted({module for _, module in METHODS.values() if importlib.util.find_spec(module) is None})
    if missing:
        print(f"left out, not installed: {', '.join(missing)}; with: pip install 'dpdist[comparison]'")
    for name, data in data_sets(given.data, given.small):
        if given.set and not name.startswith(tuple(given.set)):
            continue
        known, table = 0, []
        for label, (method, module) in METHODS.items():
            if module in missing:
                continue
            answer = measured(method, data, known, given.seconds)
            table.append(row(name, label, data, answer, given.seconds))
            print(*table[-1], sep=" | ", flush=True)
            if label == "dpdist":
                assert answer is not None, "dpdist took too long; give it more --seconds"
                known = int(str(table[-1][3]))
        print_table(COLUMNS, table)
        if given.small:
            assert known == 6, f"dpdist found {known} of 6 clusters"


if __name__ == "__main__":
    main()
