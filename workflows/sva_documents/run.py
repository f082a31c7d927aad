"""Documents as topic proportions: the number of clusters found in one pass, with Dirichlet observations.

After section 6.3 of Lin (2013). A cluster is a Dirichlet about a mean, which has no conjugate prior, so the pass moves
point estimates by gradients. SVA only opens clusters; SVA-PM also prunes rare ones and merges those that share their
rows, with default settings. For comparison, truncation-free variational inference runs until its score has converged:
its means over the last quarter of the time and over the quarter before differ by at most 0.02 nats per row. All methods
have the same rows in the same order, and the same precision and prior: the defaults, or, for drawn documents, their
true precision. Nothing was chosen on these data.

Corpora: Daily KOS in 30 topics, NIPS in those that an HDP topic model finds, and 300,000 drawn documents (see
corpora.py). The score is the mean log density of held-out documents in nats. It is also given for one Dirichlet with
the moments of all rows, and, for drawn documents, for their true distribution. Seconds are processor time without
scoring and compilation; for a pass they are the total, for truncation-free inference those to a score within 0.05 of
its last.

Written to --out: results, one file per run, which are not repeated; table.csv, table.txt, heldout.png: scores by
seconds; for the first corpus clusters.md with the topics and words of the clusters of SVA-PM, and means.png.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from corpora import Documents, read
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.special import logsumexp
from scipy.stats import dirichlet
from truncation_free import Model, Rows, truncation_free

sys.path.append(str(Path(__file__).resolve().parents[1]))
from results import options, spread, write_table

CORPORA = ("kos", "nips", "drawn")
#: What each sequential method adds to the defaults.
SEQUENTIAL: dict[str, dict[str, Any]] = {
    "SVA": {"merge": None, "prune": 0.0},
    "SVA-PM": {},
}
BASELINE = "truncation-free"
METHODS = (*SEQUENTIAL, BASELINE)
CONCENTRATION = 1.0
#: Scores taken of a pass; how far apart in time those of the baseline are, as a factor.
POINTS, APART = 60, 1.05
#: The baseline's score stands still within so many nats a row, and is near its end within so many.
STILL, NEAR = 0.02, 0.05
#: Rows on which methods are compiled; its least time and, with --small, its most, in seconds.
WARM, LEAST, SMALL_MOST = 300, 1.0, 10.0
#: Share of all rows from which a cluster counts as large; clusters shown; topics and words named for each.
LARGE, SHOWN, TOPICS, WORDS = 0.01, 30, 3, 4


class Run(NamedTuple):
    """What a method did with a corpus: ``seconds``, ``scores`` and ``sizes`` as it went on, ``weights`` and ``means``
    at the end, largest first."""

    corpus: str
    method: str
    seed: int
    seconds: list[float]
    scores: list[float]
    sizes: list[int]
    score: float
    weights: list[float]
    means: list[list[float]]

    @property
    def large(self) -> int:
        """Clusters of more than a hundredth of all rows."""
        return sum(weight > LARGE for weight in self.weights)

    @property
    def needed(self) -> float:
        """Seconds of the pass, or to near the end."""
        near = int(np.argmax(np.array(self.scores) > self.score - NEAR)) if self.method == BASELINE else -1
        return self.seconds[near]


class Scored(NamedTuple):
    """Where a method stands: weights (K,), log means (K, D)."""

    seconds: float
    score: float
    weights: np.ndarray
    logits: np.ndarray


class Task:
    """A corpus with what all methods know of it: precision, prior, and what its rows are to the likelihood."""

    def __init__(self, documents: Documents) -> None:
        from dpdist.models.families.base import Moments
        from dpdist.models.likelihoods import Dirichlet

        train = documents.train
        ends = train.min(axis=0), train.max(axis=0)
        moments = Moments(len(train), train.mean(axis=0), train.var(axis=0), *ends, False)
        kinds = documents.kinds
        given = Dirichlet() if kinds is None else Dirichlet(precision=float(kinds.scale[0].sum()))
        self.documents, self.likelihood = documents, given.with_defaults(moments)
        self.test = self.observed(documents.test)

    def observed(self, x: np.ndarray) -> Rows:
        """The logs of rows (n, D), and their evidence."""
        logs = self.likelihood.observe(x)
        return Rows(logs, self.likelihood.open_components(logs, np.zeros((0, x.shape[1]))).evidence)

    def rows(self, seed: int) -> np.ndarray:
        """The rows in a seed's order."""
        return self.documents.train[np.random.default_rng(seed).permutation(len(self.documents.train))]

    def score(self, counts: np.ndarray, logits: np.ndarray) -> float:
        """Mean log predictive density of the held-out rows, in nats: each is in a known cluster or in a new one."""
        weights = np.append(counts, CONCENTRATION)
        known = self.likelihood.log_likelihood(self.test.logs, logits)
        logs = np.column_stack([known, self.test.evidence])
        return float(logsumexp(logs + np.log(weights / weights.sum()), axis=1).mean())

    def single(self) -> float:
        """The score of one Dirichlet with the moments of all rows."""
        mean, variance = self.documents.train.mean(axis=0), self.documents.train.var(axis=0)
        precision = (mean * (1 - mean)).sum() / variance.sum() - 1
        return float(np.mean(dirichlet.logpdf(np.exp(self.test.logs).T, precision * mean)))

    def truth(self) -> float:
        """The score of what drawn documents come from; not a number of others."""
        kinds = self.documents.kinds
        return float("nan") if kinds is None else kinds.score(self.test.logs)


