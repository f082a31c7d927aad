"""A stream of newspaper size that never comes twice: does the number of topics follow what the stream holds?

Documents are drawn from a topic model fitted to NIPS articles (a drawn one where these are not there): 300,000 of 332
words, as in the New York Times corpus, in mini-batches of 10,000 that are thrown away after their step. oHDP keeps the
number of topics that it began with; oHDP-SM opens those that it needs. Both are scored on 500 documents by completion.

Written to --out: results.json, results.md and traces.png.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from nips import EFFORT, METHODS, read
from nips import PRIORS as FITTED
from scipy import sparse
from shared import Corpus, Point, Prior, Trace, hold_out, leave, options

from dpdist import HDPTopicModel
from dpdist.execution import SerialBackend
from dpdist.inference.schedules import Memoized, Stochastic
from dpdist.inference.topics.births import seek_topics
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.evaluation import completion_score
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.online import OnlineState, first_online_state
from dpdist.inference.topics.online_engine import partial_step
from dpdist.inference.topics.problem import OnlinePlan, TopicProblem
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess

PRIOR = Prior(concentration=10.0, document_concentration=5.0, pseudocount=0.02)


class World:
    """A topic model that documents are drawn from.

    Parameters
    ----------
    words : (K, W) probabilities of words
    weights : (K,) of topics
    concentration : of documents' proportions about the weights
    tokens : of a document, on average
    """

    def __init__(self, words: np.ndarray, weights: np.ndarray, concentration: float, tokens: int) -> None:
        self.words, self.weights = words, weights / weights.sum()
        self.concentration, self.tokens = concentration, tokens

    @staticmethod
    def drawn(vocabulary: int, topics: int, tokens: int) -> World:
        """Of topics drawn themselves."""
        rng = np.random.default_rng(0)
        words = rng.dirichlet(np.full(vocabulary, 0.02), size=topics)
        return World(words, rng.dirichlet(np.full(topics, 1.0)), 5.0, tokens)

    @staticmethod
    def fitted(documents: sparse.csr_array, topics: int, tokens: int) -> World:
        """Of topics fitted to documents, from so many of them."""
        prior = FITTED["nips"]
        model = HDPTopicModel(
            *prior, learn=(), initial_topics=topics, schedule=Memoized(6), effort=EFFORT, max_laps=3, random_state=0
        )
        model.fit(documents, backend=SerialBackend())
        print(f"documents are drawn from {model.n_topics_} topics fitted to {documents.shape[0]} documents", flush=True)
        return World(model.components_, model.topic_weights_, prior.document_concentration, tokens)

    def draw(self, documents: int, key: int) -> sparse.csr_array:
        """Documents (n, W), the same for the same key."""
        rng = np.random.default_rng((1, key))
        topics, vocabulary = self.words.shape
        shares = rng.dirichlet(self.concentration * self.weights, size=documents)
        of_topics = [rng.multinomial(max(int(rng.poisson(self.tokens)), 1), share / share.sum()) for share in shares]
        owners, counts = np.nonzero(np.array(of_topics)), np.array(of_topics)
        rows = np.repeat(owners[0], counts[owners])
        cumulative = np.cumsum(self.words, axis=1)
        columns = np.empty(len(rows), dtype=np.int64)
        kinds = np.repeat(owners[1], counts[owners])
        for k in range(topics):
            own = np.flatnonzero(kinds == k)
            columns[own] = np.searchsorted(cumulative[k], rng.random(len(own)) * cumulative[k, -1])
        found = sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=(documents, vocabulary))
        return sparse.csr_array(found)


def follow(
    method: str, world: World, test: Corpus, start: int, batches: int, batch: int, plan: OnlinePlan
) -> Iterator[Trace]:
    """The method's trace as far as it has come, after every mini-batch."""
    model = TopicModel(
        test.train.shape[1],
        PRIOR.pseudocount,
        HierarchicalDirichletProcess(PRIOR.concentration, PRIOR.document_concentration),
    )
    problem = TopicProblem(model, "point", Stochastic(batches, forgetting=0.5), plan, Effort(1e-2, 60))
    corpus, state = float(batches * batch), _first(model, test.train, batches * batch, start)
    points, began = list[Point](), time.perf_counter()
    for number in range(batches):
        state = partial_step(problem, world.draw(batch, number), corpus, state).state
        words = (state.words + PRIOR.pseudocount).T
        topics, weights = words / words.sum(axis=1, keepdims=True), PRIOR.document_concentration * state.weights[:-1]
        score = completion_score(topics, weights, test.observed, test.held).per_token
        sizes = state.words.sum(axis=0)
        used = int((sizes > 1e-4 * sizes.sum()).sum())
        points.append(Point((number + 1) * batch, used, score, time.perf_counter() - began))
        print(f"{method} from {start}: {points[-1]}", flush=True)
        yield Trace(method, start, points, sizes, topics)


def _first(model: TopicModel, sample: sparse.csr_array, documents: int, start: int) -> OnlineState:
    scale = documents / sample.shape[0]
    whole = np.array([0.0, 0.0, documents, scale * sample.sum()])
    _, found = seek_topics(model, None, sample, whole, start, 10, np.random.default_rng(2))
    return first_online_state(model, found.scaled(scale))


def main() -> None:
    """Run the workflow."""
    parser = options(__doc__, "hdp_stream")
    parser.add_argument("--documents", type=int, default=300_000, help="in the stream")
    parser.add_argument("--topics", type=int, default=200, help="that the model drawn from is fitted from")
    parser.add_argument("--starts", type=int, nargs="+", default=[20, 100], help="topics to begin with")
    given = parser.parse_args()
    articles = None if given.small else read(given.data, "nips")
    if articles is not None:
        world = World.fitted(articles.train, given.topics, 332)
    else:
        world = World.drawn(300, 15, 60) if given.small else World.drawn(8000, given.topics, 332)
    batches, batch = (12, 150) if given.small else (given.documents // 10_000, 10_000)
    starts = [3] if given.small else given.starts
    test = Corpus(world.draw(400, 10**6), *hold_out(world.draw(100 if given.small else 500, 10**6 + 1), 0.8, seed=3))
    done = list[Trace]()
    for start in starts:
        for method, plan in METHODS.items():
            trace: Trace | None = None
            for trace in follow(method, world, test, start, batches, batch, plan):
                if not given.small:  # which is over in seconds
                    leave(given.out, [*done, trace], say=False)
            assert trace is not None, "a stream has a mini-batch"
            done.append(trace)
    leave(given.out, done)
    truth = completion_score(world.words + 1e-12, world.concentration * world.weights, test.observed, test.held)
    print(f"the topics drawn from: {len(world.words)}, {truth.per_token:.4f} nats a held-out token")
    if given.small:
        *grown, kept = [trace.last for trace in done]
        assert all(one.topics > kept.topics and one.score > kept.score for one in grown), "splits follow the stream"


if __name__ == "__main__":
    main()
