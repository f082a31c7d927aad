"""The local step on documents compared with scikit-learn's E-step of LatentDirichletAllocation, one thread each.

Both get the same NIPS documents, topics, prior and tolerance, and return the expected counts of the topics' words.
Documents start from scratch, as in scikit-learn. The last column is dpdist's second visit, in which documents start
from their previous topics or from scratch, whichever is better.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import alternate, options, print_table, spread
from scipy import sparse
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.decomposition._lda import _dirichlet_expectation_2d
from threadpoolctl import threadpool_limits

from dpdist import HDPTopicModel, TopicPlan
from dpdist.execution import SerialBackend
from dpdist.inference.schedules import Memoized
from dpdist.inference.topics.documents import NO_PAIRS, DocumentTopics, Effort, local_step
from dpdist.inference.topics.model import TopicPosterior

#: Pseudocount of topics' words, and tolerance and bound of a document's updates.
ETA, EFFORT = 0.02, Effort(tolerance=1e-3, most=100)


class Size(NamedTuple):
    """How large the benchmark is."""

    documents: int
    topics: tuple[int, ...]
    rounds: int


COLUMNS = ["K", "first visit", "second visit", "sklearn", "sklearn / first", "sklearn / second"]
FULL, SMALL = Size(1740, (50, 100, 200, 300, 500), 3), Size(40, (5,), 1)


def read(size: Size, data: Path) -> sparse.csr_array:
    """The NIPS documents if they are there, else drawn ones."""
    path = data / "text_nips" / "nips.npz"
    if size is SMALL or not path.exists():
        rng = np.random.default_rng(0)
        words = rng.dirichlet(np.full(500, 0.05), size=20)
        shares = rng.dirichlet(np.full(20, 0.1), size=size.documents)
        return sparse.csr_array(np.array([rng.multinomial(300, share @ words) for share in shares]).astype(np.float64))
    stored = np.load(path)
    shape = tuple(stored["shape"])
    return sparse.csr_array((stored["data"].astype(np.float64), stored["indices"], stored["indptr"]), shape=shape)


def fitted_words(documents: sparse.csr_array, topics: int, alpha: float) -> np.ndarray:
    """Expected counts (W, K) after one lap from topics found in a sample."""
    plan = TopicPlan(birth=False, merge=False, delete=False)
    model = HDPTopicModel(
        10.0, alpha, ETA, learn=(), initial_topics=topics, schedule=Memoized(1), moves=plan, max_laps=1, random_state=0
    )
    model.fit(documents, backend=SerialBackend())
    return np.ascontiguousarray((model.components_ * model.topic_sizes_[:, None]).T)


def ours(documents: sparse.csr_array, words: np.ndarray, alpha: float, again: bool) -> Callable[[], np.ndarray]:
    """A function that makes the local step and gives topics' counts (W, K)."""
    counts = words + ETA
    weights = _dirichlet_expectation_2d(np.ascontiguousarray(counts.T)).T
    weights = np.ascontiguousarray(np.exp(weights - weights.max(axis=1, keepdims=True)))
    topics = words.shape[1]
    posterior = TopicPosterior(weights, np.append(np.full(topics, alpha / topics), 1e-3))
    known = DocumentTopics.unknown(documents.shape[0])
    if again:
        known = local_step(posterior, documents, known, NO_PAIRS, EFFORT)[2]
    return lambda: local_step(posterior, documents, known, NO_PAIRS, EFFORT)[0].words


def theirs(documents: sparse.csr_array, words: np.ndarray, alpha: float) -> Callable[[], np.ndarray]:
    """The same by scikit-learn."""
    size, topics = words.shape
    model = LatentDirichletAllocation(
        topics, doc_topic_prior=alpha / topics, topic_word_prior=ETA, mean_change_tol=EFFORT.tolerance, random_state=0
    )
    model.max_doc_update_iter = EFFORT.most
    model._init_latent_vars(size)
    model.components_ = np.ascontiguousarray(words.T) + ETA
    model.exp_dirichlet_component_ = np.exp(_dirichlet_expectation_2d(model.components_))
    counts = sparse.csr_matrix(documents)

    def step() -> np.ndarray:
        found: np.ndarray = model._e_step(counts, cal_sstats=True, random_init=False)[1]
        return found.T

    return step


def main() -> None:
    """Run the benchmark and print its table."""
    parser = options(__doc__)
    parser.add_argument("--topics", type=int, nargs="+", help="numbers of topics; default: 50 to 500")
    parser.add_argument("--alpha", type=float, default=1.0, help="sum of a document's prior; scikit-learn has 1")
    given = parser.parse_args()
    size = SMALL if given.small else FULL
    documents = read(size, given.data)[: size.documents]
    print(
        f"{documents.shape[0]} documents, {documents.nnz} entries, {size.rounds} rounds, one thread; documents a second"
    )
    with threadpool_limits(1):
        for topics in given.topics or size.topics:
            words = fitted_words(documents, topics, given.alpha)
            actions = {
                "first": ours(documents, words, given.alpha, False),
                "again": ours(documents, words, given.alpha, True),
                "sklearn": theirs(documents, words, given.alpha),
            }
            if given.small:
                tokens = documents.sum()
                assert all(np.isclose(action().sum(), tokens) for action in actions.values()), "every token has a topic"
            seconds = alternate(actions, size.rounds)
            rates = [spread(documents.shape[0] / seconds[name], 0) for name in actions]
            ratios = [spread(seconds["sklearn"] / seconds[name]) for name in ("first", "again")]
            print_table(COLUMNS, [[words.shape[1], *rates, *ratios]])


if __name__ == "__main__":
    main()
