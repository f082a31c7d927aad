"""What a lap tries, and the map that its end applies to every batch summary.

A lap fits documents under the current topics and, if moves are tried, also under candidates: the current topics with
some added or removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dpdist.inference.moves.cooldown import Cooldowns
from dpdist.inference.topics.batch_summary import Measured, TopicBatchSummary, united, with_added, with_removed
from dpdist.inference.topics.documents import NO_PAIRS, PairSums
from dpdist.inference.topics.kept import BatchDocuments
from dpdist.inference.topics.model import TopicModel

_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class TopicTrials:
    """What is tried in a lap.

    Parameters
    ----------
    pairs : (P, 2) current topics whose unions are measured
    kind : "birth", "delete", or "" if there are no candidates
    added : number of new topics among the candidates; they follow the current topics that are kept
    removed : positions of current topics that are not among the candidates
    candidate_ids : stable ids of the candidates
    candidate_pairs : (P', 2) candidates whose unions are measured
    age : number of earlier laps in which documents were fitted under the candidates
    gain : difference of the bounds at the end of the last of these laps
    births_refused, deletes_refused : numbers in a row; -1 for deletes if a delete comes next, because a birth was
        accepted or a delete gained at once
    cooldowns : of topics that are not deleted for some laps
    model, candidate_model : with the present learned hyperparameters, for current topics and for candidates; None: the
        problem's own model, and that of the current topics
    """

    pairs: np.ndarray = field(default_factory=lambda: NO_PAIRS)
    kind: str = ""
    added: int = 0
    removed: np.ndarray = field(default_factory=lambda: _NONE)
    candidate_ids: np.ndarray = field(default_factory=lambda: _NONE)
    candidate_pairs: np.ndarray = field(default_factory=lambda: NO_PAIRS)
    age: int = 0
    gain: float = -np.inf
    births_refused: int = 0
    deletes_refused: int = 0
    cooldowns: Cooldowns = field(default_factory=Cooldowns)
    model: TopicModel | None = None
    candidate_model: TopicModel | None = None

    def first_sums(self, current: Measured) -> Measured | None:
        """Documents under candidates, before any local step under these; None if there are no candidates."""
        if not self.kind:
            return None
        summary = with_removed(current.summary, self.removed) if len(self.removed) else current.summary
        summary = with_added(summary, self.added)
        return Measured(summary, PairSums.zeros(len(self.candidate_pairs)))

    def names(self, topics: int) -> np.ndarray:
        """The position of each of `topics` current topics among the candidates; -1 for those removed."""
        names = np.full(topics, -1, dtype=np.int64)
        kept = np.setdiff1d(np.arange(topics), self.removed)
        names[kept] = np.arange(len(kept))
        return names


@dataclass(frozen=True, eq=False)
class Merging:
    """Merges of topics, followed by a reordering.

    Parameters
    ----------
    pairs : (P, 2) pairs that were measured
    chosen : indices of the merged pairs
    order : of the remaining topics
    """

    pairs: np.ndarray
    chosen: np.ndarray
    order: np.ndarray

    def apply(self, measured: Measured, pairs: int) -> Measured:
        """The same documents under the remaining topics, with room for `pairs` pairs to be measured next."""
        topics = len(measured.summary.entropy)
        summary = united(measured.summary, measured.pairs, self.pairs, self.chosen, self.order)
        known = None if measured.topics is None else measured.topics.renamed(self.names(topics))
        return Measured(summary, PairSums.zeros(pairs), known)

    def left(self, topics: int) -> np.ndarray:
        """The old topics that remain, in their new order."""
        return np.asarray(np.setdiff1d(np.arange(topics), self.pairs[self.chosen, 1])[self.order])

    def names(self, topics: int) -> np.ndarray:
        """The new position of each old topic, (K,)."""
        into = np.arange(topics)
        into[self.pairs[self.chosen, 1]] = self.pairs[self.chosen, 0]
        places = np.empty(topics, dtype=np.int64)
        places[self.left(topics)] = np.arange(len(self.order))
        return places[into]


@dataclass(frozen=True, eq=False)
class TopicMap:
    """The map that a lap end applies to every batch summary: small, and the same for batch summaries and the total.

    Parameters
    ----------
    accepted : whether the candidates become the current topics
    current : merges of the topics that are current from now on
    candidate : merges of the candidates that are fitted for another lap; None if there are none
    after : trials of the next lap
    """

    accepted: bool
    current: Merging
    candidate: Merging | None
    after: TopicTrials

    def batch_summary(self, batch_summary: TopicBatchSummary) -> TopicBatchSummary:
        """A batch summary of the lap in the topics of the next lap."""
        fitted = batch_summary.candidate
        chosen = fitted if self.accepted and fitted is not None else batch_summary.current
        current, documents = self.current.apply(chosen, len(self.after.pairs)), self._documents(batch_summary)
        if self.candidate is not None and fitted is not None:
            candidate = self.candidate.apply(fitted, len(self.after.candidate_pairs))
            return TopicBatchSummary(current, candidate, documents)
        return TopicBatchSummary(current, self.after.first_sums(current), documents)

    def _documents(self, batch_summary: TopicBatchSummary) -> BatchDocuments | None:
        """The documents with the new names of their topics."""
        known, fitted = batch_summary.documents, batch_summary.candidate
        if known is None:
            return None
        chosen, names = batch_summary.current, known.current
        if self.accepted and fitted is not None and known.candidate is not None:
            chosen, names = fitted, known.candidate
        current = names.renamed(self.current.names(len(chosen.summary.entropy)))
        candidate = current.renamed(self.after.names(len(self.current.order))) if self.after.kind else None
        if self.candidate is not None and fitted is not None and known.candidate is not None:
            candidate = known.candidate.renamed(self.candidate.names(len(fitted.summary.entropy)))
        return replace(known, current=current, candidate=candidate)
