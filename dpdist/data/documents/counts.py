"""Checks of blocks of documents, with counts for storage or real weights, as canonical CSR; and sizes of blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import sparse

from dpdist.core.errors import InputError
from dpdist.data.soundness import summable

#: Largest index of a word, and largest count, which are int32.
MOST = int(np.iinfo(np.int32).max)
#: Largest number of documents of a block, and of entries unless it has a single document.
BLOCK_DOCUMENTS, BLOCK_ENTRIES = 2**14, 2**19


def check_block(block: sparse.sparray, first: int, label: str) -> sparse.csr_array:
    """Counts as int32 CSR with sorted, unique indices and no zeros.

    Parameters
    ----------
    block : (n, W) SciPy sparse counts
    first : number of its first document, for messages
    label : name of the documents in messages

    Raises
    ------
    InputError
        If it is not sparse, a count is not a non-negative integer, or a word is out of range.
    """
    if not sparse.issparse(block) or block.ndim != 2:
        kind = f"an array of shape {block.shape}" if isinstance(block, np.ndarray) else type(block).__name__
        raise InputError(
            f"{label} should be blocks of 2-D SciPy sparse matrices, with one row per document; got {kind}. "
            "Convert each block with scipy.sparse.csr_array(block)."
        )
    rows = sparse.csr_array(summable(block))
    _require_words(rows, first, label)
    _require_amounts(rows, first, label)
    _require_counts(rows, rows.data, first, label)
    counts = sparse.csr_array((rows.data.astype(np.int64), rows.indices, rows.indptr), shape=rows.shape, copy=True)
    counts.sum_duplicates()
    counts.eliminate_zeros()
    _require_counts(counts, counts.data, first, label)
    return counts.astype(np.int32)


def check_weights(rows: sparse.csr_array, first: int, label: str) -> sparse.csr_array:
    """Weights of words as float64 CSR, positive, with sorted, unique indices.

    Parameters
    ----------
    rows : (n, W) weights, such as tf-idf
    first : number of the first document, for messages
    label : name of the documents in messages

    Raises
    ------
    InputError
        If a weight is negative, above :data:`MOST` or not finite, or a word is out of range.
    """
    _require_words(rows, first, label)
    _require_amounts(rows, first, label)
    weights = sparse.csr_array((rows.data.astype(np.float64), rows.indices, rows.indptr), shape=rows.shape, copy=True)
    weights.sum_duplicates()
    weights.eliminate_zeros()
    return weights


def are_whole(amounts: np.ndarray) -> bool:
    """Whether amounts of words are integer counts."""
    return amounts.dtype.kind != "f" or bool((amounts == np.floor(amounts)).all())


def _require_words(rows: sparse.csr_array, first: int, label: str) -> None:
    wrong = np.flatnonzero((rows.indices < 0) | (rows.indices >= rows.shape[1]))
    if len(wrong):
        raise InputError(
            f"{_document_of(rows, wrong[0], first)} of {label} should have words from 0 to {rows.shape[1] - 1}; "
            f"got {rows.indices[wrong[0]]}. Correct the document, or give the matrix one column per word."
        )


def _require_amounts(rows: sparse.csr_array, first: int, label: str) -> None:
    """Raise :class:`InputError` unless all entries are finite, non-negative and at most :data:`MOST`."""
    amounts = rows.data
    if amounts.dtype.kind not in "biuf":
        raise InputError(f"{label} should hold counts; got dtype {amounts.dtype}. Convert them to integers first.")
    # negated, because comparisons with NaN are false
    wrong = np.flatnonzero(~((amounts >= 0) & (amounts <= MOST)))
    if len(wrong):
        kind = "Negative values in data" if amounts[wrong[0]] < 0 else "NaN, infinity or too large"
        raise InputError(
            f"{_document_of(rows, wrong[0], first)} of {label} should hold counts, numbers from 0 to {MOST}; "
            f"got {amounts[wrong[0]]} of word {rows.indices[wrong[0]]} ({kind}). Correct or drop it."
        )


def _require_counts(rows: sparse.csr_array, counts: np.ndarray, first: int, label: str) -> None:
    """Raise :class:`InputError` unless all entries are integers and, after summing, at most :data:`MOST`."""
    wrong = np.flatnonzero((counts > MOST) | (counts != np.floor(counts)))
    if len(wrong):
        raise InputError(
            f"{_document_of(rows, wrong[0], first)} of {label} should hold counts, whole numbers from 0 to {MOST}; "
            f"got {counts[wrong[0]]} of word {rows.indices[wrong[0]]}. Correct or drop it, or give a matrix of weights "
            "directly to HDPTopicModel."
        )


def _document_of(rows: sparse.csr_array, entry: int, first: int) -> str:
    """Name of the document of an entry in messages; numbered from 0."""
    return f"document {first + int(np.searchsorted(rows.indptr, entry, side='right')) - 1}"


def require_vocabulary(words: int, vocabulary: int | None, path: Path) -> None:
    """Raise :class:`InputError` unless the vocabulary, if its size is known, has as many words as the file."""
    if vocabulary is not None and vocabulary != words:
        raise InputError(
            f"the vocabulary should have {words} words, as many as {path}; got {vocabulary}. "
            "Give the vocabulary of this file, with one word per line."
        )