def follow_pass(task: Task, method: str, seed: int) -> Iterator[Scored]:
    """One pass, scored as it goes on."""
    from dpdist import SVA
    from dpdist.data.arrays import ArraySource

    rows = task.rows(seed)
    source = ArraySource(rows, partition_rows=-(-len(rows) // POINTS))
    told = {"concentration": CONCENTRATION, "shuffle": False, "random_state": seed}
    began, seconds = time.process_time(), 0.0
    model = SVA(task.likelihood, **told, **SEQUENTIAL[method])
    run = model.prepare(source)
    for step in run:
        seconds += time.process_time() - began
        if step.info is not None:
            model.adopt(run.problem, run.fitted, run.history, run.chosen)
            counts = np.asarray(step.info.counts)
            logits = np.log(np.asarray(model.components_["probability"]))
            yield Scored(seconds, task.score(counts, logits), counts / counts.sum(), logits)
        began = time.process_time()


def follow_baseline(task: Task, seed: int) -> Iterator[Scored]:
    """Truncation-free inference without end, scored at times some percent apart."""
    seconds, following, began = 0.0, 0.0, time.process_time()
    model = Model(float(task.likelihood.precision), task.likelihood.eta, CONCENTRATION)
    clusters = truncation_free(task.observed(task.rows(seed)), model, seed)
    for found in clusters:
        seconds += time.process_time() - began
        if seconds >= following:
            following = APART * seconds
            score = task.score(found.counts, found.logits)
            yield Scored(seconds, score, found.counts / found.counts.sum(), found.logits)
        began = time.process_time()


def run_method(task: Task, method: str, seed: int, most: float) -> Run:
    """A pass to its end, or the baseline until its score stands still or its time is up."""
    found = list[Scored]()
    for one in follow_pass(task, method, seed) if method in SEQUENTIAL else follow_baseline(task, seed):
        found.append(one)
        if method == BASELINE and (one.seconds > most or (one.seconds > LEAST and stands_still(found))):
            break
    last = found[-1]
    scores = [one.score for one in found]
    score = scores[-1]
    if method == BASELINE:
        score = float(np.mean([one.score for one in found if one.seconds > last.seconds / 2]))
    order = np.argsort(-last.weights, kind="stable")
    means = np.exp(last.logits[order])
    traces = [one.seconds for one in found], scores, [len(one.weights) for one in found]
    return Run(task.documents.name, method, seed, *traces, score, last.weights[order].tolist(), means.tolist())


def stands_still(found: Sequence[Scored]) -> bool:
    """Whether the score is that of the quarter of the time before the last."""
    end = found[-1].seconds
    before, after = ([one.score for one in found if start < one.seconds / end <= start + 0.25] for start in (0.5, 0.75))
    return bool(before) and abs(float(np.mean(after) - np.mean(before))) < STILL


def warm_up(documents: Documents) -> None:
    """Compile what the methods need."""
    few = Task(documents._replace(train=documents.train[:WARM]))
    for method in METHODS:
        run_method(few, method, 0, 0.0)


def once(task: Task, method: str, seed: int, most: float, out: Path) -> Run:
    """A run, made unless its result is there."""
    rows = len(task.documents.train)
    path = out / "results" / f"{task.documents.name}-{rows}-{method.replace(' ', '-')}-{seed}.json"
    if not path.exists():
        run = run_method(task, method, seed, most)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(run._asdict()) + "\n")
        part.replace(path)
        told = f"held-out {run.score:.3f}, K {run.sizes[-1]}, {run.seconds[-1]:.2f} s"
        print(f"{task.documents.name}, {method}, seed {seed}: {told}", flush=True)
    return Run(**json.loads(path.read_text()))


def table(task: Task, runs: Sequence[Run]) -> list[list[str]]:
    """A line a method, of one corpus: medians over seeds, with the smallest and the largest."""
    name, truth = task.documents.name, task.truth()
    lines = [[name, "one Dirichlet", "", "1", "1", f"{task.single():.2f}", ""]]
    for method in METHODS:
        own = [run for run in runs if run.method == method]
        columns = [[run.sizes[-1] for run in own], [run.large for run in own], [run.score for run in own]]
        told = [spread(column, digits) for column, digits in zip(columns, (0, 0, 2), strict=True)]
        lines.append([name, method, str(len(own)), *told, spread([run.needed for run in own], 2)])
    if np.isfinite(truth):
        kinds = task.documents.kinds
        assert kinds is not None, "what has a true score has kinds"
        large = int((kinds.weights > LARGE).sum())
        lines.append([name, "what they come from", "", str(len(kinds.weights)), str(large), f"{truth:.2f}", ""])
    return lines


def draw_traces(tasks: Sequence[Task], runs: Sequence[Run], path: Path) -> None:
    """Held-out scores by seconds, a panel a corpus, a line a run; a pass ends in a dot."""
    figure = Figure(figsize=(4.6 * len(tasks), 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        own = [run for run in runs if run.corpus == task.documents.name]
        for run in own:
            colour, first = f"C{METHODS.index(run.method)}", run.seed == own[0].seed
            axis.plot(run.seconds, run.scores, colour, linewidth=1, label=run.method if first else None)
            if run.method in SEQUENTIAL:
                axis.plot(run.seconds[-1], run.scores[-1], "o", color=colour, markersize=4)
        if np.isfinite(task.truth()):
            axis.axhline(task.truth(), color="0.5", linestyle="--", linewidth=1, label="what they come from")
        best = max(run.score for run in own)
        axis.set(title=task.documents.name, xscale="log", xlabel="seconds", ylim=(task.single(), best + 1))
        axis.set_ylabel("held-out nats a document")
        axis.legend(fontsize=7, loc="lower right")
    figure.savefig(path, dpi=90)


def describe(run: Run, topics: list[str]) -> list[str]:
    """The largest clusters as a Markdown table: weight, and the topics that make up most of their mean."""
    lines = ["| weight | topics of the mean, with their share and first words |", "|---|---|"]
    for weight, mean in zip(run.weights[:SHOWN], run.means, strict=False):
        largest = np.argsort(-np.array(mean))[:TOPICS]
        parts = [f"{mean[d]:.2f} {' '.join(topics[d].split()[:WORDS])}" for d in largest]
        lines.append(f"| {weight:.3f} | {'; '.join(parts)} |")
    return lines


def draw_means(run: Run, topics: list[str], path: Path) -> None:
    """Means of the largest clusters, a row each, weights at the left and topics' first words below."""
    means = np.array(run.means[:SHOWN])
    figure = Figure(figsize=(0.32 * means.shape[1] + 2, 0.24 * len(means) + 2.5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    picture = axis.imshow(means, aspect="auto", cmap="magma_r", vmin=0)
    names = [" ".join(topic.split()[:2]) for topic in topics]
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axis.set_yticks(range(len(means)), [f"{weight:.3f}" for weight in run.weights[:SHOWN]], fontsize=7)
    axis.set(ylabel="weight of the cluster", title=f"Means of clusters: {run.corpus}, {run.method}")
    figure.colorbar(picture, ax=axis, label="share of the topic")
    figure.savefig(path, dpi=90)


def check(task: Task, runs: Sequence[Run]) -> None:
    """Clusters are worth having, nothing is better than the truth, SVA-PM leaves fewer clusters than SVA."""
    for run in runs:
        told = f"{run.corpus}, {run.method}, seed {run.seed}"
        assert run.score > task.single() + 1, f"{told}: {run.score:.2f} nats, one Dirichlet {task.single():.2f}"
        assert not run.score > task.truth() + 0.1, f"{told}: {run.score:.2f} nats, the truth {task.truth():.2f}"
        np.testing.assert_allclose(np.sum(run.means, axis=1), 1.0)
    sizes = {method: [run.sizes[-1] for run in runs if run.method == method] for method in SEQUENTIAL}
    assert max(sizes["SVA-PM"]) < min(sizes["SVA"]), "nothing was pruned or merged"


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = options(__doc__, "sva_documents")
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, help="default all, small the first")
    parser.add_argument("--seeds", type=int, default=3, help="orders in which rows are passed; default 3, small 1")
    parser.add_argument("--seconds", type=float, default=300.0, help="of the baseline at most; default 300, small 10")
    return parser.parse_args()


def main() -> None:
    """Run the workflow."""
    given = parsed()
    (given.out / "results").mkdir(parents=True, exist_ok=True)
    names = given.corpora or (CORPORA[:1] if given.small else CORPORA)
    tasks = [Task(read(name, given.data, given.out, given.small)) for name in names]
    warm_up(tasks[0].documents)
    seeds, most = (1, SMALL_MOST) if given.small else (given.seeds, given.seconds)
    runs = {
        task: [once(task, method, seed, most, given.out) for method in METHODS for seed in range(seeds)]
        for task in tasks
    }
    heading = ["corpus", "method", "runs", "K", "K above 1 %", "held-out nats a row", "seconds"]
    write_table(heading, [line for task in tasks for line in table(task, runs[task])], given.out)
    draw_traces(tasks, [run for own in runs.values() for run in own], given.out / "heldout.png")
    first = next(run for run in runs[tasks[0]] if run.method == "SVA-PM")
    (given.out / "clusters.md").write_text("\n".join(describe(first, tasks[0].documents.topics)) + "\n")
    draw_means(first, tasks[0].documents.topics, given.out / "means.png")
    for task, own in runs.items():
        check(task, own)


if __name__ == "__main__":
    main()
