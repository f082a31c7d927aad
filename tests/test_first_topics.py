"""First topics: groups of words that occur together, and which of two beginnings is taken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dpdist import HDPTopicModel
from dpdist.inference.topics import first
from dpdist.inference.topics.births import seek_topics
from dpdist.inference.topics.first import first_topics
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.word_groups import _spherical_k_means, word_groups

BLOCKS, WIDTH = 4, 10
seeds = st.integers(0, 2**32 - 1)


def blocks(rng: np.random.Generator, documents: int = 40, tokens: int = 60) -> sparse.csr_array:
    """Documents each of whose words are of one block; every word occurs."""
    counts = np.zeros((documents, BLOCKS, WIDTH))
    for j in range(documents):
        counts[j, j % BLOCKS] = 1 + rng.multinomial(tokens, rng.dirichlet(np.ones(WIDTH)))
    return sparse.csr_array(counts.reshape(documents, -1))


def long_documents(rng: np.random.Generator, words: int, topics: int, tokens: int, documents: int = 200):
    """Documents of several topics each."""
    shares = rng.dirichlet(np.full(topics, 0.1), size=documents)
    probabilities = rng.dirichlet(np.full(words, 0.05), size=topics)
    return sparse.csr_array(np.stack([rng.multinomial(tokens, each @ probabilities) for each in shares]).astype(float))


@settings(max_examples=20)
@given(seed=seeds, groups=st.integers(1, 50))
def test_every_word_with_its_counts_is_in_one_group(seed: int, groups: int) -> None:
    rng = np.random.default_rng(seed)
    counts = sparse.csr_array(rng.poisson(0.3, size=(rng.integers(2, 30), 40)).astype(float))
    if not counts.sum():
        return
    words = word_groups(counts, groups, rng)
    np.testing.assert_array_equal(words.sum(axis=1), np.asarray(counts.sum(axis=0)).ravel())
    assert ((words > 0).sum(axis=1) <= 1).all()
    assert 1 <= words.shape[1] <= groups and (words.sum(axis=0) > 0).all()


@pytest.mark.parametrize("documents", [40, 600], ids=["few", "more than singular vectors"])
@pytest.mark.parametrize("groups", [BLOCKS, 3 * BLOCKS])
def test_words_that_never_meet_are_in_different_groups(groups: int, documents: int) -> None:
    found = word_groups(blocks(np.random.default_rng(0), documents), groups, np.random.default_rng(1))
    of_block = found.reshape(BLOCKS, WIDTH, -1).sum(axis=1) > 0
    assert (of_block.sum(axis=0) == 1).all()
    assert found.shape[1] >= BLOCKS


@settings(max_examples=10)
@given(seed=seeds)
def test_groups_do_not_depend_on_the_unit_of_counts(seed: int) -> None:
    counts = blocks(np.random.default_rng(seed))
    once, more = (word_groups(factor * counts, 9, np.random.default_rng(seed)) for factor in (1.0, 4.0))
    np.testing.assert_array_equal(4.0 * once, more)


def test_a_word_counts_as_often_as_it_occurs() -> None:
    """Two frequent words stay apart, though many rare ones, nearer to one, would take it over by their number."""
    angles = np.append(np.zeros(20), [0.6, 1.0])
    places = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    owners = _spherical_k_means(places, np.append(np.full(20, 1e-3), [1e6, 1e6]), 2, np.random.default_rng(0))
    assert owners[-1] != owners[-2] and (owners[:20] == owners[-2]).all()


@pytest.mark.parametrize("better", [0, 1])
def test_the_beginning_that_predicts_held_out_words_better_is_taken(better: int, monkeypatch) -> None:
    documents = long_documents(np.random.default_rng(0), 300, 10, 400)
    model, whole = model_and_totals(documents)
    begun, scores = list[bool](), iter((better == 0, better == 1))
    seek = seek_topics

    def seen(*given, words):
        begun.append(words is not None)
        return seek(*given, words=words)

    monkeypatch.setattr(first, "seek_topics", seen)
    monkeypatch.setattr(first, "_score", lambda *given: float(next(scores)))
    first_topics(model, documents, whole, 20, 5, 0)
    assert begun == [False, True, better == 1]


def test_a_score_is_of_documents_that_were_set_apart(monkeypatch) -> None:
    documents = long_documents(np.random.default_rng(0), 300, 10, 400)
    model, whole = model_and_totals(documents)
    fitted, scored = list[int](), list[float]()
    seek, score = seek_topics, first._score

    def seen(model, total, sample, *given, words):
        fitted.append(sample.shape[0])
        return seek(model, total, sample, *given, words=words)

    def told(model, seeds, observed, held):
        np.testing.assert_array_equal((observed + held).toarray(), documents[9::10].toarray())
        scored.append(score(model, seeds, observed, held))
        return scored[-1]

    monkeypatch.setattr(first, "seek_topics", seen)
    monkeypatch.setattr(first, "_score", told)
    first_topics(model, documents, whole, 20, 5, 0)
    assert fitted == [180, 180, 200]
    assert all(-np.log(300) < each < -3 for each in scored) and scored[0] != scored[1]


@pytest.mark.parametrize(
    ("words", "topics", "fewer", "numbers"),
    [
        (300, 50, False, [50]),
        (300, 61, False, []),
        (50, 20, False, []),
        (50, 20, True, [16, 8, 4, 2]),
        (300, 61, True, [61, 30, 15, 7, 3]),
        (5, 20, True, []),
    ],
)
def test_groups_are_no_more_than_words_allow_and_fewer_where_asked(words, topics, fewer, numbers, monkeypatch) -> None:
    documents = long_documents(np.random.default_rng(0), words, min(10, words), 100)
    model, whole = model_and_totals(documents)
    tried, group = list[int](), word_groups

    def seen(counts, groups, rng):
        tried.append(groups)
        return group(counts, groups, rng)

    monkeypatch.setattr(first, "word_groups", seen)
    monkeypatch.setattr(first, "_score", lambda *_: -len(tried))  # documents are the best way
    _, found = first.seek_first(model, documents, whole, topics, 3, 0, fewer)
    assert tried == numbers
    rng = first.generator(0, "first topics")
    np.testing.assert_array_equal(found.words, seek_topics(model, None, documents, whole, topics, 3, rng)[1].words)


def test_documents_of_one_token_leave_nothing_to_predict() -> None:
    documents = sparse.csr_array(np.eye(40))
    model, whole = model_and_totals(documents)
    assert first_topics(model, documents, whole, 2, 3, 0).words.sum() == pytest.approx(40)


def test_sums_are_those_of_the_whole_corpus() -> None:
    documents = long_documents(np.random.default_rng(0), 300, 10, 100)
    model, whole = model_and_totals(documents)
    found = first_topics(model, documents, 5 * whole, 20, 5, 0)
    assert found.words.sum() == pytest.approx(5 * documents.sum(), rel=1e-9)


def model_and_totals(documents: sparse.csr_array) -> tuple[TopicModel, np.ndarray]:
    """The default model of a corpus, and its totals."""
    totals = np.array([0.0, 0.0, documents.shape[0], documents.sum()])
    return HDPTopicModel().spec().problem(documents.shape[1]).model, totals


def test_documents_too_long_to_be_divided_are_set_apart_for_no_score() -> None:
    counts = blocks(np.random.default_rng(0)).tolil()
    counts[:, 0] = 2.0e9  # of every document
    model = HDPTopicModel(initial_topics=4, max_laps=1).fit(sparse.csr_array(counts))
    assert np.isfinite(model.elbo_)
