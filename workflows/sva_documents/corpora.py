"""Documents as topic proportions: Daily KOS, NIPS, and a drawn corpus of 300,000.

The proportions of KOS are part of the shared data. Those of NIPS are computed and stored here, by an HDP topic model of
its articles with default settings, except for the initial number of topics and the laps. Drawn documents come from
clusters of unequal weights, each a Dirichlet about a mean with few large topics; their true distribution is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import gammaln, logsumexp

#: Rows held out of KOS and NIPS, and of drawn documents.
HELD_OUT, DRAWN_HELD_OUT = 0.2, 5000
#: Topics that the model of NIPS begins with, and its laps.
TOPICS, LAPS = 50, 6
#: Drawn documents: how many, topics, kinds, the kinds' precision; and those of --small.
DRAWN, DRAWN_TOPICS, KINDS, PRECISION = 300_000, 30, 100, 40.0
FEW, FEW_KINDS = 3_000, 15


class Kinds(NamedTuple):
    """What drawn documents come from: ``weights`` (K,), Dirichlet parameters ``scale`` (K, D)."""

    weights: np.ndarray
    scale: np.ndarray

    def score(self, logs: np.ndarray) -> float:
        """Mean log density of rows whose logs are (n, D), in nats."""
        level = gammaln(self.scale.sum(axis=1)) - gammaln(self.scale).sum(axis=1) + np.log(self.weights)
        return float(logsumexp(logs @ (self.scale - 1).T + level, axis=1).mean())


class Documents(NamedTuple):
    """``train`` and ``test`` (n, D), rows on the simplex; ``topics``, the first words of each; kinds where known."""

    name: str
    train: np.ndarray
    test: np.ndarray
    topics: list[str]
    kinds: Kinds | None = None


def read(name: str, data: Path, out: Path, small: bool) -> Documents:
    """A corpus; where KOS or NIPS are not there, drawn documents of their size take its place."""
    if name == "kos" and (data / "topic_props").exists():
        return split("kos", *read_kos(data / "topic_props"))
    if name == "nips" and (data / "text_nips").exists():
        return split("nips", *read_nips(data / "text_nips", out / "nips_proportions.npz"))
    if name == "drawn" and not small:
        return drawn(name, DRAWN, KINDS, DRAWN_HELD_OUT)
    print(f"drawn documents take the place of {name}.")
    return drawn(name, FEW, FEW_KINDS, FEW // 5)


def read_kos(folder: Path) -> tuple[np.ndarray, list[str]]:
    """Topic proportions (N, D) and each topic's words."""
    lines = (folder / "kos_theta_k30_topwords.txt").read_text().splitlines()
    proportions = np.load(folder / "kos_theta_k30.npz")["theta"]
    return proportions, [line.partition(":")[2].strip() for line in lines]


def read_nips(folder: Path, kept: Path) -> tuple[np.ndarray, list[str]]:
    """Topic proportions (N, D) and each topic's words, found unless they are kept."""
    if not kept.exists():
        from dpdist import HDPTopicModel

        stored = np.load(folder / "nips.npz")
        parts = stored["data"].astype(float), stored["indices"], stored["indptr"]
        counts = sparse.csr_array(parts, shape=tuple(stored["shape"]))
        model = HDPTopicModel(initial_topics=TOPICS, max_laps=LAPS, random_state=0).fit(counts)
        words = model.top_words((folder / "vocab.txt").read_text().split(), 6)
        np.savez(kept, proportions=model.transform(counts), topics=np.array([" ".join(each) for each in words]))
    found: dict[str, Any] = dict(np.load(kept))
    return found["proportions"], [str(topic) for topic in found["topics"]]


def split(name: str, proportions: np.ndarray, topics: list[str]) -> Documents:
    """Rows in a fixed random order, the last of them held out."""
    rows = proportions[np.random.default_rng(0).permutation(len(proportions))].astype(np.float64)
    rows /= rows.sum(axis=1, keepdims=True)
    held = int(HELD_OUT * len(rows))
    return Documents(name, rows[:-held], rows[-held:], topics)


def drawn(name: str, rows: int, kinds: int, held: int) -> Documents:
    """Documents of drawn kinds, `held` more of them held out."""
    rng = np.random.default_rng(0)
    means = rng.dirichlet(np.full(DRAWN_TOPICS, 0.2), kinds) + 0.01
    means /= means.sum(axis=1, keepdims=True)
    weights = rng.dirichlet(np.full(kinds, 2.0))
    labels = rng.choice(kinds, size=rows + held, p=weights)
    gammas = rng.standard_gamma(PRECISION * means[labels]) + 1e-9
    found = gammas / gammas.sum(axis=1, keepdims=True)
    topics = [f"topic {d}" for d in range(DRAWN_TOPICS)]
    return Documents(name, found[:rows], found[rows:], topics, Kinds(weights, PRECISION * means))
