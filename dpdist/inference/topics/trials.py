"""What a lap tries, and what the end of a lap makes of every batch's summary.

A lap fits documents under the current topics and, where moves are tried, under candidates as well: the current topics
with some added, or with some removed.
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
    pairs : (P, 2) of current topics whose unions are measured
    kind : "birth", "delete", or "" where no candidates are tried
    added : number of new topics among the candidates, which come after those of the current ones that are kept
    removed : positions of current topics that the candidates do without
    candidate_ids : stable ids of the candidates
    candidate_pairs : (P', 2) of candidates whose unions are measured
    age : laps in which documents were fitted under the candidates before
    gain : by which their bound was higher at the end of the last of these
    births_refused, deletes_refused : in a row; -1 of deletes that have the turn, for a birth was accepted, or a delete
        that paid at once
    cooldowns : of topics, during which it is not tried to do without them
    model, candidate_model : with the hyperparameters in force, where they are learned, for current topics and for
        candidates; None: the problem's own, and that of the current topics
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
        """Documents under candidates, before any local step under these; None if none are tried."""
        if not self.kind:
            return None
        summary = with_removed(current.summary, self.removed) if len(self.removed) else current.summary
        summary = with_added(summary, self.added)
        return Measured(summary, PairSums.zeros(len(self.candidate_pairs)))

    def names(self, topics: int) -> np.ndarray:
        """The position of each current topic, of so many, among the candidates; -1 for those removed."""
        names = np.full(topics, -1, dtype=np.int64)
        kept = np.setdiff1d(np.arange(topics), self.removed)
        names[kept] = np.arange(len(kept))
        return names


@dataclass(frozen=True, eq=False)
class Merging:
    """Topics made one, and all of them put in order.

    Parameters
    ----------
    pairs : (P, 2) pairs that were measured
    chosen : those of them that are one from now on
    order : of the topics that are left
    """

    pairs: np.ndarray
    chosen: np.ndarray
    order: np.ndarray

    def apply(self, measured: Measured, pairs: int) -> Measured:
        """The same documents under the topics left, of which `pairs` pairs are measured next."""
        topics = len(measured.summary.entropy)
        summary = united(measured.summary, measured.pairs, self.pairs, self.chosen, self.order)
        known = None if measured.topics is None else measured.topics.renamed(self.names(topics))
        return Measured(summary, PairSums.zeros(pairs), known)

    def left(self, topics: int) -> np.ndarray:
        """The old topics that are left, in their new order."""
        return np.asarray(np.setdiff1d(np.arange(topics), self.pairs[self.chosen, 1])[self.order])

    def names(self, topics: int) -> np.ndarray:
        """The new position of each of the old topics, (K,)."""
        into = np.arange(topics)
        into[self.pairs[self.chosen, 1]] = self.pairs[self.chosen, 0]
        places = np.empty(topics, dtype=np.int64)
        places[self.left(topics)] = np.arange(len(self.order))
        return places[into]


@dataclass(frozen=True, eq=False)
class TopicMap:
    """What a lap's end makes of every batch summary: small, and the same for batch summaries and total.

    Parameters
    ----------
    accepted : whether the candidates are the current topics from now on
    current : what becomes of the topics that are current from now on
    candidate : what becomes of candidates that are fitted on; None where they are not
    after : what is tried in the next lap
    """

    accepted: bool
    current: Merging
    candidate: Merging | None
    after: TopicTrials

    def batch_summary(self, batch_summary: TopicBatchSummary) -> TopicBatchSummary:
        """A batch summary of the lap in the topics of the next."""
        fitted = batch_summary.candidate
        chosen = fitted if self.accepted and fitted is not None else batch_summary.current
        current, documents = self.current.apply(chosen, len(self.after.pairs)), self._documents(batch_summary)
        if self.candidate is not None and fitted is not None:
            candidate = self.candidate.apply(fitted, len(self.after.candidate_pairs))
            return TopicBatchSummary(current, candidate, documents)
        return TopicBatchSummary(current, self.after.first_sums(current), documents)

    def _documents(self, batch_summary: TopicBatchSummary) -> BatchDocuments | None:
        """Under which names the topics of its documents go from now on."""
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
