"""Topic models: preparation by one pass over the corpus, and single mini-batches of `partial_fit`.

The pass checks all counts and samples the documents from which the first topics are created.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy import sparse

from dpdist.core.checks import is_number, shown
from dpdist.core.digests import digest_of_rows
from dpdist.core.errors import InputError
from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.arrays import ArraySource
from dpdist.data.base import Partition, Source
from dpdist.execution.base import Backend
from dpdist.execution.serial import SerialBackend
from dpdist.inference.loop import Step
from dpdist.inference.sample import Sample
from dpdist.inference.schedules import Stochastic
from dpdist.inference.state import State
from dpdist.inference.topics.batches import batches_that_pay
from dpdist.inference.topics.engine import first_topic_state, topic_steps
from dpdist.inference.topics.evaluation import top_words
from dpdist.inference.topics.first import first_topics
from dpdist.inference.topics.online import OnlineState, first_online_state
from dpdist.inference.topics.online_engine import point_state, point_steps
from dpdist.inference.topics.prediction import DocumentPredictor, counts_of, predictor_of_topics, require_unweighted
from dpdist.inference.topics.problem import AnyTopicProblem, PointProblem, PosteriorProblem
from dpdist.inference.topics.summary import DOCUMENTS, TOKENS, TopicSummary
from dpdist.runs.limits import Limits
from dpdist.runs.methods.base import Method, rows_of_batches, workers_of_batches
from dpdist.runs.specs.topics import TopicSpec
from dpdist.storage.checkpoint import AnyFitted, Fitted, Total

#: Largest number of documents from which the first topics are created, and iterations of batch inference on them.
START_DOCUMENTS, START_ITERATIONS = 1000, 5
#: Approximate number of updates of a document in a lap.
UPDATES = 20

Problem = TypeVar("Problem", bound=AnyTopicProblem)


@dataclass(frozen=True, eq=False)
class Census:
    """Counts and a sample of documents, from one pass; adds over documents.

    Parameters
    ----------
    documents : number of documents with words
    tokens : number of tokens
    entries : number of distinct words of each document, summed over documents
    drawn : at most ``START_DOCUMENTS`` documents with words, those with the smallest random keys
    digests : of each partition, by its index
    """

    documents: int
    tokens: float
    entries: int
    drawn: Sample
    digests: dict[int, str]

    def __add__(self, other: Census) -> Census:
        drawn, digests = _fewest(self.drawn + other.drawn), self.digests | other.digests
        documents, tokens = self.documents + other.documents, self.tokens + other.tokens
        return Census(documents, tokens, self.entries + other.entries, drawn, digests)


class Topics(Method[TopicSpec, Problem, Total, DocumentPredictor]):
    """Methods shared by all topic models."""

    command = "topics"
    parts = "topics"
    unit = "token"
    row = "document"
    updates = UPDATES

    def predictor(self, problem: Problem, total: Total, ids: np.ndarray) -> DocumentPredictor:
        return predictor_of_topics(problem, total, ids)

    def batch_rows(self, problem: Problem, source: Source) -> list[int]:
        return rows_of_batches(problem.schedule, source)

    def useful_workers(self, problem: Problem, partitions: int) -> int:
        return workers_of_batches(problem.schedule, partitions)

    def values(self, problem: Problem, fitted: Fitted[Total], predictor: DocumentPredictor) -> dict[str, object]:
        """As the base; ``top_words`` is None if the words of the documents are unknown."""
        allocation, words = predictor.model.allocation, predictor.vocabulary
        return {
            "tokens": predictor.tokens,
            "words": predictor.model.vocabulary,
            "concentration": allocation.concentration,
            "document_concentration": allocation.document_concentration,
            "pseudocount": predictor.model.pseudocount,
            "counts": predictor.words.sum(axis=0).tolist(),
            "top_words": None if words is None else top_words(predictor.topics, list(words)),
        }


class MemoizedTopics(Topics[PosteriorProblem, TopicSummary]):
    """Topic models with posterior global weights, by memoized or batch inference."""

    def check(self, spec: TopicSpec, source: Source, limits: Limits) -> None:
        spec.problem(source.shape[1])

    def begin(self, spec: TopicSpec, source: Source, backend: Backend) -> tuple[PosteriorProblem, State]:
        problem = replace(spec.problem(source.shape[1]), words=source.names)
        census = take_census(source, backend, problem.seed)
        schedule = spec.schedule.in_batches(batches_that_pay(census.entries, source.shape[1]))
        problem = replace(problem, schedule=schedule)
        start = found_topics(problem, census, spec.initial_topics, backend)
        return problem, first_topic_state(problem, source, start)

    def steps(
        self, problem: PosteriorProblem, source: Source, state: State, backend: Backend, path: str | None
    ) -> Iterator[Step]:
        return topic_steps(problem, source, state, backend, path)


class OnlineTopics(Topics[PointProblem, OnlineState]):
    """Topic models with point estimates of the global weights, by online or batch inference.

    Source: Bryant & Sudderth, Truly nonparametric online variational inference for hierarchical Dirichlet processes,
    NeurIPS 2012.
    """

    def check(self, spec: TopicSpec, source: Source, limits: Limits) -> None:
        problem = spec.problem(source.shape[1])
        if self.never_converges(problem) and limits == Limits(None, None):
            raise InputError("an online fit needs max_laps or max_time to end; both are None. Give one of them.")

    def never_converges(self, problem: PointProblem) -> bool:
        return isinstance(problem.schedule, Stochastic)

    def begin(self, spec: TopicSpec, source: Source, backend: Backend) -> tuple[PointProblem, State]:
        problem = replace(spec.problem(source.shape[1]), words=source.names)
        return problem, point_state(problem, source, _begun(problem, spec.initial_topics, source, backend, 1.0))

    def steps(
        self, problem: PointProblem, source: Source, state: State, backend: Backend, path: str | None
    ) -> Iterator[Step]:
        return point_steps(problem, source, state, backend, path)

    def values(
        self, problem: PointProblem, fitted: Fitted[OnlineState], predictor: DocumentPredictor
    ) -> dict[str, object]:
        """As the base; ``elbo_of`` says which documents the ELBO is of."""
        told = "the last mini-batch, scaled to the corpus" if self.never_converges(problem) else "the corpus"
        return {"elbo_of": told, **super().values(problem, fitted, predictor)}


def found_topics(problem: AnyTopicProblem, census: Census, topics: int, backend: Backend) -> TopicSummary:
    """Sums over the corpus under at most `topics` topics, created by a task from a sample of documents."""

    def found() -> TopicSummary:
        return backend.fetch(backend.map(topics_of_census, [problem], [census], [topics]))[0]

    return backend.kept("first topics", found)


def take_census(source: Source, backend: Backend, seed: int) -> Census:
    """Read all documents once; also sets the digests of the source's partitions. Raises :class:`InputError` if the
    documents have weights, an entry is not a valid amount of a word, or no document has words."""
    require_unweighted(source)
    partitions = source.partitions
    columns = backend.share_each(partitions), [seed] * len(partitions)
    census = backend.gathered("census of documents", _count_partition, *columns)
    if not census.documents:
        raise InputError(
            f"a topic model needs documents with words; all {source.shape[0]} documents are empty. "
            "Check how their words were counted."
        )
    source.digests = tuple(census.digests[partition.index] for partition in partitions)
    return census


def topics_of_census(problem: AnyTopicProblem, census: Census, topics: int) -> TopicSummary:
    """Sums over the sampled documents under at most `topics` topics created from them, scaled to the whole corpus."""
    whole = np.zeros(4)
    whole[[DOCUMENTS, TOKENS]] = census.documents, census.tokens
    with one_thread():
        return first_topics(problem.model, census.drawn.rows, whole, topics, START_ITERATIONS, problem.seed)


def _count_partition(partition: Partition, seed: int) -> Census:
    rows, weights = partition.load()
    documents = counts_of(rows, partition.start)
    tokens = np.asarray(documents.sum(axis=1, dtype=np.float64)).ravel()
    filled = np.flatnonzero(tokens)
    keys = generator(seed, "first documents", partition.index).random(len(tokens))[filled]
    owners, ones = np.zeros(len(filled), dtype=np.int64), np.ones(len(filled))
    drawn = _fewest(Sample(keys, owners, ones, documents[filled]))
    digests = {partition.index: digest_of_rows(rows, weights)}
    return Census(len(filled), float(tokens.sum()), int(np.count_nonzero(documents.data)), drawn, digests)


def _fewest(drawn: Sample) -> Sample:
    """The ``START_DOCUMENTS`` documents with the smallest keys, in their original order."""
    kept = np.sort(np.argsort(drawn.keys, kind="stable")[:START_DOCUMENTS])
    return Sample(drawn.keys[kept], drawn.owners[kept], drawn.weights[kept], drawn.rows[kept])


# Single mini-batches


def begin_partial(problem: PointProblem, topics: int, documents: sparse.csr_array, corpus: float) -> OnlineState:
    """The state before the first mini-batch, with topics created from it; raises as :meth:`OnlineTopics.begin` does.

    Parameters
    ----------
    documents : (n, W) CSR counts
    corpus : D, documents of the whole corpus
    """
    scale = corpus / documents.shape[0]
    return _begun(problem, topics, ArraySource(documents), SerialBackend(), scale)


def as_online(problem: AnyTopicProblem, fitted: AnyFitted, asked: PointProblem) -> tuple[PointProblem, OnlineState]:
    """The problem and state from which online inference continues: unchanged for an online model; for a model of
    memoized or batch inference, as before the first step.

    Parameters
    ----------
    problem, fitted : the model so far
    asked : schedule, moves and learned hyperparameters from now on
    """
    if isinstance(problem.schedule, Stochastic):
        return replace(asked, model=problem.model, effort=problem.effort, seed=problem.seed), fitted.total
    predictor = predictor_of_topics(problem, fitted.total, fitted.ids)
    online = replace(asked, model=predictor.model, effort=problem.effort, seed=problem.seed)
    words, weights = predictor.words.copy(), predictor.global_weights.copy()
    return online, OnlineState(words, weights, 0, fitted.ids.copy(), fitted.next_id)


def check_corpus(corpus: float, documents: int) -> None:
    """Raise :class:`InputError` unless `corpus` is a number of documents and at least `documents`."""
    if not (is_number(corpus) and corpus >= documents):
        raise InputError(
            f"documents should be the number of documents in the whole corpus, at least the {documents} of this "
            f"mini-batch; got {shown(corpus)}."
        )


def _begun(problem: PointProblem, topics: int, source: Source, backend: Backend, scale: float) -> OnlineState:
    start = found_topics(problem, take_census(source, backend, problem.seed), topics, backend)
    with one_thread():
        return first_online_state(problem.model, start.scaled(scale))
