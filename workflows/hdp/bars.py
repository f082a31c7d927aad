"""Twenty bars on a grid of ten by ten, after Bryant & Sudderth (2012), section 4.1: does a method find all of them?

2,000 documents of 250 words mix topics that are the rows and columns of the grid; 200 more are scored. The memoized
form and oHDP-SM begin with 2 to 100 topics and learn how many there are; oHDP keeps what it began with. A bar is found
where a topic's cosine with it is above 0.95; a topic of more than 0.5 % of the tokens that is no bar is unmatched.

Written to --out: results.json, results.md and traces.png.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy import sparse
from shared import Corpus, Prior, Trace, hold_out, leave, memoized, online, options, others

from dpdist import HDPTopicModel
from dpdist.inference.schedules import Stochastic
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.evaluation import completion_score
from dpdist.inference.topics.problem import OnlinePlan

STARTS = (2, 5, 10, 20, 40, 50, 80, 100)
#: The paper's merges: here every topic is in many documents, and one that says what another says should go.
MOVES = OnlinePlan(lasting=False)
PRIOR = Prior(concentration=1.0, document_concentration=1.0, pseudocount=0.1)


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


def likeness(trace: Trace) -> np.ndarray:
    """Cosine of each bar with each topic that has tokens, (20, K)."""
    truth = bars() / np.linalg.norm(bars(), axis=1, keepdims=True)
    return np.asarray(truth @ (trace.words / np.linalg.norm(trace.words, axis=1, keepdims=True)).T)


def found(trace: Trace) -> int:
    """Bars that a topic matches."""
    return int((likeness(trace).max(axis=1) > 0.95).sum())


def unmatched(trace: Trace) -> int:
    """Topics of more than 0.5 % of the tokens that match no bar."""
    large = trace.sizes > 0.005 * trace.sizes.sum()
    return int((large & (likeness(trace).max(axis=0) <= 0.95)).sum())


def by_defaults(starts: tuple[int, ...], draws: int, documents: int, laps: int) -> bool:
    """Fit corpora drawn apart with nothing but defaults, memoized and stochastic; whether each finds all bars alone."""
    clean = True
    for start, draw, online_too in itertools.product(starts, range(draws), (False, True)):
        form = {"weights": "point", "schedule": Stochastic(20, forgetting=0.5), "max_laps": 10} if online_too else {}
        model = HDPTopicModel(**{"initial_topics": start, "random_state": draw, "max_laps": laps, **form})
        model.fit(draw_documents(documents, seed=10 + draw))
        trace = Trace("online" if online_too else "memoized", start, [], model.topic_sizes_, model.components_)
        told = (
            f"{model.n_topics_} topics, {found(trace)} bars found, {unmatched(trace)} unmatched, {model.n_iter_} laps"
        )
        print(f"{trace.method} from {start}, draw {draw}: {told}", flush=True)
        clean &= found(trace) == 20 and not unmatched(trace)
    return clean


def main() -> None:
    """Run the workflow."""
    parser = options(__doc__, "hdp_bars")
    parser.add_argument("--starts", type=int, nargs="+", help="topics to begin with")
    parser.add_argument("--defaults", action="store_true", help="only fits with defaults, from 2, 10 and 100 topics")
    given = parser.parse_args()
    if given.defaults:
        corpora = ((5,), 1, 320, 60) if given.small else ((2, 10, 100), 3, 2000, 60)
        print(f"all bars and nothing beside them: {by_defaults(*corpora)}")
        return
    starts = given.starts or ((5,) if given.small else STARTS)
    test = draw_documents(40 if given.small else 200, seed=1)
    corpus = Corpus(draw_documents(320 if given.small else 2000, seed=0), *hold_out(test, 0.8, seed=2))
    laps, passes = 60, 5.0 if given.small else 10.0
    batch = corpus.train.shape[0] // 8 if given.small else 50
    traces = list[Trace]()
    for start in starts:
        traces.append(memoized(corpus, PRIOR, start, laps, batches=8))
    for start in starts:
        traces.append(online("oHDP-SM", corpus, PRIOR, start, passes, batch, MOVES, Effort(1e-2, 100)))
        plain = OnlinePlan(split=False, merge=False, delete=False)
        traces.append(online("oHDP", corpus, PRIOR, start, passes, batch, plain, Effort(1e-2, 100)))
    if not given.small:
        traces += others(corpus, given.small)
    leave(given.out, traces, {"bars found": found, "unmatched": unmatched})
    truth = completion_score(bars() + 1e-12, np.full(20, 0.1), corpus.observed, corpus.held)
    print(f"true topics: {truth.per_token:.4f} nats a held-out token")
    missed = [t for t in traces if t.method in ("memoized", "oHDP-SM") and (found(t) < 20 or unmatched(t))]
    print(f"not all bars, or others beside them: {[(trace.method, trace.start) for trace in missed] or 'none'}")
    if given.small:
        exact, moved, fixed = traces
        assert found(exact) == 20 and not unmatched(exact), "the memoized form finds all bars and nothing else"
        assert found(moved) > found(fixed) and moved.last.score > fixed.last.score, "splits find bars"


if __name__ == "__main__":
    main()
