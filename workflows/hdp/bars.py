"""Twenty bars on a ten by ten grid, after Bryant & Sudderth (2012), section 4.1: does a method find all of them?

2,000 documents of 250 words mix topics that are the rows and columns of the grid; 200 more are scored by completion of
a fifth of their words. oHDP-SM starts with 2 to 100 topics, in eight runs; oHDP and bHDP keep their initial 20 or 50,
in eight runs each; memoized and batch inference use their default start. All settings are the defaults, and the same
for all: online ten passes of twenty mini-batches. A bar is found if a topic has a cosine above 0.95 with it; a topic
with more than 0.5 % of the tokens that is not a bar is unmatched.

Written to --out: results, one file per run, which are not repeated; table.csv, table.txt, traces.png, topics.png.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from scipy import sparse
from shared import (
    Corpus,
    Fields,
    Kept,
    batch_updates,
    draw_traces,
    fixed,
    follow,
    groups,
    hold_out,
    online,
    options,
    others,
    spread,
    write_table,
)

from dpdist import HDPTopicModel
from dpdist.inference.schedules import Batch, Memoized
from dpdist.inference.topics.evaluation import completion_score

STARTS, FIXED = (2, 5, 10, 20, 40, 50, 80, 100), (20, 50)
COLUMNS = ["method", "from", "runs", "all bars alone", "bars found", "unmatched", "topics", "held out", "seconds"]


def bars() -> np.ndarray:
    """Probabilities of words in the topics, (20, 100)."""
    topics = np.zeros((20, 10, 10))
    for i in range(10):
        topics[i, i], topics[10 + i, :, i] = 0.1, 0.1
    return topics.reshape(20, 100)


def draw_documents(documents: int, seed: int) -> sparse.csr_array:
    """Documents of 250 words, with proportions from Dirichlet(0.1)."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(20, 0.1), size=documents)
    counts = [rng.multinomial(250, share / share.sum() @ bars()) for share in shares]
    return sparse.csr_array(np.array(counts, dtype=np.float64))


def bars_of(sizes: np.ndarray, words: np.ndarray) -> Fields:
    """Bars that topics of these sizes (K,) and words (K, W) match, topics that match none, and the topics."""
    truth = bars() / np.linalg.norm(bars(), axis=1, keepdims=True)
    likeness = truth @ (words / np.linalg.norm(words, axis=1, keepdims=True)).T
    large = sizes > 0.005 * sizes.sum()
    order = np.argsort(-sizes)[:30]
    return {
        "found": int((likeness.max(axis=1) > 0.95).sum()),
        "unmatched": int((large & (likeness.max(axis=0) <= 0.95)).sum()),
        "words": np.round(words[order] / words[order].max(axis=1, keepdims=True), 2).tolist(),
    }


def tell(model: HDPTopicModel) -> Fields:
    """The same of a model."""
    return bars_of(model.topic_sizes_, model.components_)


def by_defaults(starts: tuple[int, ...], draws: int, documents: int, laps: int) -> bool:
    """Fit corpora drawn apart with nothing but defaults, memoized and stochastic; whether each finds all bars alone."""
    clean = True
    for start, draw, stochastic in itertools.product(starts, range(draws), (False, True)):
        model = online(start, draw)
        if not stochastic:
            model = HDPTopicModel(initial_topics=start, random_state=draw, max_laps=laps)
        found = tell(model.fit(draw_documents(documents, seed=10 + draw)))
        told = (
            f"{model.n_topics_} topics, {found['found']} bars found, {found['unmatched']} unmatched, "
            f"{model.n_iter_} laps"
        )
        print(f"{'online' if stochastic else 'memoized'} from {start}, draw {draw}: {told}", flush=True)
        clean &= found["found"] == 20 and not found["unmatched"]
    return clean


