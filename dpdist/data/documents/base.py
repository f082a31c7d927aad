"""What readers of documents give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy import sparse

from dpdist.core.errors import InputError

#: Bounds on a block: documents, and entries where it has more than one document.
BLOCK_DOCUMENTS, BLOCK_ENTRIES = 2**14, 2**19


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents in order, to be read once.

    Parameters
    ----------
    blocks : yields all documents as CSR (n, W) counts; W is the words known so far where only the end tells
    vocabulary : the words, complete when all blocks were read; None if they are not known
    label : how messages name them
    """

    blocks: Iterator[sparse.csr_array]
    vocabulary: Sequence[str] | None = None
    label: str = "the documents"

    def __iter__(self) -> Iterator[sparse.csr_array]:
        return self.blocks


def require_vocabulary(words: int, vocabulary: int | None, path: Path) -> None:
    """Raise :class:`InputError` unless the vocabulary, if its size is known, has as many words as a file says."""
    if vocabulary is not None and vocabulary != words:
        raise InputError(
            f"the vocabulary should have {words} words, one for each of {path}; got {vocabulary}. "
            "Give the vocabulary that belongs to it, one word a line."
        )
