"""Shared parts of the workflows of topic models: corpora, fits followed by lap, other programs, traces, and the parts
shared by all experiments."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from scipy import sparse

from dpdist import HDPTopicModel
from dpdist.execution import SerialBackend
from dpdist.inference.schedules import Batch, Stochastic
from dpdist.inference.topics.evaluation import completion_score
from dpdist.inference.topics.problem import NO_MOVES

sys.path.append(str(Path(__file__).resolve().parents[1]))
from results import Fields, Kept, options, spread, write_table

__all__ = [
    "USED",
    "Corpus",
    "Fields",
    "Kept",
    "batch_updates",
    "corpus_of",
    "draw_traces",
    "drawn",
    "ended",
    "fixed",
    "follow",
    "groups",
    "hold_out",
    "online",
    "options",
    "others",
    "read",
    "spread",
    "used",
    "write_table",
]

#: Share of all tokens above which a topic counts as used.
USED = 1e-4


class Corpus(NamedTuple):
    """Documents to fit, and for each test document the tokens observed and those scored; all CSR counts (n, W)."""

    train: sparse.csr_array
    observed: sparse.csr_array
    held: sparse.csr_array
    words: list[str]


def hold_out(documents: sparse.csr_array, share: float, seed: int) -> tuple[sparse.csr_array, sparse.csr_array]:
    """A share of the tokens of each document drawn without replacement, and the others."""
    rng = np.random.default_rng(seed)
    observed = documents.astype(np.int64)
    for j in range(documents.shape[0]):
        part = slice(documents.indptr[j], documents.indptr[j + 1])
        counts = observed.data[part]
        observed.data[part] = rng.multivariate_hypergeometric(counts, round(share * counts.sum()))
    return observed.astype(np.float64), documents - observed


def read(data: Path, name: str) -> Corpus | None:
    """NIPS articles or Daily KOS entries with the split that is part of the data; None where they are not there."""
    folder = data / f"text_{name}"
    if not (folder / f"{name}.npz").exists():
        return None
    stored, split = np.load(folder / f"{name}.npz"), np.load(folder / f"split_{name}.npz")
    counts = (stored["data"].astype(np.float64), stored["indices"], stored["indptr"])
    train = sparse.csr_array(counts, shape=tuple(stored["shape"]))[split["train"]]
    observed, held = (
        sparse.csr_array(
            (split[f"{part}_data"].astype(np.float64), split[f"{part}_indices"], split[f"{part}_indptr"]),
            shape=tuple(split["shape"]),
        )
        for part in ("obs", "held")
    )
    return Corpus(train, observed, held, (folder / "vocab.txt").read_text().split())


def drawn(documents: int, vocabulary: int, topics: int, tokens: int = 150) -> Corpus:
    """Documents of a topic model."""
    rng = np.random.default_rng(0)
    words = rng.dirichlet(np.full(vocabulary, 0.05), size=topics)
    shares = rng.dirichlet(np.full(topics, 0.1), size=documents)
    counts = sparse.csr_array([rng.multinomial(tokens, share @ words) for share in shares]).astype(np.float64)
    test = documents // 5
    return Corpus(counts[test:], *hold_out(counts[:test], 0.8, seed=1), [f"word{w}" for w in range(vocabulary)])


def corpus_of(given: argparse.Namespace, small: Corpus) -> Corpus:
    """What ``--corpus`` names; drawn documents at the reduced size, and where it is not there."""
    found = None if given.small else read(given.data, given.corpus)
    if found is None:
        print("drawn documents take the place of a corpus.", flush=True)
    return found or small


def online(start: int, seed: int = 0, batches: int = 20, laps: int = 10, **given: Any) -> HDPTopicModel:
    """oHDP-SM by default, at the paper's rates; oHDP with ``moves=NO_MOVES``."""
    schedule = Stochastic(batches, forgetting=0.5)
    return HDPTopicModel(
        **{"weights": "point", "schedule": schedule, "max_laps": laps, "random_state": seed, **given},
        initial_topics=start,
    )


def fixed(start: int, seed: int = 0, batches: int = 20, laps: int = 10, **given: Any) -> HDPTopicModel:
    """oHDP: the number of topics stays."""
    return online(start, seed, batches, laps, moves=NO_MOVES, **given)


def batch_updates(start: int, seed: int = 0, laps: int = 10, **given: Any) -> HDPTopicModel:
    """bHDP: as many topics, updated from the whole corpus."""
    return online(start, seed, laps=laps, schedule=Batch(), **given)


def used(sizes: np.ndarray) -> int:
    """Topics that have a share of the tokens."""
    return int((sizes > USED * sizes.sum()).sum())


def follow(
    model: HDPTopicModel, corpus: Corpus, x: object, tell: Callable[[HDPTopicModel], Fields] = lambda model: {}
) -> Fields:
    """Fit a model: what became of it, its way lap by lap, and what `tell` says of it; seconds are a processor's.

    ``points`` are documents seen, topics used, nats a held-out token, and seconds.
    """
    points, seconds, began = list[list[float]](), 0.0, time.process_time()
    for _, info in model.iter_fit(x, backend=SerialBackend()):
        seconds += time.process_time() - began
        score = model.score(corpus.held, observed=corpus.observed)
        points.append([info.lap * corpus.train.shape[0], used(model.topic_sizes_), score, round(seconds, 2)])
        began = time.process_time()
    return {"topics": model.n_topics_, **ended(points), **tell(model)}


