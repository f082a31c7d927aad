"""State: what the next batch needs. Info: what a person wants to see."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np

from dpdist.core.stored import Stored
from dpdist.inference.moves.accept import Reason
from dpdist.inference.sample import Sample, join_samples


@dataclass(frozen=True, eq=False)
class State:
    """Everything a run is made of between two batches.

    Parameters
    ----------
    lap : int, the lap under way or about to start, from 1
    order : batches in the order in which this lap visits them
    visited : int, batches of this lap already folded in
    ids : (K,) int64 stable component ids, in component order
    next_id : int, first unused id
    batch_summaries : one a batch: its last visit (memoized), or the batches of this lap (stochastic); of the model's
        own kind
    start : batch summary that stands in for rows not yet seen this lap (a first model, new children), or None
    proposals : what each move tries this lap, in the order of the moves
    sampling_probabilities : (K,) chance with which a row joins the sample of its component this lap
    candidates : (K, K) bool, components that the rows of each owner are looked at for this lap; None for all
    samples : parts of the sample of rows drawn so far this lap, in the order of batches
    queue : totals from which batches already under way took their posterior (look-ahead)
    running : the total of a stochastic run, else None
    elbo : exact ELBO at the end of the last lap, in nats; None before
    quiet : whether the last lap's end left no move pending and changed the ELBO by less than the tolerance
    """

    lap: int
    order: tuple[int, ...]
    visited: int
    ids: Annotated[np.ndarray, Stored(("component",), "stable identity of a component", name="id")]
    next_id: int
    batch_summaries: tuple[Any, ...]
    start: Any
    proposals: tuple[Any, ...]
    sampling_probabilities: Annotated[
        np.ndarray, Stored(("component",), "chance with which a row joins the sample of its component")
    ]
    candidates: Annotated[
        np.ndarray | None, Stored(("component", "candidate"), "whether rows of an owner are looked at for a component")
    ] = None
    samples: tuple[Sample, ...] = ()
    queue: tuple[Any, ...] = ()
    running: Any = None
    elbo: float | None = None
    quiet: bool = False

    @cached_property
    def sample(self) -> Sample | None:
        """The rows drawn so far this lap; None before its first batch."""
        return join_samples(self.samples) if self.samples else None


class Record(NamedTuple):
    """One proposal in the history."""

    kind: str
    components: tuple[int, ...]  # ids of the components it would replace
    gain: float
    reason: Reason


class Info(NamedTuple):
    """One finished lap.

    Parameters
    ----------
    lap : int
    elbo : exact ELBO after the lap's moves, nats, whole data; NaN where a method has none
    elbo_before_moves : the same before them, and before hyperparameters were learned anew
    rows : number of rows, each counting as much as its weight; of a pass, rows passed so far
    units : rows or tokens that the bound is of
    n_components : K after the moves
    ids, counts : (K,) after the moves
    records : every proposal judged
    seconds : wall time of the lap
    total : summary of the whole data after the moves
    of : laps in all, where it is known how many there will be
    score : mean log predictive density of held-out rows, nats; NaN where they were not scored
    """

    lap: int
    elbo: float
    elbo_before_moves: float
    rows: float
    units: float
    n_components: int
    ids: np.ndarray
    counts: np.ndarray
    records: tuple[Record, ...]
    seconds: float
    total: Any
    of: int | None = None
    score: float = math.nan
