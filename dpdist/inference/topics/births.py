"""New topics from a sample of documents: what the topics in use leave unexplained is analysed afresh.

Seeds are documents' residual counts, chosen far from one another; batch inference on the sample, with the topics in
use held as they are, makes topics of them. Several are found at once, from whole documents, not from within one topic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from dpdist.inference.topics.documents import NO_PAIRS, DocumentTopics, Effort, local_step
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.summary import DOCUMENTS, LOG_PI, TOKENS, TopicSummary

#: Updates of a document while topics are sought; they need not be settled.
_EFFORT = Effort(tolerance=1e-2, most=30)
#: Iterations in which documents may take up any topic; then they settle among those they have.
_FRESH = 4


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
    targets: int = 0,
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
    targets : number of topics in use of whose own tokens the seeds are made, equally many of each: those that fit
        their documents worst; 0 for seeds of what all of them leave unexplained

    Returns
    -------
    seeds : those of the new topics that the sample uses
    summary : sums over the sample under all topics
    """
    scale = whole[DOCUMENTS] / documents.shape[0]
    held = np.zeros((model.vocabulary, 0)) if total is None else total.words
    fresh = scale * _seeds(model, total, documents, topics, rng, targets)
    old = np.zeros(0) if total is None else model.sticks(total).weights[:-1]
    prior = _prior(model, old, fresh.shape[1])
    known, summary = DocumentTopics.unknown(documents.shape[0]), None
    for step in range(iterations):
        effort = replace(_EFFORT, fresh=step < _FRESH)
        posterior = model.posterior_of(np.concatenate([held, fresh], axis=1), prior)
        summary, _, known = local_step(posterior, documents, known, NO_PAIRS, effort)
        fresh = scale * summary.words[:, held.shape[1] :]
    assert summary is not None, "there is at least one iteration"
    used = fresh.sum(axis=0) > _least(whole, scale)
    log_pi = scale * summary.groups[held.shape[1] : -1, LOG_PI]
    return Seeds(np.ascontiguousarray(fresh[:, used]), log_pi[used]), summary


def _least(whole: np.ndarray, scale: float) -> float:
    """Tokens that a topic must explain to be tried: a twentieth of a document of the sample."""
    return float(scale * 0.05 * whole[TOKENS] / whole[DOCUMENTS])


def _prior(model: TopicModel, old: np.ndarray, fresh: int) -> np.ndarray:
    """alpha times the weights of old topics, of new ones as large as an average one, if there are any, and of the
    rest."""
    share = fresh / (len(old) + fresh + 1)
    new = np.full(fresh + 1, share / fresh if fresh else 1 / (len(old) + 1))
    weights = np.concatenate([old * (1 - share) / max(old.sum(), 1e-300), new])
    return model.allocation.document_concentration * weights / weights.sum()


def _seeds(
    model: TopicModel,
    total: TopicSummary | None,
    documents: sparse.csr_array,
    topics: int,
    rng: np.random.Generator,
    targets: int,
) -> np.ndarray:
    """Counts (W, B) that new topics begin with."""
    if total is None:
        return _far_apart(sparse.csr_array(documents, dtype=np.float64), topics, rng)
    used, words = _explained(model, total, documents)
    expected = _at_entries(used, words, documents)
    if not targets:
        return _far_apart(_with_data(documents, np.maximum(documents.data - expected, 0.0)), topics, rng)
    worst = np.argsort(-_misfits(used, words, documents, expected), kind="stable")[:targets]
    own = [_own_tokens(used, words, documents, expected, int(k)) for k in worst]
    return np.concatenate([_far_apart(part, topics // targets, rng) for part in own], axis=1)


def _own_tokens(
    used: sparse.csr_array, words: np.ndarray, documents: sparse.csr_array, expected: np.ndarray, topic: int
) -> sparse.csr_array:
    """Expected counts of a topic's tokens in the documents that use it, (m, W)."""
    there = np.flatnonzero(used[:, [topic]].toarray().ravel())
    share = _at_entries(used[:, [topic]], words[:, [topic]], documents) / np.maximum(expected, 1e-300)
    return _with_data(documents, documents.data * share)[there]


def _misfits(
    used: sparse.csr_array, words: np.ndarray, documents: sparse.csr_array, expected: np.ndarray
) -> np.ndarray:
    """By how much documents' counts differ from what is expected of them, in nats a token of each topic, (K,).

    The sum of c log(c / expected), shared out among topics as the tokens are, is about half the number of distinct
    words where these are drawn from the topic, and more where they are drawn from several.
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
    rows = np.repeat(np.arange(documents.shape[0]), np.diff(documents.indptr))
    found = np.empty(len(documents.data))
    for start in range(0, len(rows), 65536):
        part = slice(start, start + 65536)
        found[part] = np.asarray(used[rows[part]].multiply(words[documents.indices[part]]).sum(axis=1)).ravel()
    return found


def _with_data(documents: sparse.csr_array, data: np.ndarray) -> sparse.csr_array:
    return sparse.csr_array((data, documents.indices, documents.indptr), shape=documents.shape)


def _far_apart(counts: sparse.csr_array, topics: int, rng: np.random.Generator) -> np.ndarray:
    """The counts of at most `topics` documents, (W, B), each drawn with a chance that grows with its distance from
    those drawn before (by the cosine) and with its own counts."""
    mass = np.asarray(counts.sum(axis=1)).ravel()
    norms = np.sqrt(np.asarray(counts.multiply(counts).sum(axis=1)).ravel())
    unit = sparse.csr_array(sparse.diags_array(1 / np.maximum(norms, 1e-300)) @ counts)
    nearest, chosen = np.zeros(counts.shape[0]), list[int]()
    while len(chosen) < topics:
        sampling_probabilities = mass * (1 - np.minimum(nearest, 1.0)) ** 2
        sampling_probabilities[chosen] = 0.0
        if not sampling_probabilities.sum() > 0:
            break
        chosen.append(int(rng.choice(len(mass), p=sampling_probabilities / sampling_probabilities.sum())))
        nearest = np.maximum(nearest, (unit @ unit[[chosen[-1]]].T).toarray().ravel())
    return np.ascontiguousarray(counts[chosen].toarray().T)
