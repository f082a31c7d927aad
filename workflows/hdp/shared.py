"""What the workflows of topic models share: fits that leave traces, other programs, pictures and tables."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import sparse

from dpdist import HDPTopicModel, TopicPlan
from dpdist.data.arrays import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.schedules import Memoized, Stochastic
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.evaluation import completion_score
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.online import OnlineState, first_online_state
from dpdist.inference.topics.online_engine import online_steps
from dpdist.inference.topics.problem import OnlinePlan, TopicProblem
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess
from dpdist.runs.methods.topics import take_census, topics_of_census

#: The shared data folder where neither ``--data`` nor ``DPDIST_SHARED`` names one: beside the repository.
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
#: No moves.
STILL = TopicPlan(birth=False, merge=False, delete=False)


class Corpus(NamedTuple):
    """Documents to fit, and for each test document the tokens observed and those scored; all CSR counts (n, W)."""

    train: sparse.csr_array
    observed: sparse.csr_array
    held: sparse.csr_array


class Prior(NamedTuple):
    """gamma, alpha and eta."""

    concentration: float
    document_concentration: float
    pseudocount: float


class Point(NamedTuple):
    """A model on its way: documents seen, topics used, nats a held-out token, seconds so far."""

    documents: int
    topics: int
    score: float
    seconds: float


class Trace(NamedTuple):
    """A fit: its method, its number of topics to begin with, its way, and its topics' words (K, W) at the end."""

    method: str
    start: int
    points: list[Point]
    sizes: np.ndarray
    words: np.ndarray

    @property
    def last(self) -> Point:
        """Where it ended."""
        return self.points[-1]


