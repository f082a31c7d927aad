"""New topics from a sample of documents: what the topics in use leave unexplained is analysed afresh.

Seeds are documents' residual counts, chosen far from one another; batch inference on the sample, with the topics in
use held as they are, makes topics of them. Several are found at once, from whole documents, not from within one topic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dpdist.topics.documents import DocumentTopics, Effort, share_out
from dpdist.topics.model import TopicModel
from dpdist.topics.summary import DOCUMENTS, LOG_PI, TOKENS, TopicSummary

_NO_PAIRS = np.zeros((0, 2), dtype=np.int64)
#: Updates of a document while topics are sought; they need not be settled.
_EFFORT = Effort(tolerance=1e-2, most=30)


@dataclass(frozen=True, eq=False)
class Seeds:
    """Topics to try: expected counts (W, B) and sums of E log pi (B,), both scaled to the whole corpus."""

    words: np.ndarray
    log_pi: np.ndarray

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
) -> tuple[Seeds, TopicSummary]:
    """Look for new topics in a sample.

    Parameters
    ----------
    model : of the corpus
    total : sums over the corpus under the topics in use, which are held; None where there are none
    documents : (n, W) the sample
    whole : totals of the corpus, as of :class:`TopicSummary`
    topics : number to look for
    iterations : of batch inference on the sample
    rng : of the seeds

    Returns
    -------
    seeds : those of the new topics that the sample uses
    summary : sums over the sample under all topics
    """
    scale = whole[DOCUMENTS] / documents.shape[0]
    held = np.zeros((model.vocabulary, 0)) if total is None else total.words
    residual = sparse.csr_array(documents, dtype=np.float64) if total is None else _residual(model, total, documents)
    fresh = scale * _seed_words(residual, topics, rng)
    old = np.zeros(0) if total is None else model.sticks(total).weights[:-1]
    prior = _prior(model, old, fresh.shape[1])
    known, summary = DocumentTopics.unknown(documents.shape[0]), None
    for _ in range(iterations):
        posterior = model.posterior_of(np.concatenate([held, fresh], axis=1), prior)
        summary, _, known = share_out(posterior, documents, known, _NO_PAIRS, _EFFORT)
        fresh = scale * summary.words[:, held.shape[1] :]
    assert summary is not None, "there is at least one iteration"
    used = fresh.sum(axis=0) > _least(whole, documents.shape[0], scale)
    log_pi = scale * summary.groups[held.shape[1] : -1, LOG_PI]
    return Seeds(np.ascontiguousarray(fresh[:, used]), log_pi[used]), summary


def _least(whole: np.ndarray, documents: int, scale: float) -> float:
    """Tokens that a topic must explain to be tried: a twentieth of a document of the sample."""
    return float(scale * 0.05 * whole[TOKENS] / max(whole[DOCUMENTS], 1.0)) if documents else 0.0


def _prior(model: TopicModel, old: np.ndarray, fresh: int) -> np.ndarray:
    """alpha times the weights of old topics, of new ones as large as an average one, and of the rest."""
    share = fresh / (len(old) + fresh + 1)
    new = np.full(fresh + 1, share / fresh)
    weights = np.concatenate([old * (1 - share) / max(old.sum(), 1e-300), new])
    return model.allocation.document_concentration * weights / weights.sum()


def _residual(model: TopicModel, total: TopicSummary, documents: sparse.csr_array) -> sparse.csr_array:
    """What of each document's counts the topics in use do not expect, never below zero."""
    posterior = model.posterior(total)
    _, _, topics = share_out(posterior, documents, DocumentTopics.unknown(documents.shape[0]), _NO_PAIRS, _EFFORT)
    shape = (documents.shape[0], len(total.entropy))
    used = sparse.csr_array((topics.counts.astype(np.float64), topics.topics, topics.indptr), shape=shape)
    words = total.words + model.pseudocount
    words = words / words.sum(axis=0)
    rows = np.repeat(np.arange(documents.shape[0]), np.diff(documents.indptr))
    expected = np.empty(len(documents.data))
    for start in range(0, len(rows), 65536):
        part = slice(start, start + 65536)
        expected[part] = np.asarray(used[rows[part]].multiply(words[documents.indices[part]]).sum(axis=1)).ravel()
    left = np.maximum(documents.data - expected, 0.0)
    return sparse.csr_array((left, documents.indices, documents.indptr), shape=documents.shape)


def _seed_words(residual: sparse.csr_array, topics: int, rng: np.random.Generator) -> np.ndarray:
    """Residual counts of at most `topics` documents, (W, B), each drawn with a chance that grows with its distance
    from those drawn before (by the cosine) and with what it leaves unexplained."""
    mass = np.asarray(residual.sum(axis=1)).ravel()
    norms = np.sqrt(np.asarray(residual.multiply(residual).sum(axis=1)).ravel())
    unit = sparse.csr_array(sparse.diags_array(1 / np.maximum(norms, 1e-300)) @ residual)
    nearest, chosen = np.zeros(residual.shape[0]), list[int]()
    while len(chosen) < topics:
        chances = mass * (1 - np.minimum(nearest, 1.0)) ** 2
        chances[chosen] = 0.0
        if not chances.sum() > 0:
            break
        chosen.append(int(rng.choice(len(mass), p=chances / chances.sum())))
        nearest = np.maximum(nearest, (unit @ unit[[chosen[-1]]].T).toarray().ravel())
    return np.ascontiguousarray(residual[chosen].toarray().T)
