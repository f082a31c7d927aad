"""New topics from a sample of documents, which replace the topics that fit it worst.

The seeds are the parts of documents, chosen far from each other, that the replaced topics explain; batch inference on
the parts of the whole sample that these topics explain makes topics of them. So a group of topics, or all of them, is
refitted: next to topics that stay, new ones would get only what these leave. Tokens of other topics stay with them
until the next local step of all documents.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.special import psi

from dpdist.inference.topics.documents import NO_PAIRS, DocumentTopics, Effort, local_step
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.summary import DOCUMENTS, LOG_PI, PSI_SUM, TOKENS, TopicSummary, of_topics
from dpdist.inference.topics.word_groups import spherical_kmeans_plusplus
from dpdist.kernels.topics import expect_counts
from dpdist.models.families.multinomial import entries_of

#: Updates of a document during a search; they need not converge.
_EFFORT = Effort(tolerance=1e-2, most=30)
#: Number of iterations in which documents may use any topic, without and with existing topics; afterwards they use only
#: those that they have.
_FIRST, _FRESH = 4, 2
#: If the replaced topics have a smaller share of a word in a document, it counts as zero.
_LEAST_SHARE = 1e-3


@dataclass(frozen=True, eq=False)
class Seeds:
    """Topics to try in place of others.

    Parameters
    ----------
    words : (W, B) expected counts, scaled to the whole corpus
    log_pi : (B,) sums of E log pi, scaled in the same way
    replaced : positions of the topics that they replace
    """

    words: np.ndarray
    log_pi: np.ndarray
    replaced: np.ndarray

    def __len__(self) -> int:
        return len(self.log_pi)


def seek_topics(
    model: TopicModel,
    total: TopicSummary | None,
    documents: sparse.csr_array,
    whole: np.ndarray,
    topics: int,
    iterations: int,
    rng: np.random.Generator,
    replaced: int = 0,
    words: np.ndarray | None = None,
) -> tuple[Seeds, TopicSummary]:
    """Find new topics in a sample.

    Parameters
    ----------
    model : of the corpus
    total : sums over the corpus under the topics in use; None if there are none
    documents : (n, W) the sample
    whole : totals of the corpus, as in :class:`TopicSummary`
    topics : number to search for
    iterations : of batch inference on the sample
    rng : of the seeds
    replaced : number of topics in use to replace, those that fit their documents worst; the others are fixed
    words : (W, B) initial counts of topics; default: what the replaced topics explain of documents far from each other

    Returns
    -------
    seeds : the new topics that the sample uses
    summary : sums over the sample under all topics
    """
    scale, counts, gone, weight = whole[DOCUMENTS] / documents.shape[0], documents, np.zeros(0, dtype=np.int64), 1.0
    if total is not None:
        gone, counts = _attributed(model, total, documents, replaced)
        weight -= float(np.delete(model.sticks(total).weights[:-1], gone).sum())
    begun = _far_apart(sparse.csr_array(counts, dtype=np.float64), topics, rng) if words is None else words
    if not begun.shape[1]:  # the topics replaced explain nothing
        return Seeds(begun, np.zeros(0), gone), TopicSummary.zeros(documents.shape[1], 0)
    fresh, size = scale * begun, begun.shape[1]
    prior = np.full(size + 1, model.allocation.document_concentration * weight / (size + 1))
    known, summary = DocumentTopics.unknown(documents.shape[0]), None
    for step in range(iterations):
        effort = replace(_EFFORT, fresh=step < (_FIRST if total is None else _FRESH))
        summary, _, known = local_step(model.posterior_of(fresh, prior), counts, known, NO_PAIRS, effort)
        fresh = scale * summary.words
    assert summary is not None, "there is at least one iteration"
    used = fresh.sum(axis=0) > _least(whole, scale)
    log_pi = summary.groups[:-1, LOG_PI]
    if total is not None:
        # Documents also have tokens and proportions of other topics.
        tokens = np.asarray(documents.sum(axis=1), dtype=np.float64).ravel()
        log_pi = log_pi + summary.totals[PSI_SUM] - psi(model.allocation.document_concentration + tokens).sum()
    return Seeds(np.ascontiguousarray(fresh[:, used]), scale * log_pi[used], gone), summary


def _least(whole: np.ndarray, scale: float) -> float:
    """Tokens that a topic must explain to be tried: a twentieth of a document of the sample."""
    return float(scale * 0.05 * whole[TOKENS] / whole[DOCUMENTS])


def _attributed(
    model: TopicModel, total: TopicSummary, documents: sparse.csr_array, replaced: int
) -> tuple[np.ndarray, sparse.csr_array]:
    """The topics that fit worst, and the counts (n, W) of documents that these explain."""
    used, words = _explained(model, total, documents)
    expected = _at_entries(used, words, documents)
    worst = np.sort(np.argsort(-_misfits(used, words, documents, expected), kind="stable")[:replaced])
    chosen = sparse.csr_array(used[:, worst])
    own = _at_entries(chosen, of_topics(words, worst), documents) / np.maximum(expected, 1e-300)
    attributed = _with_data(documents, np.where(own < _LEAST_SHARE, 0.0, documents.data * own))
    attributed.eliminate_zeros()
    return worst, attributed


def _misfits(
    used: sparse.csr_array, words: np.ndarray, documents: sparse.csr_array, expected: np.ndarray
) -> np.ndarray:
    """Deviation of documents' counts from their expectation, in nats per token of each topic, (K,).

    The sum of c log(c / expected), divided among topics like the tokens, is about half the number of distinct words if
    these are drawn from the topic, and more if they are drawn from several. This holds for words with an expected count
    of one or more in a document. For rarer words the sum is larger by chance alone, so topics with many rare words are
    among the first to be replaced.
    """
    ratio = documents.data / np.maximum(expected, 1e-300)
    apart = _with_data(documents, ratio * np.log(ratio) - 0.5 / np.maximum(expected, 1e-300)) @ words
    tokens = np.asarray(used.sum(axis=0)).ravel()
    sums: np.ndarray = np.asarray(used.multiply(apart).sum(axis=0)).ravel()
    return np.where(tokens >= 1, sums / np.maximum(tokens, 1.0), -np.inf)


def _explained(
    model: TopicModel, total: TopicSummary, documents: sparse.csr_array
) -> tuple[sparse.csr_array, np.ndarray]:
    """Expected tokens of each topic in each document (n, K), and topics' expected probabilities of words (W, K)."""
    unknown = DocumentTopics.unknown(documents.shape[0])
    _, _, topics = local_step(model.posterior(total), documents, unknown, NO_PAIRS, _EFFORT)
    words = total.words + model.pseudocount
    return topics.matrix(len(total.entropy)), words / words.sum(axis=0)


def _at_entries(used: sparse.csr_array, words: np.ndarray, documents: sparse.csr_array) -> np.ndarray:
    """``(used @ words.T)`` where `documents` have counts, in the order of their data."""
    found = np.empty(len(documents.data))
    expect_counts(entries_of(documents), entries_of(used), words, found)
    return found


def _with_data(documents: sparse.csr_array, data: np.ndarray) -> sparse.csr_array:
    return sparse.csr_array((data, documents.indices, documents.indptr), shape=documents.shape, copy=True)


def _far_apart(counts: sparse.csr_array, topics: int, rng: np.random.Generator) -> np.ndarray:
    """The counts of at most `topics` documents, (W, B).

    Each is drawn with a probability that increases with its counts and its distance (by the cosine) from those drawn
    before.
    """
    mass = np.asarray(counts.sum(axis=1)).ravel()
    norms = np.sqrt(np.asarray(counts.multiply(counts).sum(axis=1)).ravel())
    unit = sparse.csr_array(sparse.diags_array(1 / np.maximum(norms, 1e-300)) @ counts)
    chosen = spherical_kmeans_plusplus(unit, mass, topics, rng)
    return np.ascontiguousarray(counts[chosen].toarray().T)
