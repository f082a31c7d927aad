"""Articles, after Bryant & Sudderth (2012), section 4.2: memoized from few and from many topics, oHDP-SM and oHDP.

Splits of oHDP-SM are refined in both forms of dpdist.OnlinePlan: shared and free.

1,392 NIPS articles (or 2,744 Daily KOS entries) are fitted and 348 (686) scored by completion: 80 % of their tokens are
seen, the others predicted, on a split that is part of the data. tomotopy's and gensim's HDP are fitted with their
defaults and scored alike, where they are installed. Where the articles are not there, documents drawn from a model take
their place.

Written to --out: results.json, results.md and traces.png.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy import sparse
from shared import Corpus, Prior, Trace, hold_out, leave, memoized, online, options, others

from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.problem import OnlinePlan

#: Short documents want topics that are spread over more words.
PRIORS = {"nips": Prior(10.0, 10.0, 0.02), "kos": Prior(10.0, 1.0, 0.3)}
#: How far documents are iterated; starts of the memoized form, and of the online ones.
EFFORT, FEW_AND_MANY, STARTS = Effort(tolerance=1e-2, most=60), (10, 400), (50, 100, 200, 300)
METHODS = {
    "oHDP-SM": OnlinePlan(),
    "oHDP-SM free": OnlinePlan(restricted="free"),
    "oHDP": OnlinePlan(split=False, merge=False, delete=False),
}


def read(data: Path, name: str) -> Corpus | None:
    """The documents and their split, or None where they are not there."""
    folder = data / f"text_{name}"
    if not (folder / f"{name}.npz").exists():
        return None
    stored, split = np.load(folder / f"{name}.npz"), np.load(folder / f"split_{name}.npz")
    counts = (stored["data"].astype(np.float64), stored["indices"], stored["indptr"])
    train = sparse.csr_array(counts, shape=tuple(stored["shape"]))[split["train"]]
    parts = [
        sparse.csr_array(
            (split[f"{part}_data"].astype(np.float64), split[f"{part}_indices"], split[f"{part}_indptr"]),
            shape=tuple(split["shape"]),
        )
        for part in ("obs", "held")
    ]
    return Corpus(train, *parts)


def draw(documents: int, vocabulary: int, topics: int) -> Corpus:
    """Documents of a topic model."""
    rng = np.random.default_rng(0)
    words = rng.dirichlet(np.full(vocabulary, 0.05), size=topics)
    shares = rng.dirichlet(np.full(topics, 0.1), size=documents)
    counts = np.array([rng.multinomial(150, share @ words) for share in shares]).astype(np.float64)
    test = documents // 5
    return Corpus(sparse.csr_array(counts[test:]), *hold_out(sparse.csr_array(counts[:test]), 0.8, seed=1))


def fits(
    corpus: Corpus, prior: Prior, few_and_many: Sequence[int], starts: Sequence[int], laps: int, passes: float
) -> Iterator[Trace]:
    """Every fit of ours, one after the other."""
    for start in few_and_many:
        yield memoized(corpus, prior, start, laps, 6, effort=EFFORT)
    batch = -(-corpus.train.shape[0] // 8)
    for start in starts:
        for method, plan in METHODS.items():
            yield online(method, corpus, prior, start, passes, batch, plan, EFFORT, often=8)


def main() -> None:
    """Run the workflow."""
    parser = options(__doc__, "hdp_nips")
    parser.add_argument("--corpus", choices=["nips", "kos"], default="nips", help="NIPS articles or Daily KOS entries")
    parser.add_argument("--laps", type=int, default=30, help="of the memoized form")
    parser.add_argument("--passes", type=float, default=10.0, help="of the online forms")
    parser.add_argument("--memoized", type=int, nargs="*", help="topics that the memoized form begins with")
    parser.add_argument("--online", type=int, nargs="*", help="topics that the online forms begin with")
    given = parser.parse_args()
    corpus = None if given.small else read(given.data, given.corpus)
    if corpus is None:
        print("drawn documents take the place of the articles.")
        corpus = draw(300 if given.small else 1740, 300, 12)
    laps, passes = (4, 2.0) if given.small else (given.laps, given.passes)
    few_and_many = (3, 20) if given.small else FEW_AND_MANY if given.memoized is None else given.memoized
    starts = (6,) if given.small else STARTS if given.online is None else given.online
    prior, traces = PRIORS[given.corpus], list[Trace]()
    for trace in fits(corpus, prior, few_and_many, starts, laps, passes):
        traces.append(trace)
        if not given.small:  # which is over in seconds
            leave(given.out, traces)
    if not given.small:
        traces += others(corpus, given.small)
    leave(given.out, traces)
    if given.small:
        unigram = np.asarray(corpus.train.sum(axis=0)).ravel() + prior.pseudocount
        plain = float(corpus.held.sum(axis=0) @ np.log(unigram / unigram.sum())) / corpus.held.sum()
        assert all(trace.last.score > plain for trace in traces), "topics predict words better than their frequencies"


if __name__ == "__main__":
    main()
