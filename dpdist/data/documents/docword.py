"""Documents in the UCI format (https://archive.ics.uci.edu/dataset/164/bag+of+words).

The first three lines hold the number of documents D, of words W, and of the lines that follow. Each of these is
``document word count``, with documents from 1 to D in order, and words from 1 to W.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from scipy import sparse

from dpdist.core.errors import InputError
from dpdist.data.documents.counts import BLOCK_DOCUMENTS, MOST, require_vocabulary
from dpdist.data.documents.text import numbers_of, opened, read_lines, refuse, shown

_KIND = "text of UCI's docword format"
#: Names of the numbers in the first three lines.
_HEADER = ("documents", "words", "lines that follow")
_LINES = re.compile(rb"(?>[ \t]*+\d++[ \t]++\d++[ \t]++\d++[ \t]*+\r?+(?:\n|\Z))*+")


def read_docword(path: Path, vocabulary: int | None) -> Iterator[sparse.csr_array]:
    """The documents in blocks.

    Parameters
    ----------
    path : of the file
    vocabulary : number of words, if known
    """
    # Blocks hold complete documents; the lines of the last one, maybe incomplete, are kept for the next block.
    kept, first, seen = np.zeros((0, 3), dtype=np.int64), 1, 0
    with opened(path, _KIND) as stream:
        documents, words, entries = (_number(stream, *line, path) for line in enumerate(_HEADER, 1))
        require_vocabulary(words, vocabulary, path)
        for number, lines in read_lines(stream, 4):
            table = numbers_of(lines, number, _LINES, path, "document word count").reshape(-1, 3)
            _require_in_header(table, number, documents, words, path)
            _require_sorted(table, number, first, path)
            seen, kept, last = seen + len(table), np.concatenate([kept, table]), int(table[-1, 0])
            whole = int(np.searchsorted(kept[:, 0], last))
            yield from _rows(kept[:whole], first, last, words)
            kept, first = kept[whole:], last
    if seen != entries:
        raise InputError(
            f"{path} should have {entries} lines after its header, as line 3 says; got {seen}. "
            "The file is truncated or was changed; download it again, or correct line 3."
        )
    yield from _rows(kept, first, documents + 1, words)


def _number(stream: BufferedIOBase, place: int, what: str, path: Path) -> int:
    """The number in the next line of the header."""
    line = stream.readline()
    if not line.strip().isdigit():
        refuse(path, place, f"be the number of {what}", f"'{shown(line)}'")
    if place < 3 and int(line) > MOST:
        refuse(path, place, f"be the number of {what}, at most {MOST}", f"'{shown(line)}'")
    return int(line)


def _require_in_header(table: np.ndarray, first: int, documents: int, words: int, path: Path) -> None:
    wrong = np.flatnonzero((table[:, :2] < 1).any(axis=1) | (table[:, 0] > documents) | (table[:, 1] > words))
    if len(wrong):
        document, word, _ = table[wrong[0]]
        expected = f"name a document from 1 to {documents} and a word from 1 to {words}, as the header says"
        refuse(path, first + int(wrong[0]), expected, f"document {document} and word {word}")


def _require_sorted(table: np.ndarray, first: int, before: int, path: Path) -> None:
    order = np.concatenate([[before], table[:, 0]])
    wrong = np.flatnonzero(np.diff(order) < 0)
    if len(wrong):
        raise InputError(
            f"line {first + wrong[0]} of {path} should have document {order[wrong[0]]} or a later one; got document "
            f"{order[wrong[0] + 1]}. Sort the lines below the header by document, for example with sort -n."
        )


def _rows(table: np.ndarray, start: int, stop: int, words: int) -> Iterator[sparse.csr_array]:
    """Documents `start` to `stop` of sorted lines, including those without lines."""
    for first in range(start, stop, BLOCK_DOCUMENTS):
        ends = np.searchsorted(table[:, 0], np.arange(first, min(first + BLOCK_DOCUMENTS, stop) + 1))
        part = table[ends[0] : ends[-1]]
        yield sparse.csr_array((part[:, 2], part[:, 1] - 1, ends - ends[0]), shape=(len(ends) - 1, words))
