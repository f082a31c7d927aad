"""Held-out evaluation of topics, and summaries of topics for users.

The score is document completion: proportions are fitted to most of a test document's tokens with fixed topics, and the
other tokens are scored under them. Source: Bryant & Sudderth (NeurIPS 2012), section 4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from dpdist.core.checks import whole
from dpdist.core.errors import InputError
from dpdist.kernels.topics import complete_documents
from dpdist.models.families.multinomial import entries_of

#: Convergence of a document: mean change of a topic's tokens, as a share of the mean tokens per topic or of one token
#: if that is more; and the largest number of updates.
_TOLERANCE, _MOST = 1e-3, 200


class Score(NamedTuple):
    """Held-out score: nats per token (`per_token`), and the number of `tokens` scored."""

    per_token: float
    tokens: float


def completion_score(
    topics: np.ndarray,
    prior: np.ndarray,
    observed: sparse.csr_array,
    held: sparse.csr_array,
) -> Score:
    """The mean log probability of held-out tokens, in nats.

    Parameters
    ----------
    topics : (K, W) expected probabilities of words, rows sum to 1
    prior : (K,) Dirichlet parameter of a document's proportions: alpha times the expected global weights
    observed : (n, W) CSR, the tokens to which proportions are fitted
    held : (n, W) CSR, the tokens that are scored

    Raises
    ------
    InputError
        If the shapes do not fit or no token is held out.
    """
    rows, columns = observed.shape
    if held.shape != (rows, columns) or topics.shape != (len(prior), columns):
        raise InputError(
            f"observed and held-out counts should have the same number of documents and {topics.shape[1]} words; "
            f"got the shapes {observed.shape} and {held.shape}."
        )
    tokens = float(held.sum())
    if not tokens > 0:
        raise InputError("no token is held out; pass held-out counts with at least one token.")
    by_word = np.ascontiguousarray(topics.T, dtype=np.float64)
    found = np.zeros(rows)
    complete_documents(
        entries_of(observed),
        entries_of(held),
        by_word,
        np.asarray(prior, dtype=np.float64),
        _TOLERANCE,
        _MOST,
        found,
    )
    return Score(float(found.sum()) / tokens, tokens)


def coherence(topics: np.ndarray, documents: sparse.csr_array, words: int = 10) -> np.ndarray:
    """Normalised pointwise mutual information of topics' top words within documents, (K,), from -1 to 1.

    The mean over pairs of the `words` most probable words of log [p(u, v) / (p(u) p(v))] / -log p(u, v), where p are
    the shares of documents that contain a word or both; pairs that never occur together count -1. Source: Bouma (2009).
    """
    words = whole(2).take("words", words)
    if topics.shape[1] < 2:
        raise InputError("coherence needs a vocabulary of two words or more; got one word.")
    occurs = sparse.csc_array(documents > 0, dtype=np.float64)
    shares = np.asarray(occurs.sum(axis=0)).ravel() / documents.shape[0]
    found = np.empty(len(topics))
    for k, topic in enumerate(topics):
        top = np.sort(np.argsort(-topic, kind="stable")[:words])
        own = occurs[:, top]
        both = (own.T @ own).toarray() / documents.shape[0]
        first, second = np.triu_indices(len(top), 1)
        joint, apart = both[first, second], shares[top[first]] * shares[top[second]]
        met = joint > 0
        values = np.full(len(joint), -1.0)
        never_apart = met & (joint >= 1.0)
        values[never_apart] = 1.0
        usual = met & ~never_apart
        values[usual] = np.log(joint[usual] / apart[usual]) / -np.log(joint[usual])
        found[k] = values.mean()
    return found


def top_words(topics: np.ndarray, vocabulary: list[str], words: int = 10) -> list[list[str]]:
    """The most probable words of each topic, best first."""
    return [[vocabulary[w] for w in np.argsort(-topic, kind="stable")[:words]] for topic in topics]