def options(about: str | None, name: str) -> argparse.ArgumentParser:
    """A parser with what every workflow here takes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("DPDIST_SHARED", SHARED))
    parser.add_argument("--data", type=Path, default=shared, help="folder of the shared data sets")
    parser.add_argument("--out", type=Path, default=Path("build") / "workflows" / name, help="folder for results")
    parser.add_argument("--small", action="store_true", help="a reduced size that runs in seconds and checks results")
    return parser


def hold_out(documents: sparse.csr_array, share: float, seed: int) -> tuple[sparse.csr_array, sparse.csr_array]:
    """A share of the tokens of each document drawn without replacement, and the others."""
    rng = np.random.default_rng(seed)
    observed = documents.astype(np.int64)
    for j in range(documents.shape[0]):
        part = slice(documents.indptr[j], documents.indptr[j + 1])
        counts = observed.data[part]
        observed.data[part] = rng.multivariate_hypergeometric(counts, round(share * counts.sum()))
    return observed.astype(np.float64), documents - observed


def memoized(
    corpus: Corpus,
    prior: Prior,
    start: int,
    laps: int,
    batches: int,
    moves: TopicPlan | None = None,
    effort: Effort | None = None,
    say: Callable[[str], None] = print,
) -> Trace:
    """The memoized form, in this process."""
    model = HDPTopicModel(
        *prior,
        learn=(),
        initial_topics=start,
        schedule=Memoized(batches),
        moves=moves,
        effort=effort,
        max_laps=laps,
        random_state=0,
    )
    began, points = time.perf_counter(), list[Point]()
    for _, info in model.iter_fit(corpus.train, backend=SerialBackend()):
        score = model.score(corpus.held, observed=corpus.observed)
        seen = info.lap * corpus.train.shape[0]
        points.append(Point(seen, model.n_topics_, score, time.perf_counter() - began))
        say(f"memoized from {start}, lap {info.lap}: {_told(points[-1])}, ELBO {info.elbo / corpus.train.sum():.4f}")
    return Trace("memoized", start, points, model.topic_sizes_, model.components_)


def online(
    method: str,
    corpus: Corpus,
    prior: Prior,
    start: int,
    passes: float,
    batch: int,
    plan: OnlinePlan,
    effort: Effort | None = None,
    often: int = 1,
    say: Callable[[str], None] = print,
) -> Trace:
    """oHDP, or oHDP-SM where the plan has moves, scored after every `often` mini-batches of `batch` documents."""
    model = TopicModel(
        corpus.train.shape[1],
        prior.pseudocount,
        HierarchicalDirichletProcess(prior.concentration, prior.document_concentration),
    )
    source, backend = ArraySource(corpus.train, partition_rows=batch), SerialBackend()
    rows, batches = corpus.train.shape[0], len(source.partitions)
    census = take_census(source, backend, 0)
    first = topics_of_census(TopicProblem(model, "posterior", Memoized(1), TopicPlan()), census, start)
    problem = TopicProblem(model, "point", Stochastic(batches, forgetting=0.5), plan, effort or Effort())
    began, points, seen = time.perf_counter(), list[Point](), 0
    state = first_online_state(model, first)
    for step in online_steps(problem, source, state, backend):
        seen, state = seen + int(step.documents), step.state
        done = seen >= passes * rows
        if done or step.state.step % often == 0:
            points.append(_scored(model, state, corpus, seen, time.perf_counter() - began))
            say(f"{method} from {start}, {seen} documents: {_told(points[-1])}")
        if done:
            break
    topics = state.words + prior.pseudocount
    return Trace(method, start, points, state.words.sum(axis=0), (topics / topics.sum(axis=0)).T)


def _scored(model: TopicModel, state: OnlineState, corpus: Corpus, seen: int, seconds: float) -> Point:
    words = (state.words + model.pseudocount).T
    weights = model.allocation.document_concentration * state.weights[:-1]
    topics = words / words.sum(axis=1, keepdims=True)
    score = completion_score(topics, weights, corpus.observed, corpus.held).per_token
    return Point(seen, int((state.words.sum(axis=0) > 1.0).sum()), score, seconds)


def _told(point: Point) -> str:
    return f"{point.topics} topics, {point.score:.4f} nats a held-out token, {point.seconds:.0f} s"


def others(corpus: Corpus, small: bool) -> Iterator[Trace]:
    """tomotopy's and gensim's HDP with their defaults, where they are installed."""
    for name, run in (("tomotopy", _tomotopy), ("gensim", _gensim)):
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed and left out; it comes with: pip install 'dpdist[workflows]'")
            continue
        yield run(corpus, 20 if small else 1000)


def _tomotopy(corpus: Corpus, iterations: int) -> Trace:
    import tomotopy

    began, model = time.perf_counter(), tomotopy.HDPModel(seed=0)
    for document in _tokens(corpus.train):
        model.add_doc(document)
    model.train(iterations, workers=1)
    live = [k for k in range(model.k) if model.is_live_topic(k)]
    topics = np.zeros((len(live), corpus.train.shape[1]))
    columns = [int(word) for word in model.used_vocabs]
    topics[:, columns] = [model.get_topic_word_dist(k) for k in live]
    sizes = np.array(model.get_count_by_topics())[live].astype(np.float64)
    return _of_others("tomotopy HDP", corpus, topics, model.alpha * sizes / sizes.sum(), sizes, began)


def _gensim(corpus: Corpus, iterations: int) -> Trace:
    from gensim.models import HdpModel

    began, vocabulary = time.perf_counter(), {word: str(word) for word in range(corpus.train.shape[1])}
    lists = [list(zip(*_entries(corpus.train, j), strict=True)) for j in range(corpus.train.shape[0])]
    model = HdpModel(lists, vocabulary, random_state=0)
    alpha, _ = model.hdp_to_lda()
    topics = model.get_topics()
    sizes = alpha / alpha.sum() * corpus.train.sum()
    return _of_others("gensim HDP", corpus, topics, alpha, sizes, began)


def _of_others(
    method: str, corpus: Corpus, topics: np.ndarray, prior: np.ndarray, sizes: np.ndarray, began: float
) -> Trace:
    topics = np.maximum(topics, 1e-12)
    topics /= topics.sum(axis=1, keepdims=True)
    seconds = time.perf_counter() - began
    score = completion_score(topics, prior, corpus.observed, corpus.held).per_token
    used = int((sizes > 0.0001 * sizes.sum()).sum())
    return Trace(method, 0, [Point(corpus.train.shape[0], used, score, seconds)], sizes, topics)


def _entries(documents: sparse.csr_array, j: int) -> tuple[list[int], list[int]]:
    part = slice(documents.indptr[j], documents.indptr[j + 1])
    return documents.indices[part].tolist(), documents.data[part].astype(int).tolist()


def _tokens(documents: sparse.csr_array) -> Iterator[list[str]]:
    for j in range(documents.shape[0]):
        yield [str(word) for word, count in zip(*_entries(documents, j), strict=True) for _ in range(count)]


def leave(
    out: Path, traces: list[Trace], columns: dict[str, Callable[[Trace], Any]] | None = None, say: bool = True
) -> None:
    """Write results.json, results.md and traces.png, and print the table."""
    out.mkdir(parents=True, exist_ok=True)
    extra = columns or {}
    rows = [
        {
            "method": trace.method,
            "start": trace.start,
            "topics": trace.last.topics,
            "score": trace.last.score,
            "seconds": trace.last.seconds,
            **{name: find(trace) for name, find in extra.items()},
        }
        for trace in traces
    ]
    kept = [
        {**row, "points": [point._asdict() for point in trace.points]} for row, trace in zip(rows, traces, strict=True)
    ]
    (out / "results.json").write_text(json.dumps(kept, indent=1))
    names = ["method", "start", "topics", "score", "seconds", *extra]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_cell(row[name]) for name in names) + " |" for row in rows]
    (out / "results.md").write_text("\n".join(lines) + "\n")
    if say:
        print("\n".join(lines), flush=True)
    draw(out / "traces.png", [trace for trace in traces if len(trace.points) > 1])


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def draw(path: Path, traces: list[Trace]) -> None:
    """Likelihood and topics used against documents seen, and likelihood against topics used."""
    figure = Figure(figsize=(15, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 3)
    methods = list(dict.fromkeys(trace.method for trace in traces))
    for trace in traces:
        colour = f"C{methods.index(trace.method)}"
        seen, topics, score, _ = np.array(trace.points).T
        for axis, x, y in zip(axes, (seen, seen, topics), (score, topics, score), strict=True):
            axis.plot(x, y, color=colour, alpha=0.7, marker=".", markersize=3)
    for axis, x, y in zip(
        axes, ("documents seen", "documents seen", "topics used"), ("nats", "K", "nats"), strict=True
    ):
        axis.set_xlabel(x)
        axis.set_ylabel("nats a held-out token" if y == "nats" else "topics used")
    for number, method in enumerate(methods):
        axes[0].plot([], [], color=f"C{number}", label=method)
    if methods:
        axes[0].legend(loc="lower right")
    figure.savefig(path, dpi=120)
