"""How many batches a lap over documents has where nobody says.

Every batch has a posterior of its own, so more batches learn more from a lap; but each costs, whatever it holds, passes
over all words of all topics: their weights, and the sums of the batches' tree. Its documents cost in proportion to
their entries and, where they start afresh, to the topics too. So what counts is the number of entries for each word.
"""

from __future__ import annotations

#: Entries of a batch for each word of the vocabulary, at least: then the passes over all words cost less than the
#: documents' updates do, and hardly more laps are needed.
ENTRIES = 10
#: Most batches.
MOST = 10


def batches_that_pay(entries: int, vocabulary: int) -> int:
    """The number of batches for documents with so many entries, words of a document, over a vocabulary."""
    return max(1, min(MOST, entries // (ENTRIES * vocabulary)))