def ended(points: list[list[float]]) -> Fields:
    """Where a way ended, and the way."""
    return {"used": points[-1][1], "score": points[-1][2], "seconds": points[-1][3], "points": points}


def others(corpus: Corpus, kept: Kept, sweeps: int, tell: Callable[..., Fields]) -> Iterator[Fields]:
    """tomotopy's and gensim's HDP with their defaults, where they are installed; `tell` is given sizes and topics."""
    for name, run in {"tomotopy": _tomotopy, "gensim": _gensim}.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed and left out; it comes with: pip install 'dpdist[workflows]'")
            continue
        key = {"method": f"{name} HDP", "start": "-", "seed": 0, "sweeps": sweeps if name == "tomotopy" else 1}
        yield kept.once(key, lambda run=run: run(corpus, sweeps, tell))


def _tomotopy(corpus: Corpus, sweeps: int, tell: Callable[..., Fields]) -> Fields:
    import tomotopy

    began, model = time.process_time(), tomotopy.HDPModel(seed=0)
    for document in _tokens(corpus.train):
        model.add_doc(document)
    model.train(sweeps, workers=1)
    live = [k for k in range(model.k) if model.is_live_topic(k)]
    topics = np.zeros((len(live), corpus.train.shape[1]))
    columns = [int(word) for word in model.used_vocabs]
    topics[:, columns] = [model.get_topic_word_dist(k) for k in live]
    sizes = np.array(model.get_count_by_topics())[live].astype(np.float64)
    return _of_others(corpus, topics, model.alpha * sizes / sizes.sum(), sizes, time.process_time() - began, tell)


def _gensim(corpus: Corpus, _sweeps: int, tell: Callable[..., Fields]) -> Fields:
    from gensim.models import HdpModel

    began, vocabulary = time.process_time(), {word: str(word) for word in range(corpus.train.shape[1])}
    lists = [list(zip(*_entries(corpus.train, j), strict=True)) for j in range(corpus.train.shape[0])]
    model = HdpModel(lists, vocabulary, random_state=0)
    alpha, _ = model.hdp_to_lda()
    sizes = alpha / alpha.sum() * corpus.train.sum()
    return _of_others(corpus, model.get_topics(), alpha, sizes, time.process_time() - began, tell)


def _of_others(
    corpus: Corpus,
    topics: np.ndarray,
    prior: np.ndarray,
    sizes: np.ndarray,
    seconds: float,
    tell: Callable[..., Fields],
) -> Fields:
    topics = np.maximum(topics, 1e-12)
    topics /= topics.sum(axis=1, keepdims=True)
    score = completion_score(topics, prior, corpus.observed, corpus.held).per_token
    points = [[corpus.train.shape[0], used(sizes), score, round(seconds, 2)]]
    return {"topics": len(sizes), **ended(points), **tell(sizes, topics)}


def _entries(documents: sparse.csr_array, j: int) -> tuple[list[int], list[int]]:
    part = slice(documents.indptr[j], documents.indptr[j + 1])
    return documents.indices[part].tolist(), documents.data[part].astype(int).tolist()


def _tokens(documents: sparse.csr_array) -> Iterator[list[str]]:
    for j in range(documents.shape[0]):
        yield [str(word) for word, count in zip(*_entries(documents, j), strict=True) for _ in range(count)]


def groups(runs: Sequence[Fields], *names: str) -> Iterator[tuple[list[object], list[Fields]]]:
    """Runs that have the same values under some names, in the order in which these come."""
    found = dict[str, list[Fields]]()
    for run in runs:
        found.setdefault(json.dumps([run[name] for name in names]), []).append(run)
    for values, own in found.items():
        yield json.loads(values), own


def draw_traces(path: Path, runs: Sequence[Fields], *names: str) -> None:
    """Score and topics used against documents seen, and score against topics used; a colour for the values of some
    names. What has one point only is a level."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 5), layout="constrained")
    for number, (values, own) in enumerate(groups(runs, *names)):
        colour = f"C{number % 10}"
        for run in own:
            seen, topics, score, _ = np.array(run["points"]).T
            if len(seen) == 1:
                axes[0].axhline(score[0], color=colour, linestyle=":")
                axes[1].axhline(topics[0], color=colour, linestyle=":")
            for axis, x, y in zip(axes, (seen, seen, topics), (score, topics, score), strict=True):
                axis.plot(x, y, color=colour, alpha=0.7, marker=".", markersize=4, linewidth=1)
        axes[0].plot([], [], color=colour, label=", ".join(map(str, values)))
    for axis, x, y in zip(axes, ("documents seen", "documents seen", "topics used"), "STS", strict=True):
        axis.set(xlabel=x, ylabel="nats a held-out token" if y == "S" else "topics used")
    axes[0].legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)