def models(
    starts: tuple[int, ...], kept_at: tuple[int, ...], runs: int, batches: int = 20, laps: int = 10
) -> list[tuple[str, object, int, HDPTopicModel]]:
    """Method, start, seed and model of every fit of ours."""
    found: list[tuple[str, object, int, HDPTopicModel]] = [
        ("oHDP-SM", start, seed, online(start, seed, batches, laps)) for seed, start in enumerate(starts)
    ]
    for start, seed in itertools.product(kept_at, range(runs)):
        found.append(("oHDP", start, seed, fixed(start, seed, batches, laps)))
        found.append(("bHDP", start, seed, batch_updates(start, seed, laps)))
    for seed, schedule in itertools.product(range(min(runs, 2)), (Memoized(10), Batch())):
        # both end by themselves, and long before
        model = HDPTopicModel(schedule=schedule, random_state=seed, max_laps=60)
        found.append((schedule.name, "default", seed, model))
    return found


def table(runs: list[Fields]) -> list[list[object]]:
    """A line a method and start; those of oHDP-SM are one."""
    rows = list[list[object]]()
    for (method, start), own in groups([{**run, "from": from_of(run)} for run in runs], "method", "from"):
        alone = sum(run["found"] == 20 and not run["unmatched"] for run in own)
        found = [spread([run[name] for run in own], 0) for name in ("found", "unmatched", "topics")]
        score, seconds = (spread([run[name] for run in own], digits) for name, digits in (("score", 4), ("seconds", 1)))
        rows.append([method, start, len(own), f"{alone} of {len(own)}", *found, score, seconds])
    return rows


def from_of(run: Fields) -> object:
    """What a run began with, as the table says it."""
    return "2 to 100" if run["method"] == "oHDP-SM" else run["start"]


def draw_topics(path: Path, runs: list[Fields]) -> None:
    """The topics of the last run of each method, largest first."""
    last = [own[-1] for _, own in groups(runs, "method")]
    figure, axes = plt.subplots(len(last), 30, figsize=(24, len(last)), squeeze=False)
    for row, run in zip(axes, last, strict=True):
        row[0].set_ylabel(run["method"], rotation=0, ha="right")
        for axis in row:
            axis.set(xticks=[], yticks=[])
        for axis, words in zip(row, run["words"], strict=False):
            axis.imshow(np.reshape(words, (10, 10)), cmap="gray")
    figure.savefig(path, dpi=80, bbox_inches="tight")
    plt.close(figure)


def main() -> None:
    """Run the workflow."""
    parser = options(__doc__, "hdp_bars")
    parser.add_argument("--runs", type=int, default=8, help="of each method with a fixed number of topics")
    parser.add_argument("--sweeps", type=int, default=1000, help="of tomotopy's sampler")
    parser.add_argument("--defaults", action="store_true", help="only whether all bars are found from 2, 10 and 100")
    given = parser.parse_args()
    if given.defaults:
        corpora = ((5,), 1, 320, 60) if given.small else ((2, 10, 100), 3, 2000, 60)
        print(f"all bars and nothing beside them: {by_defaults(*corpora)}")
        return
    test = draw_documents(40 if given.small else 200, seed=1)
    names = [f"word{w}" for w in range(100)]
    corpus = Corpus(draw_documents(320 if given.small else 2000, seed=0), *hold_out(test, 0.8, seed=2), names)
    kept, runs = Kept(given.out), list[Fields]()
    for method, start, seed, model in models(*(((5,), (5,), 1, 4, 8) if given.small else (STARTS, FIXED, given.runs))):
        key = {"method": method, "start": start, "seed": seed, "documents": corpus.train.shape[0]}
        runs.append(kept.once(key, lambda model=model: follow(model, corpus, corpus.train, tell)))
    if not given.small:
        runs += others(corpus, kept, given.sweeps, bars_of)
    draw_traces(given.out / "traces.png", runs, "method")
    draw_topics(given.out / "topics.png", runs)
    truth = completion_score(bars() + 1e-12, np.full(20, 0.1), corpus.observed, corpus.held)
    print(f"true topics: {truth.per_token:.4f} nats a held-out token", flush=True)
    write_table(COLUMNS, table(runs), given.out)
    if given.small:
        best = {run["method"]: run for run in runs}
        grown, kept_few = best["oHDP-SM"], best["oHDP"]
        assert best["memoized"]["found"] == 20 and not best["memoized"]["unmatched"], (
            "memoized inference finds the bars"
        )
        assert grown["found"] > kept_few["found"] and grown["score"] > kept_few["score"], "splits find bars"


if __name__ == "__main__":
    main()
