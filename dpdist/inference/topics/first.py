"""The initial topics of a model, found in a sample of documents.

They are initialised from documents far from each other, or from groups of words that occur together. Neither is better
on all corpora, and the bound does not tell which: the former suits short documents of few words, the latter long
documents. So both are tried on most of the sample, and the one that better predicts words of its other documents is
used on the whole sample.

After refused births, if all topics may be replaced, fewer groups are tried too, down to a few groups. A small number of
topics, several of which are mixed in most documents, is hardly found from many groups, because those blur. On most
corpora, however, many groups find more topics. A short test on a sample cannot decide this; the bound of the whole
corpus does.
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

#: Smallest mean number of words per group; and the same if fewer groups are tried, which the bound judges.
_COMPANY, _LEAST = 5, 3
#: Divisor of the number of groups when fewer are tried.
_FEWER = 2
#: One in this many documents of the sample is held out, and this share of its tokens is observed.
_EACH, _OBSERVED = 10, 0.8


def first_topics(
    model: TopicModel, documents: sparse.csr_array, whole: np.ndarray, topics: int, iterations: int, seed: int
) -> TopicSummary:
    """Sums over a corpus under its initial topics; arguments as in :func:`seek_first`."""
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
    """Find topics in a sample when there are no other topics.

    Parameters
    ----------
    model : of the corpus
    documents : (n, W) a sample of nonempty documents, in random order
    whole : totals of the corpus, as in :class:`TopicSummary`
    topics : largest number of topics
    iterations : of batch inference on the sample
    seed : of the seeds, and of the observed tokens
    fewer : whether fewer groups of words are tried, too

    Returns
    -------
    seeds, summary : as in :func:`dpdist.inference.topics.births.seek_topics`
    """

    def begin(sample: sparse.csr_array, groups: int) -> tuple[Seeds, TopicSummary]:
        """Topics from `groups` groups of words, or from documents if `groups` is 0."""
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
    """Numbers of groups of `words` words to try, each at least two."""
    if not fewer:
        return [topics] if words >= _COMPANY * topics else []
    found = [min(topics, words // _LEAST)]
    while found[-1] >= 2 * _FEWER:
        found.append(found[-1] // _FEWER)
    return [number for number in found if number > 1]


def _score(model: TopicModel, seeds: Seeds, observed: sparse.csr_array, held: sparse.csr_array) -> float:
    """Nats per held-out token under topics and their shares of the sample."""
    words, used = seeds.words.T + model.pseudocount, seeds.words.sum(axis=0)
    prior = model.allocation.document_concentration * used / used.sum()
    return completion_score(words / words.sum(axis=1, keepdims=True), prior, observed, held).per_token
