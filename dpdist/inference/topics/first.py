"""The first topics of a model, looked for in a sample of documents.

They begin with documents far from one another, or with groups of words that occur together. Neither is better on all
corpora, and the bound does not tell: short documents of few words want the one, long ones the other. So both are tried
on most of the sample, and the one that predicts words of its other documents better is taken, on all of it.

Where other topics were tried in vain and all may be replaced, fewer groups are tried too, and few of few words. Few
topics of which most documents have some of each are hardly found from many, since those blur; but from many more are
found on most corpora, and a short look at a sample does not tell that, which the bound of the whole corpus does.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpdist.core.randomness import generator
from dpdist.inference.topics.births import Seeds, seek_topics
from dpdist.inference.topics.evaluation import completion_score
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.prediction import MOST_DRAWN, split_tokens
from dpdist.inference.topics.summary import DOCUMENTS, TopicSummary
from dpdist.inference.topics.word_groups import word_groups

#: Words of a group on average, at least; and where fewer groups are tried, which the bound judges.
_COMPANY, _LEAST = 5, 3
#: By what the number of groups is divided for fewer of them.
_FEWER = 2
#: Of so many documents of the sample one is set apart, and of its tokens this share is observed.
_EACH, _OBSERVED = 10, 0.8


def first_topics(
    model: TopicModel, documents: sparse.csr_array, whole: np.ndarray, topics: int, iterations: int, seed: int
) -> TopicSummary:
    """Sums over a corpus under its first topics; arguments as of :func:`seek_first`."""
    found = seek_first(model, documents, whole, topics, iterations, seed)[1]
    return found.scaled(whole[DOCUMENTS] / documents.shape[0])


def seek_first(
    model: TopicModel,
    documents: sparse.csr_array,
    whole: np.ndarray,
    topics: int,
    iterations: int,
    seed: int,
    fewer: bool = False,
) -> tuple[Seeds, TopicSummary]:
    """Look for topics in a sample beside which there are no others.

    Parameters
    ----------
    model : of the corpus
    documents : (n, W) a sample of documents with words, in a random order
    whole : totals of the corpus, as of :class:`TopicSummary`
    topics : largest number of them
    iterations : of batch inference on the sample
    seed : of the seeds, and of the tokens observed
    fewer : whether fewer groups of words are tried, too

    Returns
    -------
    seeds, summary : as of :func:`dpdist.inference.topics.births.seek_topics`
    """

    def begin(sample: sparse.csr_array, groups: int) -> tuple[Seeds, TopicSummary]:
        """From so many groups of words, or from documents where there are none."""
        words, rng = None, generator(seed, "first topics")
        if groups:
            words = word_groups(sparse.csr_array(sample, dtype=np.float64), groups, generator(seed, "first companies"))
        return seek_topics(model, None, sample, whole, topics, iterations, rng, words=words)

    apart = (np.arange(documents.shape[0]) % _EACH == _EACH - 1) & (documents.sum(axis=1) < MOST_DRAWN)
    kept, (observed, held) = documents[~apart], split_tokens(documents[apart], _OBSERVED, seed)
    ways = [0, *_numbers(len(np.unique(kept.indices)), topics, fewer)]
    if len(ways) == 1 or not held.sum() > 0:
        return begin(documents, 0)
    scores = [_score(model, begin(kept, groups)[0], observed, held) for groups in ways]
    return begin(documents, ways[int(np.argmax(scores))])


def _numbers(words: int, topics: int, fewer: bool) -> list[int]:
    """Numbers of groups of so many words that are tried, two or more each."""
    if not fewer:
        return [topics] if words >= _COMPANY * topics else []
    found = [min(topics, words // _LEAST)]
    while found[-1] >= 2 * _FEWER:
        found.append(found[-1] // _FEWER)
    return [number for number in found if number > 1]


def _score(model: TopicModel, seeds: Seeds, observed: sparse.csr_array, held: sparse.csr_array) -> float:
    """Nats a held-out token under topics and their shares of the sample."""
    words, used = seeds.words.T + model.pseudocount, seeds.words.sum(axis=0)
    prior = model.allocation.document_concentration * used / used.sum()
    return completion_score(words / words.sum(axis=1, keepdims=True), prior, observed, held).per_token
