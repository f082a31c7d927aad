"""Documents in the format of lda-c (https://github.com/blei-lab/lda-c).

Each line is a document, ``M word:count word:count ...`` with M terms; words are numbered from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import sparse

from dpdist.data.documents.counts import MOST
from dpdist.data.documents.text import numbers_of, opened, read_lines, refuse

_LINES = re.compile(rb"(?>[ \t]*+\d++(?:[ \t]++\d++:\d++)*+[ \t]*+\r?+(?:\n|\Z))*+")


def read_ldac(path: Path, vocabulary: int | None) -> Iterator[sparse.csr_array]:
    """The documents in blocks, with as many columns as the vocabulary, or else as words so far.

    Parameters
    ----------
    path : of the file
    vocabulary : number of words, if known
    """
    words = vocabulary or 0
    with opened(path, "lda-c text") as stream:
        for number, lines in read_lines(stream, 1):
            numbers = numbers_of(lines, number, _LINES, path, "M word:count word:count ...")
            terms = np.array([line.count(b":") for line in lines])
            ends = np.concatenate([[0], np.cumsum(terms)])
            pairs = _pairs(numbers, ends, number, path)
            _require_known(pairs[:, 0], ends, MOST if vocabulary is None else vocabulary, number, path)
            words = max(words, int(pairs[:, 0].max(initial=-1)) + 1)
            yield sparse.csr_array((pairs[:, 1], pairs[:, 0], ends), shape=(len(lines), words))


def _pairs(numbers: np.ndarray, ends: np.ndarray, first: int, path: Path) -> np.ndarray:
    """(word, count) of all terms, after checking that the first number of each line is its number of terms."""
    heads, terms = 2 * ends[:-1] + np.arange(len(ends) - 1), np.diff(ends)
    wrong = np.flatnonzero(numbers[heads] != terms)
    if len(wrong):
        refuse(
            path,
            first + int(wrong[0]),
            f"have {numbers[heads[wrong[0]]]} terms, as its first number says",
            str(terms[wrong[0]]),
        )
    return np.delete(numbers, heads).reshape(-1, 2)


def _require_known(columns: np.ndarray, ends: np.ndarray, words: int, first: int, path: Path) -> None:
    wrong = np.flatnonzero(columns >= words)
    if len(wrong):
        line = first + int(np.searchsorted(ends, wrong[0], side="right")) - 1
        known = ", as in the vocabulary" if words < MOST else ""
        refuse(path, line, f"have words from 0 to {words - 1}{known}", f"word {columns[wrong[0]]}")
