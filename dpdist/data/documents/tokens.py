"""Documents that are lists of words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from scipy import sparse

from dpdist.core.errors import InputError
from dpdist.data.documents.base import BLOCK_DOCUMENTS, BLOCK_ENTRIES, Documents


def from_tokens(
    documents: Iterable[Iterable[str]], vocabulary: Sequence[str] | None = None, drop_unknown: bool = False
) -> Documents:
    """Documents that are lists of words.

    Parameters
    ----------
    documents : the words of each document; read once, a block at a time
    vocabulary : the words to count; by default all there are, in the order in which they are met
    drop_unknown : leave out words that are not in `vocabulary`

    Raises
    ------
    InputError
        If a word stands twice in `vocabulary`; while blocks are read, if a document is no list of words, or has a word
        that is not in `vocabulary` and `drop_unknown` is false.
    """
    known = [] if vocabulary is None else list(vocabulary)
    places = {word: place for place, word in enumerate(known)}
    if len(places) < len(known):
        twice = next(word for place, word in enumerate(known) if places[word] != place)
        raise InputError(f"the vocabulary should have each word once; got '{twice}' twice. Drop one of them.")
    return Documents(_token_blocks(documents, known, places, vocabulary is None, drop_unknown), known)


def _token_blocks(
    documents: Iterable[Iterable[str]], known: list[str], places: dict[str, int], collect: bool, drop: bool
) -> Iterator[sparse.csr_array]:
    columns: list[int] = []
    ends = [0]
    for number, document in enumerate(documents):
        words = _words(document, number)
        for word in words:
            if collect and word not in places:
                places[word] = len(known)
                known.append(word)
            elif not drop and word not in places:
                raise InputError(
                    f"document {number} should have words of the vocabulary only; got {word!r}. "
                    "Add it there, or have such words left out with drop_unknown=True."
                )
        columns += [places[word] for word in words if word in places]
        ends.append(len(columns))
        if len(ends) > BLOCK_DOCUMENTS or len(columns) >= BLOCK_ENTRIES:
            yield _ones(columns, ends, len(known))
            columns, ends = [], [0]
    if len(ends) > 1:
        yield _ones(columns, ends, len(known))


def _words(document: Iterable[str], number: int) -> list[str]:
    """The words of a document; :class:`InputError` where it is no list of such."""
    if isinstance(document, str | bytes):
        raise InputError(f"document {number} should be a list of words; got one string. Split it, as by text.split().")
    try:
        words = list(document)
    except TypeError as error:
        raise InputError(f"document {number} should be a list of words; {error}. Give lists of strings.") from error
    odd = next((word for word in words if not isinstance(word, str)), None)
    if odd is not None:
        raise InputError(f"document {number} should be a list of words; got {odd!r}. Give lists of strings.")
    return words


def _ones(columns: list[int], ends: list[int], words: int) -> sparse.csr_array:
    """Rows that count each column given once."""
    return sparse.csr_array((np.ones(len(columns), dtype=np.int64), columns, ends), shape=(len(ends) - 1, words))
