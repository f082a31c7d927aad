"""Shared parts of the readers of documents."""

from __future__ import annotations

from pathlib import Path

from dpdist.core.errors import InputError

#: Largest number of documents of a block, and of entries unless it has a single document.
BLOCK_DOCUMENTS, BLOCK_ENTRIES = 2**14, 2**19


def require_vocabulary(words: int, vocabulary: int | None, path: Path) -> None:
    """Raise :class:`InputError` unless the vocabulary, if its size is known, has as many words as the file."""
    if vocabulary is not None and vocabulary != words:
        raise InputError(
            f"the vocabulary should have {words} words, as many as {path}; got {vocabulary}. "
            "Give the vocabulary of this file, with one word per line."
        )
