"""State: what the next batch needs. Info: what is reported to the user."""

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
    """The complete state of a run between two batches.

    Parameters
    ----------
    lap : int, the lap in progress or about to start, from 1
    order : the batches, in the order in which this lap visits them
    visited : int, number of batches of this lap already added
    ids : (K,) int64 stable component ids, in component order
    next_id : int, first unused id
    batch_summaries : one per batch: of its last visit (memoized), or of the batches of this lap (stochastic); of the
        model's own type
    start : batch summary in place of rows not yet seen in this lap (an initial model, new children), or None
    proposals : what each move tries in this lap, in the order of the moves
    sampling_probabilities : (K,) probability with which a row joins the sample of its component in this lap
    candidates : (K, K) bool, components considered for the rows of each owner in this lap; None for all
    samples : parts of the sample of rows drawn so far in this lap, in the order of batches
    queue : totals from which batches in progress computed their posterior (look-ahead)
    running : the total of a stochastic run, else None
    elbo : exact ELBO at the end of the last lap, in nats; None before the first
    quiet : whether the last lap end left no move pending and changed the ELBO by less than the tolerance
    momentum : the change in the last lap, along which posteriors are extrapolated; None if they are not
    """

    lap: int
    order: tuple[int, ...]
    visited: int
    ids: Annotated[np.ndarray, Stored(("component",), "stable id of a component", name="id")]
    next_id: int
    batch_summaries: tuple[Any, ...]
    start: Any
    proposals: tuple[Any, ...]
    sampling_probabilities: Annotated[
        np.ndarray, Stored(("component",), "probability that a row joins the sample of its component")
    ]
    candidates: Annotated[
        np.ndarray | None,
        Stored(("component", "candidate"), "whether a component is a candidate for the rows of an owner"),
    ] = None
    samples: tuple[Sample, ...] = ()
    queue: tuple[Any, ...] = ()
    running: Any = None
    elbo: float | None = None
    quiet: bool = False
    momentum: Any = None

    @cached_property
    def sample(self) -> Sample | None:
        """The rows drawn so far in this lap; None before its first batch."""
        return join_samples(self.samples) if self.samples else None


class Record(NamedTuple):
    """One proposal in the history."""

    kind: str
    components: tuple[int, ...]  # ids of the components that it would remove
    gain: float
    reason: Reason


class Info(NamedTuple):
    """One finished lap.

    Parameters
    ----------
    lap : int
    elbo : exact ELBO of the whole data after the lap's moves, in nats; NaN if the method has none
    elbo_before_moves : the same before the moves, and before hyperparameters were updated
    rows : weight of the rows; in a pass, rows processed so far
    units : number of rows or tokens that the bound covers
    n_components : K after the moves
    ids, counts : (K,) after the moves
    records : of all proposals judged
    seconds : wall time of the lap
    total : summary of the whole data after the moves
    of : total number of laps, if known in advance
    score : mean log predictive density of held-out rows, in nats; NaN if not computed
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
