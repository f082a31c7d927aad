"""Topic models by memoized inference: from documents and settings to the first lap, by one pass over the corpus.

The pass checks all counts and draws the documents in which the first topics are looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpdist.core.digests import digest_of_rows
from dpdist.core.errors import InputError
from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition, Source
from dpdist.execution.base import Backend
from dpdist.inference.loop import Step
from dpdist.inference.mixture.local_step import Sample
from dpdist.inference.state import State
from dpdist.inference.topics.births import seek_topics
from dpdist.inference.topics.engine import first_topic_state, topic_steps
from dpdist.inference.topics.evaluation import top_words
from dpdist.inference.topics.prediction import DocumentPredictor, counts_of, predictor_of_topics
from dpdist.inference.topics.problem import PosteriorProblem, TopicProblem
from dpdist.inference.topics.summary import DOCUMENTS, TOKENS, TopicSummary
from dpdist.runs.limits import Limits
from dpdist.runs.method import Method
from dpdist.runs.specs.topics import TopicSpec
from dpdist.storage.checkpoint import Fitted

#: Documents in which the first topics are looked for, at most, and iterations of batch inference on them.
START_DOCUMENTS, START_ITERATIONS = 1000, 5
#: Updates of a document in a lap, about.
UPDATES = 20


@dataclass(frozen=True, eq=False)
class Census:
    """What one pass finds in documents; adds over documents.

    Parameters
    ----------
    documents : number of those that have words
    tokens : of all documents
    drawn : at most ``START_DOCUMENTS`` of those that have words, those of smallest key
    digests : of each partition, by its index
    """

    documents: int
    tokens: float
    drawn: Sample
    digests: dict[int, str]

    def __add__(self, other: Census) -> Census:
        drawn, digests = _fewest(self.drawn + other.drawn), self.digests | other.digests
        return Census(self.documents + other.documents, self.tokens + other.tokens, drawn, digests)


class MemoizedTopics(Method[TopicSpec, PosteriorProblem]):
    """Topic models by memoized or batch inference."""

    command = "topics"
    parts = "topics"
    unit = "token"
    updates = UPDATES

    def check(self, spec: TopicSpec, source: Source, limits: Limits) -> None:
        spec.problem(source.shape[1])

    def begin(self, spec: TopicSpec, source: Source, backend: Backend) -> tuple[PosteriorProblem, State]:
        problem = replace(spec.problem(source.shape[1]), words=source.names)
        census = take_census(source, backend, problem.seed)
        start = backend.fetch(backend.map(first_topics, [problem], [census], [spec.initial_topics]))[0]
        return problem, first_topic_state(problem, source, start)

    def steps(self, problem: PosteriorProblem, source: Source, state: State, backend: Backend) -> Iterator[Step]:
        return topic_steps(problem, source, state, backend)

    def predictor(self, problem: PosteriorProblem, total: TopicSummary, ids: np.ndarray) -> DocumentPredictor:
        return predictor_of_topics(problem, total, ids)

    def values(self, problem: PosteriorProblem, fitted: Fitted, predictor: DocumentPredictor) -> dict[str, Any]:
        return topic_values(predictor)

    def units(self, total: TopicSummary, rows: float) -> float:
        """Tokens."""
        return float(total.totals[TOKENS])


def topic_values(predictor: DocumentPredictor) -> dict[str, Any]:
    """What is shown of topics; ``top_words`` is None where the words of the documents are not known."""
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


def take_census(source: Source, backend: Backend, seed: int) -> Census:
    """Look at all documents once, which leaves the source the digests of its partitions.

    Raises
    ------
    InputError
        If the documents have weights, are no counts, or none of them has words.
    """
    if source.weights is not None:
        raise InputError("documents of a topic model have no weights; repeat a document that should count twice.")
    partitions = source.partitions
    total = backend.total(_count_partition, backend.share_each(partitions), [seed] * len(partitions))
    census: Census = backend.fetch([total])[0]
    if not census.documents:
        raise InputError(
            f"a topic model needs documents with words; all {source.shape[0]} documents are empty. "
            "Check how their words were counted."
        )
    source.digests = tuple(census.digests[partition.index] for partition in partitions)
    return census


def first_topics(problem: TopicProblem[Any], census: Census, topics: int) -> TopicSummary:
    """Sums over the documents drawn under at most `topics` topics found in them, scaled to the whole corpus."""
    whole = np.zeros(4)
    whole[[DOCUMENTS, TOKENS]] = census.documents, census.tokens
    rng, documents = generator(problem.seed, "first topics"), census.drawn.rows
    with one_thread():
        _, found = seek_topics(problem.model, None, documents, whole, topics, START_ITERATIONS, rng)
    return found.scaled(census.documents / documents.shape[0])


def _count_partition(partition: Partition, seed: int) -> Census:
    rows, weights = partition.load()
    documents = counts_of(rows, partition.start)
    tokens = np.asarray(documents.sum(axis=1, dtype=np.float64)).ravel()
    filled = np.flatnonzero(tokens)
    keys = generator(seed, "first documents", partition.index).random(len(tokens))[filled]
    owners, ones = np.zeros(len(filled), dtype=np.int64), np.ones(len(filled))
    drawn = _fewest(Sample(keys, owners, ones, documents[filled]))
    return Census(len(filled), float(tokens.sum()), drawn, {partition.index: digest_of_rows(rows, weights)})


def _fewest(drawn: Sample) -> Sample:
    """The documents of smallest key, in their order."""
    kept = np.sort(np.argsort(drawn.keys, kind="stable")[:START_DOCUMENTS])
    return Sample(drawn.keys[kept], drawn.owners[kept], drawn.weights[kept], drawn.rows[kept])
