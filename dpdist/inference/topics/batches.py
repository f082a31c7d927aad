"""Default number of batches per lap over documents.

Every batch has its own posterior, so more batches learn more per lap; but each has a fixed cost of passes over all
words of all topics: their weights, and the sums of the batches' tree. The cost of documents is proportional to their
entries and, with fresh starts, also to the number of topics. So the number of entries per word decides.
"""

from __future__ import annotations

#: Smallest number of entries per batch for each word of the vocabulary: then the passes over all words cost less than
#: the documents' updates, and hardly more laps are needed.
ENTRIES = 10
#: Largest number of batches.
MOST = 10


def batches_that_pay(entries: int, vocabulary: int) -> int:
    """The default number of batches for documents with `entries` nonzero counts."""
    return max(1, min(MOST, entries // (ENTRIES * vocabulary)))
